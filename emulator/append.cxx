/// append_rows on the emulator: pools in any order and contiguous caches, new rows of as many in
/// each entry and packed ones, both forms of rotary pairs, rows of any stride, entries without
/// room. Whatever it must not write stays as it was.
#include "cuda/kernels/rows/append.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

using namespace tilewise;
using Bits = unsigned short;
using append_rows::Args;

int failures = 0;

Bits narrow(float x) {
  const unsigned u = emulator::bits(x);
  return static_cast<Bits>((u + 0x7fffU + (u >> 16 & 1U)) >> 16);
}
float widened(Bits x) { return emulator::number(static_cast<unsigned>(x) << 16); }

struct Case {
  const char* name;
  std::vector<int> lengths, rows;  ///< of each entry
  int page_size = 4, columns = 6;
  bool paged = true, packed = false, interleaved = false, float_tables = false;
  int rotary_dim = 0, positions = 40, dim = 24, dim_v = 16;
  int step = 1;  ///< of elements of a row of K
  bool one_query_position = false;
  int spoiled = -1;  ///< an entry whose table names no page
};

constexpr int kHeads = 2, kHeadsQ = 4;
constexpr Bits kOld = 0x4249;

struct Call {
  const Case& c;
  int batch, total = 0, pages;
  std::vector<int> offsets = {0}, table, after;
  std::vector<unsigned char> skipped;
  std::vector<Bits> k, v, q, k_cache, v_cache, rotated;
  std::vector<float> cos, sin;
  std::vector<Bits> cos16, sin16;

  explicit Call(const Case& given) : c(given), batch(static_cast<int>(c.lengths.size())) {
    for (const int n : c.rows) offsets.push_back(total += n);
    pages = c.paged ? batch * c.columns + 2 : batch + 1;
    table.assign(static_cast<std::size_t>(batch) * c.columns, 1 << 30);
    int next = pages - 1;
    for (int b = 0; b < batch; ++b) {
      const int needed = (c.lengths[b] + c.rows[b] + c.page_size - 1) / c.page_size;
      for (int n = 0; n < needed && n < c.columns; ++n) table[b * c.columns + n] = next--;
      if (b == c.spoiled) table[b * c.columns + needed - 1] = pages;
    }
    std::mt19937 random(5);
    std::uniform_real_distribution<float> uniform(-2.0F, 2.0F);
    const auto drawn = [&](std::size_t n) {
      std::vector<Bits> x(n);
      for (Bits& bits : x) bits = narrow(uniform(random));
      return x;
    };
    const auto size = static_cast<std::size_t>(total);
    k = drawn(size * kHeads * c.dim * c.step), v = drawn(size * kHeads * c.dim_v);
    q = drawn(size * kHeadsQ * c.dim);
    rotated.assign(q.size(), kOld);
    const auto slots = static_cast<std::size_t>(pages) * c.page_size;
    k_cache.assign(slots * kHeads * c.dim, kOld), v_cache.assign(slots * kHeads * c.dim_v, kOld);
    const int half = c.rotary_dim / 2;
    for (int n = 0; n < c.positions * half; ++n) {
      const int position = n / half, pair = n % half;
      const float angle = static_cast<float>(position) * (1.0F + static_cast<float>(pair));
      cos16.push_back(narrow(std::cos(angle))), sin16.push_back(narrow(std::sin(angle)));
      cos.push_back(c.float_tables ? std::cos(angle) : widened(cos16.back()));
      sin.push_back(c.float_tables ? std::sin(angle) : widened(sin16.back()));
    }
    after.assign(c.lengths.size(), -1), skipped.assign(c.lengths.size(), 9);
  }

