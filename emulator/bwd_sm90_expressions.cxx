/// Score functions and masks of the caller's own in bwd_sm90, against the interpreter of their
/// programs.
#include "bwd_sm90_made.h"
//
#include "cuda/kernels/bwd_sm80/diagonals.cuh"
#include "cuda/kernels/rows/score_strip.cuh"
#include "cuda/tile/expression_ranges.cuh"
#include "expression_texts.h"
//
#include "bwd_sm90_lines.h"
#include "interpreted.h"
#include "mask_maps.h"

namespace {

constexpr Config k64 = {
    .head_dim = 64, .head_dim_v = 64, .shape = {.block_m = 128}, .logits = {.modified = true}};
constexpr Config k128 = {.logits = {.modified = true}};
constexpr Config kMask64 = {.head_dim = 64, .head_dim_v = 64, .shape = {.block_m = 128}};
constexpr double kBf16 = 1.2e-2, kExact = 4e-3;

constexpr Config with_sample(Config c, int sample) {
  const bool strip = c.expressions.strip;
  c.expressions = samples::expressions_of(sample, true);
  c.expressions.strip = strip;
  if (strip) c.expressions.score = samples::kStripped + sample + 1;
  // The others have the slope 1.
  c.logits.gated = sample == 1 || sample == 2 || sample == samples::kShifting;
  if (!c.logits.gated) c.shape.k_stages = 2;
  return c;
}
constexpr Config two_plane(Config c) {
  c.shape.block_m = 64;
  c.two_plane = true;
  return c;
}

/// Beside slopes of functions that shift rows there is no room for steps of 128 queries.
constexpr Config short_steps(Config c) {
  c.shape.block_m = 64;
  return c;
}
constexpr Config slanted(Config c) {
  c.logits.modified = false;
  c.logits.alibi = true;
  return c;
}
constexpr Config deterministic(Config c) {
  c.sums.deterministic = true;
  return c;
}
constexpr Config diagonal(Config c) {
  c.sums.diagonals = true;
  return c;
}
constexpr Config stripped(Config c) {
  c.expressions.strip = true;
  return c;
}
constexpr Config mapped(Config c) {
  c.lists = Lists::whole;
  return c;
}

/// score_strip, as the row launches it.
template <int kFunction>
std::vector<float> make_strip(const Shape& s, tile::Captures& captures) {
  constexpr score_strip::Config kConfig = {{.score = kFunction}};
  tile::Expressed<score_strip::Args> all{{}, captures};
  score_strip::Args& a = all.args;
  int batch = s.batch;
  a.seq_q = s.seq_q, a.seq_k = s.seq_k;
  std::vector<int> cu_q = {0}, cu_k = {0};
  if (!s.queries.empty()) {
    batch = static_cast<int>(s.queries.size());
    for (const int length : s.queries) cu_q.push_back(cu_q.back() + length);
    for (const int length : s.keys) cu_k.push_back(cu_k.back() + length);
    a.queries = {cu_q.data(), 1, false, batch, cu_q.back()};
    a.keys = {cu_k.data(), 1, false, batch, cu_k.back()};
    a.seq_q = *std::max_element(s.queries.begin(), s.queries.end());
    a.seq_k = *std::max_element(s.keys.begin(), s.keys.end());
  }
  a.strip.count = a.seq_q + a.seq_k + 2 * score_strip::kPadding;
  a.strip.zero = a.seq_k + score_strip::kPadding, a.strip.heads = s.heads_q;
  std::vector<float> values(std::size_t(batch * s.heads_q * a.strip.count), NAN);
  a.values = values.data();
  a.blocks = int(a.strip.count + score_strip::kThreads - 1) / score_strip::kThreads;
  emulator::run_grid(bwd_sm90::memory, unsigned(a.blocks * batch * s.heads_q),
                     score_strip::kThreads, [&] { score_strip::kernel<kConfig>(all); });
  captures.strip = a.strip;
  captures.strip.values = values.data();
  return values;
}

template <Config kConfig, int kSample>
void check_sample(const char* line, double bound) {
  const WrittenShape written(line, kConfig.element);
  Shape shape = written.shape();
  const samples::Interpreted interpreted(samples::kSamples[kSample]);
  Formula formula;
  formula.captures = cuda::captures_of(interpreted.problem);
  formula.of = [&](int b, int h, int i, int j, int queries, int keys, double x) -> Formula::Score {
    const expression::Point at = {b, h, i, j, queries, keys, x};
    return {interpreted.value(at), interpreted.derivative(at), interpreted.is_visible(at)};
  };
  if constexpr (kConfig.listed()) {
    formula.mask = interpreted.problem.mask_function;
    formula.map = map_of<kSample + 1>(formula.captures);
  }
  std::vector<float> strip;
  if constexpr (kConfig.expressions.strip)
    strip = make_strip<samples::kGradients + kSample + 1>(shape, formula.captures);
  shape.formula = &formula;
  check<with_sample(kConfig, kSample)>(written.name(), shape, bound);
}

/// bwd_diagonals: any sums by i - j to the gradients of the captured tensors of a sample.
template <int kSample>
void check_elements(const char* name, double bound) {
  constexpr int kFunction = samples::kCaptures + kSample + 1, kHeads = 3;
  constexpr bool kExact = tile::ScoreFunction<kFunction>::kExact;
  samples::Interpreted of(samples::kSamples[kSample]);
  const std::vector<Tensor>& captured = of.problem.score_function.captures;
  bwd_diagonals::Args args;
  args.seq_q = 70, args.seq_k = 90;
  args.last_key = 127, args.count = 128 + 128, args.blocks = 1;
  args.heads = kHeads;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr int kFloats = kExact ? tile::ExactSum::kFloats : 1;
  std::vector<float> sums(std::size_t(kHeads) * args.count * kFloats, 0.0F);
  args.sums = sums.data();
  tile::Expressed<bwd_diagonals::Args> all{args, cuda::captures_of(of.problem)};
  std::vector<std::vector<double>> truth;
  std::vector<std::vector<float>> made;
  for (std::size_t n = 0; n < captured.size(); ++n) {
    truth.emplace_back(std::size_t(captured[n].numel()), 0.0);
    made.emplace_back(truth[n].size() * kFloats, 0.0F);
    all.captures.at[n].gradient = made[n].data();
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int d = 1 - args.seq_k; d < args.seq_q; ++d) {
      const float g = normal(random);
      const std::size_t at = std::size_t(h) * args.count + d + args.last_key;
      if constexpr (kExact) {
        tile::add_exactly(reinterpret_cast<tile::u64*>(sums.data()) + at * tile::ExactSum::kWords,
                          g);
      } else {
        sums[at] = g;
      }
      const int i = std::max(d, 0);
      of.slope->turn_to({0, h, i, i - d, args.seq_q, args.seq_k, 0.0});
      for (const expression::CaptureTerm& term : of.problem.score_gradient->terms) {
        const Tensor& t = captured[term.capture];
        std::int64_t element = 0;
        for (int axis = 0; axis < t.rank; ++axis) {
          const std::int64_t index = of.slope->integer(term.index[axis]);
          element = element * t.sizes[axis] + expression::in_axis(index, t.sizes[axis]);
        }
        truth[term.capture][element] += g * of.slope->real(term.value);
      }
    }
  }
  constexpr bwd_diagonals::Config kConfig = {.exact = kExact, .expressions = {.score = kFunction}};
  emulator::run_grid(bwd_sm90::memory, kHeads, bwd_diagonals::kThreads,
                     [&] { bwd_diagonals::kernel<kConfig>(all); });
  for (std::size_t n = 0; n < truth.size(); ++n) {
    Largest error;
    for (std::size_t x = 0; x < truth[n].size(); ++x) {
      float sum = made[n][x];
      if constexpr (kExact) {
        const auto* words = reinterpret_cast<const tile::u64*>(made[n].data());
        sum = float(tile::exact_sum(words + x * tile::ExactSum::kWords));
      }
      error.add(truth[n][x], sum);
    }
    error.expect(name, "d", bound);
  }
}

}  // namespace

