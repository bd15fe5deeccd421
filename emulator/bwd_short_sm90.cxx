/// bwd_short_sm90 on the emulator, against the formulas in float64: jobs of all passes and of one,
/// odd lengths, GQA, masks, the gradient through LSE, packed sequences, head dims off the tile;
/// poisoned shared memory and outputs.
#include "bwd_sm90_check.h"
#include "bwd_sm90_drawn.h"
#include "cuda/kernels/bwd_short_sm90/kernel.cuh"
//
#include "bwd_sm90_lines.h"

namespace tilewise::bwd_short_sm90 {
alignas(1024) unsigned char memory[256 * 1024];
}

namespace {

using Short = bwd_short_sm90::Config;

/// As the problems of bwd_sm90 are drawn: what they depend on of a config.
constexpr Config drawn(const Short& c) {
  return {.element = c.element, .mask = c.mask, .lengths = c.lengths};
}

template <Short kShort>
struct ShortCheck : Check<kShort.element> {
  static constexpr bool kPacked = kShort.lengths == Lengths::packed;
  explicit ShortCheck(const Shape& shape) : Check<kShort.element>(drawn(kShort), shape) {}

  static bwd_short_sm90::Rows rows_of(const Stored<kShort.element>& t) {
    const long row = long(t.heads) * t.dim;
    return {t.data.data(), row * t.seq, t.dim, row};
  }

  void run_short(const char* name, double bound) {
    Shape& s = this->s;
    bwd_short_sm90::Args a;
    const int q_rows = kPacked ? s.seq_q : 0, k_rows = kPacked ? s.seq_k : 0;
    for (auto* t : {&this->dq, &this->dk, &this->dv})
      std::fill(t->data.begin(), t->data.end(), kPoison);
    a.q = this->q.map(s.batch, 64, q_rows), a.d_o = this->d_o.map(s.batch, 64, q_rows);
    a.dq = this->dq.map(s.batch, 64, q_rows);
    a.k = this->k.map(s.batch, 64, k_rows), a.v = this->v.map(s.batch, 64, k_rows);
    a.dk = this->dk.map(s.batch, 64, k_rows), a.dv = this->dv.map(s.batch, 64, k_rows);
    if (kShort.refined) std::fill(this->o.data.begin(), this->o.data.end(), kPoison);
    a.o_rows = rows_of(this->o), a.d_o_rows = rows_of(this->d_o);
    a.head_dim_v = s.dim_v;
    a.heads_q = s.heads_q, a.heads_k = s.heads_k, a.group = s.heads_q / s.heads_k;
    a.seq_q = s.seq_q, a.seq_k = s.seq_k;
    a.batch = kPacked ? int(s.queries.size()) : s.batch;
    const int q_passes = (s.seq_q + 127) / 128, k_passes = (s.seq_k + 127) / 128;
    a.jobs = kShort.cut ? s.batch * (s.heads_k * k_passes + s.heads_q * q_passes)
                        : (a.batch + kPacked) * s.heads_k;
    a.scale = s.scale, a.scale_log2 = s.scale * tile::kLog2e;
    a.low = s.low, a.high = s.high, a.top = s.top;
    a.lse = this->lse.data(), a.lse_b = s.heads_q * s.seq_q, a.lse_h = s.seq_q, a.lse_s = 1;
    if (s.d_lse)
      a.d_lse = this->d_lse.data(), a.d_lse_b = a.lse_b, a.d_lse_h = s.seq_q, a.d_lse_s = 1;
    a.cu_q = {this->cu_q.data()};
    a.cu_k = {(this->cu_q == this->cu_k ? this->cu_q : this->cu_k).data()};
    a.q_rows = q_rows, a.k_rows = k_rows;
    unsigned long long word = 77;
    a.counter = {&word, 5};
    std::vector<unsigned long long> done;
    std::vector<float> parts;
    if (kShort.shares) {
      const int places = 2 * s.batch * s.heads_k * k_passes;
      a.sharers = a.group, a.group = 1, a.heads_k = s.heads_q;
      a.jobs = s.batch * s.heads_q;
      done.assign(places, 99);
      parts.assign(std::size_t(places) * a.sharers * 64 * (kShort.head_dim + kShort.head_dim_v),
                   std::numeric_limits<float>::quiet_NaN());
      a.sharers_done = {done.data(), 6}, a.parts = parts.data();
    }
    // As the row: no block without a job.
    const unsigned blocks = std::min(s.blocks, unsigned(a.jobs));
    emulator::run_grid(bwd_short_sm90::memory, blocks, bwd_short_sm90::kThreads,
                       [&] { bwd_short_sm90::kernel<kShort>(a); });
    this->compare(name, "dQ", this->dq, this->true_dq, bound);
    this->compare(name, "dK", this->dk, this->true_dk, bound);
    this->compare(name, "dV", this->dv, this->true_dv, bound);
  }
};

template <Short kShort>
void check_short(const char* name, const Shape& shape, double bound) {
  ShortCheck<kShort>(shape).run_short(name, bound);
}
template <Short kShort>
void check_short(const char* line, double bound) {
  const WrittenShape written(line, kShort.element);
  check_short<kShort>(written.name(), written.shape(), bound);
}

constexpr Short kShort64 = bwd_short_sm90::with_stages({.head_dim = 64, .head_dim_v = 64});
constexpr Short kShort128 = bwd_short_sm90::with_stages({});
constexpr Short kHalves128 = bwd_short_sm90::with_halves(kShort128);

constexpr Short with_mask(Short c, Mask mask) {
  c.mask = mask;
  return c;
}
constexpr Short cut(Short c) {
  c.cut = true;
  return c;
}
constexpr Short helped(Short c) {
  c.helped = true;
  return c;
}
constexpr Short packed(Short c) {
  c.lengths = Lengths::packed;
  return c;
}
constexpr Short two_plane(Short c) {
  c.two_plane = true;
  return c;
}
constexpr Short refined(Short c) {
  c.refined = true;
  return two_plane(c);
}
constexpr Short shares(Short c) {
  c.shares = true;
  return c;
}
constexpr Short of_half(Short c) {
  c.element = Element::fp16;
  return c;
}

constexpr double kBf16 = 1.2e-2, kFp16 = 1.5e-3;
constexpr double kExact = 4e-3;  // half a bf16 step of the result

void check_packed() {
  check_short<packed(kShort64)>(
      "packed, dim 64, 2 blocks: h4/2 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=25,25 d64 "
      "bf16 grid=2",
      kBf16);
  check_short<packed(with_mask(kHalves128, Mask::right))>(
      "packed, dim 128, causal, rows that see nothing: h2/1 "
      "packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=130,130 d128 bf16 causal dlse grid=3",
      kBf16);
  check_short<packed(with_mask(kShort64, Mask::both))>(
      "packed, dim 64, window, top left: h1 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=3,3 "
      "d64 bf16 causal_top_left window=60,none",
      kBf16);
  check_short<packed(refined(with_mask(kShort64, Mask::right)))>(
      "packed, dim 40, causal, refined: h2/1 packed=70,1,0,129,200,0/33,90,5,129,300,40:tail=1,1 "
      "d40 bf16 causal",
      kExact);
}

template <Short kShort>
void check_drawn(const char* name, double bound) {
  ShapeDraws draws(unsigned(kShort.head_dim + 7 * int(kShort.mask) + 31 * int(kShort.lengths)));
  for (int n = 0; n < ShapeDraws::count(); ++n) {
    const Shape shape = draws.draw(kShort.mask, kShort.lengths, kShort.head_dim, kShort.head_dim_v);
    check_short<kShort>((std::string(name) + ", drawn " + std::to_string(n)).c_str(), shape, bound);
  }
}

}  // namespace

