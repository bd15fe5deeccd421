/// Score functions and masks of the caller's own in fwd_sm80, bwd_sm80 and bwd_dq_sm80, against
/// the interpreter of their programs.
#include "flash_sm80_checks.h"
//
#include "cuda/tile/expression_ranges.cuh"
#include "expression_texts.h"
//
#include <list>

#include "block_lists.h"
#include "cuda/kernels/bwd_sm80/captures.cuh"
#include "cuda/kernels/bwd_sm80/gate.h"
#include "interpreted.h"
#include "mask_maps.h"

namespace tilewise::bwd_captures_sm80 {
alignas(1024) unsigned char shared[kSharedBytes];
}

namespace {

/// The formulas of a sample for a shape.
struct Interpreted : samples::Interpreted {
  Formula formula;

  Interpreted(int sample, const Shape& s) : samples::Interpreted(samples::kSamples[sample]) {
    formula.captures = cuda::captures_of(problem);
    const auto point = [s](int h, int i, int j, double x) {
      return expression::Point{
          .h = h, .i = i, .j = j, .query_length = s.seq_q, .key_length = s.seq_k, .score = x};
    };
    formula.score = [this, point](int h, int i, int j, double x) -> Formula::Score {
      return {value(point(h, i, j, x)), derivative(point(h, i, j, x))};
    };
    formula.visible = [this, point](int h, int i, int j) {
      return is_visible(point(h, i, j, 0.0));
    };
  }
};

constexpr fwd_sm80::Config with_sample(fwd_sm80::Config config, int sample) {
  config.expressions = samples::expressions_of(sample, false);
  return config;
}
constexpr Gradient with_sample(Gradient config, int sample) {
  config.expressions = samples::expressions_of(sample, true);
  return config;
}

/// Gradients of the captured tensors by the formulas: of each, its elements side by side.
std::vector<std::vector<double>> capture_gradients(const Shape& s, const Truth& t,
                                                   const Interpreted& of) {
  const expression::Gradient& gradient = *of.problem.score_gradient;
  std::vector<std::vector<double>> sums;
  for (const Tensor& c : of.problem.score_function.captures)
    sums.emplace_back(static_cast<std::size_t>(c.numel()));
  for (int h = 0; h < s.heads_q; ++h) {
    for (int i = 0; i < s.seq_q; ++i) {
      for (int j = 0; j < s.seq_k; ++j) {
        const double dx = t.dlogits[(h * s.seq_q + i) * s.seq_k + j];
        if (dx == 0.0) continue;
        of.slope->turn_to({.h = h,
                           .i = i,
                           .j = j,
                           .query_length = s.seq_q,
                           .key_length = s.seq_k,
                           .score = t.scores[(h * s.seq_q + i) * s.seq_k + j]});
        for (const expression::CaptureTerm& term : gradient.terms) {
          const Tensor& c = of.problem.score_function.captures[term.capture];
          for (int lane = 0; lane < term.lanes; ++lane) {
            if (term.lanes > 1) of.slope->turn_to_lane(lane);
            std::int64_t at = 0;
            for (int axis = 0; axis < c.rank; ++axis) {
              std::int64_t index = of.slope->integer(term.index[axis]);
              if (index < 0) index += c.sizes[axis];
              index = std::clamp<std::int64_t>(index, 0, c.sizes[axis] - 1);
              at = at * c.sizes[axis] + index;
            }
            sums[term.capture][at] += dx * of.slope->real(term.value);
          }
        }
      }
    }
  }
  return sums;
}

/// A sample beside a block list, whose full blocks no mask function cuts.
struct Listed : Interpreted {
  BlockLists blocks;
  std::list<MadeLists> made;