  Args args() {
    Args a;
    const long long wide = static_cast<long long>(c.dim) * c.step, rows = c.rows[0];
    const long long entry = c.packed ? 0 : 1;
    const auto side = [](long long heads, long long dim, long long step, long long of_entry) {
      return tile::View4{nullptr, of_entry * heads * dim, dim, heads * dim, step};
    };
    const auto set = [](append_rows::Rows& r, tile::View4 from, Bits* data, tile::View4 to,
                        Bits* out, int heads, int dim, bool vectors) {
      r.from = from, r.to = to;
      r.from.data = data, r.to.data = out;
      r.heads = heads, r.dim = dim, r.chunks = (dim + 7) / 8, r.vectors = vectors;
    };
    const long long slots = c.page_size;
    set(a.k, side(kHeads, wide, c.step, entry * rows), k.data(),
        {nullptr, slots * kHeads * c.dim, slots * c.dim, c.dim, 1}, k_cache.data(), kHeads, c.dim,
        c.step == 1 && c.dim % 8 == 0);
    set(a.v, side(kHeads, c.dim_v, 1, entry * rows), v.data(),
        {nullptr, slots * kHeads * c.dim_v, slots * c.dim_v, c.dim_v, 1}, v_cache.data(), kHeads,
        c.dim_v, c.dim_v % 8 == 0);
    const tile::View4 queries = side(kHeadsQ, c.dim, 1, entry * rows);
    set(a.q, queries, q.data(), queries, rotated.data(), kHeadsQ, c.dim, c.dim % 8 == 0);
    if (c.packed) a.new_rows = {offsets.data(), 1, false, batch, total};
    a.rows = a.rows_q = static_cast<int>(rows);
    a.lengths = c.lengths.data(), a.lengths_b = 1;
    a.new_lengths = after.data(), a.new_lengths_b = 1;
    a.skipped = skipped.data(), a.skipped_b = 1;
    int shift = 29;
    while ((1 << (shift - 29)) < c.page_size) ++shift;
    const auto multiplier =
        static_cast<unsigned>(((1ULL << shift) + c.page_size - 1) / c.page_size);
    a.pages = {c.paged ? table.data() : nullptr, c.columns, 1, c.page_size, multiplier, shift};
    a.table_pages = c.paged ? c.columns : 1, a.pool_pages = pages;
    if (c.rotary_dim > 0) {
      a.cos = c.float_tables ? static_cast<const void*>(cos.data()) : cos16.data();
      a.sin = c.float_tables ? static_cast<const void*>(sin.data()) : sin16.data();
      a.cos_n = a.sin_n = c.rotary_dim / 2, a.cos_p = a.sin_p = 1;
      a.float_tables = c.float_tables, a.interleaved = c.interleaved;
      a.one_query_position = c.one_query_position;
      a.rotary_dim = c.rotary_dim, a.positions = c.positions;
    }
    a.blocks = 2;
    return a;
  }

  bool fits(int b) const {
    const int end = c.lengths[b] + c.rows[b];
    if (c.lengths[b] < 0 || end > (c.paged ? c.columns : 1) * c.page_size) return false;
    return b != c.spoiled && (c.rotary_dim == 0 || end <= c.positions);
  }
  /// Row of `dim` elements `step` apart, turned to a position; below 0: as it is.
  std::vector<float> turned(const Bits* row, int dim, int step, int position) const {
    std::vector<float> x(static_cast<std::size_t>(dim)), y;
    for (int d = 0; d < dim; ++d) x[d] = widened(row[d * step]);
    y = x;
    const int half = c.rotary_dim / 2;
    for (int p = 0; p < half && position >= 0 && position < c.positions; ++p) {
      const int i = c.interleaved ? 2 * p : p, j = c.interleaved ? 2 * p + 1 : p + half;
      const float co = cos[position * half + p], si = sin[position * half + p];
      y[i] = x[i] * co - x[j] * si, y[j] = x[i] * si + x[j] * co;
    }
    return y;
  }
};

void expect(bool good, const char* name, const char* what) {
  if (good) return;
  std::printf("%-36s %s  FAILED\n", name, what);
  ++failures;
}

bool same(const std::vector<float>& truth, const Bits* got) {
  for (std::size_t d = 0; d < truth.size(); ++d) {
    if (std::fabs(truth[d] - widened(got[d])) > 0x1p-7F * std::fabs(truth[d]) + 1e-6F) return false;
  }
  return true;
}