int main() {
  check_short<kShort64>("dim 64: b2 h4/2 q150 k200 d64 bf16 grid=2", kBf16);
  check_short<with_mask(kShort128, Mask::right)>("dim 128, causal: b1 h2/1 s300 d128 bf16 causal",
                                                 kBf16);
  check_short<cut(with_mask(kShort64, Mask::right))>(
      "dim 64, causal, cut, 3 blocks: b1 h4/2 q200 k330 d64 bf16 causal dlse grid=3", kBf16);
  check_short<helped(cut(of_half(kShort128)))>(
      "dims 96, 128, fp16, cut, helped: b1 h2/1 q70 k130 d96 dv128 f16 grid=2", kFp16);
  check_short<shares(refined(with_mask(kHalves128, Mask::right)))>(
      "dim 128, causal, refined, heads of a group share, 3 blocks: b1 h6/2 q70 k200 d128 bf16 "
      "causal dlse grid=3",
      kExact);
  check_short<helped(shares(kShort64))>(
      "dim 64, heads of a group share: b2 h4/2 q150 k40 d64 bf16 grid=8", kBf16);
  check_short<helped(cut(two_plane(kShort64)))>(
      "dim 64, exact, cut, helped: b1 h2/1 q150 k200 d64 bf16 grid=4", kExact);
  check_short<refined(with_mask(kHalves128, Mask::both))>(
      "dim 128, window, refined: b1 h2/1 s150 d128 bf16 window=50,20 dlse", kExact);
  check_packed();
  check_drawn<cut(with_mask(kShort64, Mask::right))>("dim 64, causal, cut", kBf16);
  check_drawn<with_mask(kShort128, Mask::right)>("dim 128, causal", kBf16);
  check_drawn<refined(with_mask(kHalves128, Mask::both))>("dim 128, window, refined", kExact);
  // delta comes from a rounded O.
  check_drawn<helped(cut(two_plane(kShort64)))>("dim 64, exact, cut, helped", 1.5 * kExact);
  check_drawn<packed(kShort64)>("packed, dim 64", kBf16);
  check_drawn<packed(with_mask(kHalves128, Mask::right))>("packed, dim 128, causal", kBf16);
  check_drawn<packed(with_mask(kShort64, Mask::both))>("packed, dim 64, window", kBf16);
  check_drawn<packed(refined(with_mask(kShort64, Mask::right)))>("packed, causal, refined", kExact);
  return failures == 0 ? 0 : 1;
}