int main() {
  check_elements<2>("elements by i - j, exact", 1e-6);
  check_elements<4>("elements by i - j", 1e-6);
  check_sample<diagonal(masked(k64, Mask::right)), 0>(
      "slopes by head, causal: b1 h2/1 q150 k200 d64 bf16 causal grid=2", kBf16);
  check_sample<slanted(k64), 4>("what grows evenly with i and j: b1 h2 q300 k400 d64 bf16", kBf16);
  check_sample<slanted(masked(k128, Mask::right)), 4>(
      "the same, causal: b1 h1 q150 k200 d128 bf16 causal", kBf16);
  check_sample<short_steps(k64), samples::kShifting>(
      "shifted rows: b1 h1 q150 k200 d64 bf16 given_delta", kBf16);
  check_sample<deterministic(mapped(masked(k128, Mask::right))), samples::kShifting>(
      "shifted rows, a list, deterministic: b1 h1 q150 k200 d128 bf16 causal", kBf16);
  check_sample<k64, 1>("softcap, floors, documents: b1 h2 q150 k200 d64 bf16", kBf16);
  check_sample<stripped(diagonal(masked(k128, Mask::both))), 2>(
      "hidden infinite slopes, window: b2 h2/1 q150 k200 d128 bf16 window=110,-31 grid=2", kBf16);
  check_sample<two_plane(masked(k64, Mask::right)), 2>(
      "the same, exact dS: b1 h2/1 q150 k200 d64 bf16 causal given_delta", kExact);
  check_sample<two_plane(masked(k128, Mask::right)), 1>(
      "softcap, floors, documents, exact dS: b1 h2/1 q150 k200 d128 bf16 causal given_delta",
      kExact);
  check_sample<diagonal(deterministic(two_plane(k64))), 3>(
      "sums over lanes, exact dS: b1 h1 q150 k200 d64 bf16 dlse", kExact);
  check_sample<ragged(masked(k64, Mask::right), Lengths::packed), 0>(
      "slopes by head, packed, causal: h2/1 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=25,25 "
      "d64 bf16 causal",
      kBf16);
  check_sample<stripped(diagonal(ragged(masked(k64, Mask::both), Lengths::packed))), 2>(
      "hidden infinite slopes, packed, window: h1 packed=70,0,129/90,5,200:tail=9,9 d64 bf16 "
      "window=60,19",
      kBf16);
  check_sample<mapped(k64), 1>("a map of documents, GQA: b1 h2/1 q530 k601 d64 bf16", kBf16);
  check_sample<mapped(ragged(masked(k64, Mask::right), Lengths::packed)), 1>(
      "a map of documents, packed, causal: h2/1 packed=70,0,530,33/200,40,601,5:tail=150,150 d64 "
      "bf16 causal",
      kBf16);
  check_sample<mapped(masked(kMask64, Mask::right)), samples::kPlaced>(
      "a map of longer documents, causal, GQA: b1 h2/1 q560 k601 d64 bf16 causal", kBf16);
  check_sample<mapped(deterministic(masked(kMask64, Mask::both))), samples::kPlaced>(
      "the same, window, deterministic: b1 h1 s601 d64 bf16 window=230,19", kBf16);
  check_sample<mapped(masked(k128, Mask::right)), 3>(
      "a map of chosen blocks, causal: b1 h1 q520 k640 d128 bf16 causal", kBf16);
  return failures == 0 ? 0 : 1;
}