  Listed(int sample, const Shape& s, const Blocks& of)
      : Interpreted(sample, s), blocks(of, 1, s.heads_q, s.seq_q, s.seq_k, [&](int, int i, int j) {
          bool all = true;
          for (int h = 0; h < s.heads_q && all; ++h) all = formula.visible(h, i, j);
          return all && (!s.causal || j <= i + s.seq_k - s.seq_q);
        }) {
    const auto shown = formula.visible;
    formula.visible = [this, of, shown](int h, int i, int j) {
      return shown(h, i, j) && blocks.has(of, 0, h, i, j);
    };
    formula.lists = [this, of, s](int rows, int keys, bool of_keys) {
      Problem p;
      p.batch = 1, p.heads_q = s.heads_q, p.heads_k = s.heads_k;
      p.seq_q = s.seq_q, p.seq_k = s.seq_k;
      p.mask_function = problem.mask_function;
      if (s.causal) p.causal = Causal::bottom_right, p.right = 0;
      blocks.give(p, of);
      const MadeLists& lists =
          made.emplace_back(p, wanted_lists(rows, keys, tile::Lists::parts, of_keys));
      return of_keys ? lists.of_keys : lists.of_queries;
    };
  }
};
constexpr fwd_sm80::Config listed(fwd_sm80::Config config) {
  config.lists = tile::Lists::parts;
  return config;
}
constexpr Gradient listed(Gradient config) {
  config.lists = tile::Lists::parts;
  return config;
}

/// A sample whose mask function is mapped.
template <int kSample>
struct Mapped : Interpreted {
  std::list<MadeLists> made;