void check(const Case& c) {
  Call call(c);
  const Args a = call.args();
  for (int block = 0; block < call.batch * a.blocks; ++block) {
    emulator::run_block(static_cast<unsigned>(block), append_rows::kThreads,
                        [&] { append_rows::kernel<append_rows::Config{}>(a); });
  }
  long long written = 0;
  for (int b = 0; b < call.batch; ++b) {
    const bool fits = call.fits(b);
    expect(call.skipped[b] == (fits ? 0 : 1), c.name, "skipped");
    expect(call.after[b] == c.lengths[b] + (fits ? c.rows[b] : 0), c.name, "new length");
    for (int i = 0; i < c.rows[b]; ++i) {
      const int row = call.offsets[b] + i, key = c.lengths[b] + i;
      for (int h = 0; h < kHeadsQ; ++h) {
        const std::size_t at = (static_cast<std::size_t>(row) * kHeadsQ + h) * c.dim;
        const int position = c.lengths[b] + (c.one_query_position ? 0 : i);
        expect(same(call.turned(&call.q[at], c.dim, 1, position), &call.rotated[at]), c.name, "Q");
      }
      if (!fits) continue;
      const int page = c.paged ? call.table[b * c.columns + key / c.page_size] : b;
      for (int h = 0; h < kHeads; ++h) {
        const int slot = (page * kHeads + h) * c.page_size + key % c.page_size;
        const std::size_t at = static_cast<std::size_t>(row) * kHeads + h;
        expect(same(call.turned(&call.k[at * c.dim * c.step], c.dim, c.step, key),
                    &call.k_cache[slot * c.dim]),
               c.name, "K");
        const bool copied = std::equal(&call.v[at * c.dim_v], &call.v[at * c.dim_v] + c.dim_v,
                                       &call.v_cache[slot * c.dim_v]);
        expect(copied, c.name, "V");
        ++written;
      }
    }
  }
  const auto untouched = [](const std::vector<Bits>& x, int dim) {
    long long rows = 0;
    for (std::size_t r = 0; r < x.size(); r += dim) {
      rows += std::all_of(&x[r], &x[r] + dim, [](Bits bits) { return bits == kOld; }) ? 1 : 0;
    }
    return rows;
  };
  const auto all = static_cast<long long>(call.pages) * c.page_size * kHeads;
  expect(untouched(call.k_cache, c.dim) == all - written, c.name, "other rows of K");
  expect(untouched(call.v_cache, c.dim_v) == all - written, c.name, "other rows of V");
  std::printf("%-36s %lld rows written\n", c.name, written);
}

}  // namespace

int main() {
  emulator::checks_races = true;
  check({.name = "pages", .lengths = {7, 0, 18}, .rows = {5, 5, 5}});
  check({.name = "packed, ragged", .lengths = {3, 0, 9}, .rows = {9, 0, 1}, .packed = true});
  check({.name = "packed, half-split",
         .lengths = {3, 11, 9},
         .rows = {9, 2, 1},
         .packed = true,
         .rotary_dim = 24});
  check({.name = "interleaved, part of the dim",
         .lengths = {7, 0, 15},
         .rows = {3, 3, 3},
         .interleaved = true,
         .float_tables = true,
         .rotary_dim = 10});
  check({.name = "contiguous, one query position",
         .lengths = {7, 0, 15},
         .rows = {3, 3, 3},
         .page_size = 18,
         .paged = false,
         .rotary_dim = 8,
         .one_query_position = true});
  check({.name = "odd dims, rows of stride 3",
         .lengths = {2, 6},
         .rows = {4, 4},
         .page_size = 5,
         .rotary_dim = 12,
         .dim = 13,
         .dim_v = 7,
         .step = 3});
  check({.name = "entries without room",
         .lengths = {20, 21, -1, 24, 3},
         .rows = {4, 4, 4, 4, 4},
         .rotary_dim = 8});
  check({.name = "a table without a page", .lengths = {6, 6, 6}, .rows = {9, 9, 9}, .spoiled = 1});
  check({.name = "positions behind the tables",
         .lengths = {6, 9, 5},
         .rows = {3, 3, 3},
         .rotary_dim = 8,
         .positions = 9});
  return failures == 0 ? 0 : 1;
}