  explicit Mapped(const Shape& s) : Interpreted(kSample, s) {
    formula.lists = [this, s](int rows, int keys, bool of_keys) {
      Problem p;
      p.batch = 1, p.heads_q = s.heads_q, p.heads_k = s.heads_k;
      p.seq_q = s.seq_q, p.seq_k = s.seq_k;
      p.mask_function = problem.mask_function;
      const MadeLists& lists = made.emplace_back(
          p, wanted_lists(rows, keys, tile::Lists::whole, of_keys),
          map_of<kSample + 1, TileSize{128, 64}, TileSize{128, 32}>(formula.captures));
      return of_keys ? lists.of_keys : lists.of_queries;
    };
  }
};
constexpr fwd_sm80::Config mapped(fwd_sm80::Config config) {
  config.lists = tile::Lists::whole;
  return config;
}
constexpr Gradient mapped(Gradient config) {
  config.lists = tile::Lists::whole;
  return config;
}

/// The gradient of sample 0's gate: each block of the grid owns one element.
template <Gradient kConfig>
void check_gate(const Shape& s, const Interpreted& of, const bwd_sm80::Args& pass,
                const std::vector<std::vector<double>>& truth, double bound) {
  constexpr Gradient kGate = [] {
    Gradient config = kConfig;
    config.expressions.score = samples::kGate;
    return config;
  }();
  Problem p = of.problem;
  for (const Tensor& t : p.score_function.captures) p.dcaptures.push_back(t);
  for (std::size_t n = 0; n < truth.size(); ++n) {
    const std::optional<cuda::Gate> gate = cuda::gate_of(p, n);
    if (!gate.has_value()) continue;
    bwd_captures_sm80::BlockArgs args;
    args.pass = pass;
    args.capture = static_cast<int>(n);
    for (int axis = 0; axis < 4; ++axis) {
      args.axes[axis] = gate->axes[axis];
      args.sizes[axis] = gate->sizes[axis];
      args.per[axis] = gate->per[axis];
    }
    std::vector<float> sums(truth[n].size());
    tile::Expressed<bwd_captures_sm80::BlockArgs> all{args, of.formula.captures};
    all.captures.at[n].gradient = sums.data();
    run_grid(static_cast<unsigned>(sums.size()), kGate.shape.warps * 32, bwd_captures_sm80::shared,
             [&] { bwd_captures_sm80::blocks<kGate>(all); });
    expect("gate of blocks", "d", error(truth[n], sums), bound);
    return;
  }
  expect("gate of blocks", "none", 1.0, 0.0);
}

/// bwd_captures_sm80 beside the tiles of bwd_dq_sm80.
template <Gradient kConfig, int kSample>
void check_captures(const Shape& s, const Interpreted& of, double bound) {
  constexpr Gradient kSums = [] {
    Gradient config = kConfig;
    config.expressions.score = samples::kCaptures + kSample + 1;
    return config;
  }();
  constexpr Element kElement = kSums.form.element;
  const auto rounded = [](float x) { return widened<kElement>(narrow<kElement>(x)); };
  const Truth t = make_truth(s, rounded);
  const int width = kSums.head_dim;
  const Rows<kElement> q(t.q, s.dim, s.dim, s.seq_q), k(t.k, s.dim, width, s.seq_k);
  const Rows<kElement> v(t.v, s.dim, width, s.seq_k), d_o(t.d_o, s.dim, s.dim, s.seq_q);
  Statistics rows(s, t, [](float o) { return o; });
  bwd_sm80::Args a = backward_args(s, rows);
  a.q = q.view, a.k = k.view, a.v = v.view, a.d_o = d_o.view;
  a.cols_q = a.cols_o = s.dim;
  a.cols_k = a.cols_v = width;
  a.order = order(s.seq_q, kSums.shape.block_m, s.heads_q, true);
  const std::vector<std::vector<double>> truth = capture_gradients(s, t, of);
  std::vector<std::vector<float>> sums;
  for (const std::vector<double>& x : truth) sums.emplace_back(x.size());
  give_lists<kSums>(s, a, false);
  tile::Expressed<bwd_sm80::Args> all{a, of.formula.captures};
  if constexpr (tile::ScoreFunction<kSums.expressions.score>::kExact) {
    // Twice: blocks and warps come in another order, the words are the same.
    std::vector<std::vector<tile::u64>> words, again;
    for (std::vector<std::vector<tile::u64>>* to : {&words, &again}) {
      for (const std::vector<double>& x : truth)
        to->emplace_back(x.size() * tile::ExactSum::kWords, 0);
      for (std::size_t n = 0; n < to->size(); ++n)
        all.captures.at[n].gradient = reinterpret_cast<float*>((*to)[n].data());
      run_grid(a.order.blocks * a.order.heads, kSums.shape.warps * 32, bwd_captures_sm80::shared,
               [&] { bwd_captures_sm80::kernel<kSums>(all); });
    }
    for (std::size_t n = 0; n < sums.size(); ++n) {
      for (std::size_t x = 0; x < sums[n].size(); ++x) {
        const auto sum = tile::exact_sum(words[n].data() + x * tile::ExactSum::kWords);
        sums[n][x] = words[n] == again[n] ? static_cast<float>(sum) : NAN;
      }
    }
  } else {
    for (std::size_t n = 0; n < sums.size(); ++n) all.captures.at[n].gradient = sums[n].data();
    run_grid(a.order.blocks * a.order.heads, kSums.shape.warps * 32, bwd_captures_sm80::shared,
             [&] { bwd_captures_sm80::kernel<kSums>(all); });
  }
  for (std::size_t n = 0; n < sums.size(); ++n)
    expect("captured tensor", "d", error(truth[n], sums[n]), bound);
  if constexpr (kSample == 0) check_gate<kConfig>(s, of, a, truth, bound);
}

template <int kSample>
void check_sample(const char* name, Shape shape) {
  const Interpreted interpreted(kSample, shape);
  shape.formula = &interpreted.formula;
  std::printf("%s\n", name);
  check_forward<with_sample(fwd_sm80::Config{.positional = true}, kSample)>("forward", shape);
  check_backward<with_sample(kSmall, kSample), with_sample(kSecondPass, kSample), Delta::p>(
      "one pass", shape, kBf16, kExact);
  constexpr Gradient kFirst = with_sample(kFirstPass, kSample);
  check_backward<kFirst, with_sample(kSecondPass, kSample)>("two passes", shape, kBf16, kBf16);
  if constexpr (kSample != 1)
    check_captures<with_sample(kSecondPass, kSample), kSample>(shape, interpreted, kSums);
}

template <int kSample>
void check_listed(const char* name, Shape shape, const Blocks& blocks) {
  const Listed of(kSample, shape, blocks);
  shape.formula = &of.formula;
  std::printf("%s\n", name);
  check_forward<listed(with_sample(fwd_sm80::Config{.positional = true}, kSample))>("forward",
                                                                                    shape);
  constexpr Gradient kSecond = listed(with_sample(kSecondPass, kSample));
  check_backward<listed(with_sample(kSmall, kSample)), kSecond, Delta::p>("one pass", shape, kBf16,
                                                                          kExact);
  if constexpr (kSample != 1) check_captures<kSecond, kSample>(shape, of, kSums);
}

/// In a third of the rows a float32 LSE keeps nothing of the sum over the keys.
void check_shifted() {
  Shape shape = {.seq_q = 70, .seq_k = 139, .causal = true, .shift = -0x1p100F};
  constexpr int kSample = samples::kShifting;
  const Interpreted interpreted(kSample, shape);
  shape.formula = &interpreted.formula;
  constexpr fwd_sm80::Config kParts = {.positional = true, .split = true};
  check_forward<with_sample(kParts, kSample)>("shifted rows, three parts", shape);
  check_backward<with_sample(kSmall, kSample), with_sample(kSecondPass, kSample), Delta::p>(
      "shifted rows", shape, kBf16, kExact);
  check_float<with_sample(kFloatKeys, kSample), with_sample(kFloatQueries, kSample)>(
      "shifted rows, float32", shape, true, 2e-6);
}

template <int kSample>
void check_mapped(const char* name, Shape shape) {
  const Mapped<kSample> of(shape);
  shape.formula = &of.formula;
  std::printf("%s\n", name);
  check_forward<mapped(with_sample(fwd_sm80::Config{}, kSample))>("forward", shape);
  constexpr Gradient kSecond = mapped(with_sample(kSecondPass, kSample));
  check_backward<mapped(with_sample(kSmall, kSample)), kSecond, Delta::p>("one pass", shape, kBf16,
                                                                          kExact);
  check_captures<kSecond, kSample>(shape, of, kSums);
}

template <int kSample>
void check_others(const Shape& plain) {
  const Interpreted interpreted(kSample, plain);
  Shape shape = plain;
  shape.formula = &interpreted.formula;
  constexpr fwd_sm80::Config kFloat = {
      .form = {.element = Element::fp16, .planes = 2, .scaled = true},
      .shape = {.stages = 1},
      .positional = true};
  check_forward<with_sample(kFloat, kSample)>("forward, float32", shape, kExact);
  constexpr fwd_sm80::Config kKeyWarps = {
      .shape = {.block_m = 32, .block_n = 128, .key_warps = 2, .q_in_registers = true},
      .positional = true};
  check_forward<with_sample(kKeyWarps, kSample)>("forward, keys of two warps", shape);
  check_float<with_sample(kFloatKeys, kSample), with_sample(kFloatQueries, kSample)>(
      "float32", shape, true, 4e-6);
  // A scale that is not positive, and bias, bool mask and dropout beside the functions.
  Shape odd = shape;
  odd.scale = -0.2F, odd.pairs = true, odd.dropout = 0.2;
  constexpr Gradient kKeys =
      with_sample(with_dropout(with_modification(with_pairs(kSmall))), kSample);
  constexpr fwd_sm80::Config kForward = {
      .positional = true, .modified = true, .pairs = kPairs, .dropout = true};
  check_forward<with_sample(kForward, kSample)>("forward, all at once", odd);
  // The sum of dQ beside dK and dV alone: the gradient of the bias is not there.
  constexpr Gradient kPlainQueries =
      with_sample(with_dropout(with_modification(kSecondPass)), kSample);
  odd.biased = true;
  check_backward<kKeys, kPlainQueries>("one pass, all at once", odd, kBf16, kBf16);
  // A bias of -inf hides its pair, whatever the function makes of it.
  Shape biased = shape;
  biased.pairs = true;
  constexpr tile::PairKind kBias = {tile::BiasType::float32, false, true};
  check_forward<with_sample(fwd_sm80::Config{.positional = true, .pairs = kBias}, kSample)>(
      "forward, bias of -inf", biased);
  check_backward<with_sample(with_pairs(kSmall, kBias), kSample),
                 with_sample(kSecondPass, kSample)>("one pass, bias of -inf", biased, kBf16, kBf16);
  Shape wide = shape;
  wide.dim = 104;
  check_backward<with_sample(kWide, kSample), with_sample(kWide, kSample)>("one pass, dim 104",
                                                                           wide, kBf16, kExact);
}

}  // namespace

int main() {
  emulator::checks_races = true;
  check_sample<0>("slopes by head", {.seq_q = 100, .seq_k = 71});
  check_sample<1>("softcap, floors, documents", {.seq_q = 70, .seq_k = 150});
  check_sample<2>("hidden infinite slopes, a table", {.seq_q = 100, .seq_k = 100});
  check_sample<3>("sums over lanes", {.seq_q = 70, .seq_k = 130, .causal = true});
  check_listed<0>("slopes by head, a list", {.seq_q = 200, .seq_k = 171, .causal = true},
                  {.q = 32, .k = 32, .by_head = true, .full = true});
  check_listed<1>("softcap, floors, documents, a list", {.seq_q = 170, .seq_k = 250},
                  {.q = 64, .k = 16, .by_head = true, .full = true});
  check_shifted();
  check_mapped<2>("hidden infinite slopes, a table, a map", {.seq_q = 200, .seq_k = 200});
  check_others<1>({.seq_q = 100, .seq_k = 150, .causal = true});
  return failures == 0 ? 0 : 1;
}
