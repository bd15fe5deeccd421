/// Keys in pages on the emulator: fwd_sm80 with as many queries in each entry and with packed ones,
/// against the formulas in float64. Pages in any order, tables that hold no page behind a length,
/// pools that are NaN behind it, entries without keys or queries, rows behind the last sequence.
#include "cuda/kernels/fwd_sm80/kernel.cuh"
#include "cuda/kernels/rows/pack.cuh"
#include "flash_sm80_grids.h"

namespace {

/// K and V of entries of some lengths in pages of `size` rows, shuffled; behind a length the table
/// holds what is no page.
struct Pools {
  std::vector<int> table, lengths;
  std::vector<Bits> k, v;
  tile::View k_view, v_view;
  tile::Pages pages;
  int columns, next, size, heads, dim;

  Pools(const std::vector<int>& of, int rows_of_page, const Shape& s)
      : lengths(of), size(rows_of_page), heads(s.heads_k), dim(s.dim) {
    const int most = *std::max_element(lengths.begin(), lengths.end());
    columns = (most + size - 1) / size + 1;
    next = static_cast<int>(lengths.size()) * columns;  // from the last to the first
    table.assign(lengths.size() * static_cast<std::size_t>(columns), 1 << 30);
    const auto elems = static_cast<std::size_t>(next + 1) * heads * size * dim;
    k.assign(elems, kPoison), v.assign(elems, kPoison);
    const long long slots = static_cast<long long>(size) * dim;
    k_view = {k.data(), heads * slots, slots, dim}, v_view = {v.data(), heads * slots, slots, dim};
    int shift = 29;
    while ((1 << (shift - 29)) < size) ++shift;
    const auto multiplier = static_cast<unsigned>(((1ULL << shift) + size - 1) / size);
    pages = {table.data(), columns, 1, size, multiplier, shift};
  }

  template <Element kElement>
  void fill(int b, const Truth& t) {
    for (int j = 0; j < lengths[b]; ++j) {
      int& page = table[b * columns + j / size];
      if (j % size == 0) page = next--;
      for (int n = 0; n < heads * dim; ++n) {
        const int h = n / dim, d = n % dim, to = ((page * heads + h) * size + j % size) * dim + d;
        k[to] = narrow<kElement>(t.k[(h * lengths[b] + j) * dim + d]);
        v[to] = narrow<kElement>(t.v[(h * lengths[b] + j) * dim + d]);
      }
    }
  }
};

/// As many queries in each entry.
template <fwd_sm80::Config kConfig>
void check_pages(const char* name, const Shape& s, const std::vector<int>& lengths, int size) {
  constexpr Element kElement = kConfig.form.element;
  const int entries = static_cast<int>(lengths.size()), dim = s.dim, heads = s.heads_q;
  Pools pools(lengths, size, s);
  std::vector<Bits> q, o(static_cast<std::size_t>(entries * heads * s.seq_q * dim), kPoison);
  std::vector<float> lse(static_cast<std::size_t>(entries * heads * s.seq_q), kNan), got;
  std::vector<double> o_truth, lse_truth;
  for (int b = 0; b < entries; ++b) {
    Shape one = s;
    one.seq_k = lengths[b], one.first_pair = b * heads;
    const Truth t = make_truth(one, [](float x) { return widened<kElement>(narrow<kElement>(x)); });
    for (const float x : t.q) q.push_back(narrow<kElement>(x));
    o_truth.insert(o_truth.end(), t.o.begin(), t.o.end());
    lse_truth.insert(lse_truth.end(), t.lse.begin(), t.lse.end());
    pools.fill<kElement>(b, t);
  }
  fwd_sm80::RaggedArgs ragged;
  fwd_sm80::Args& a = ragged.args;
  fill_shape(a, s);
  const long long rows = static_cast<long long>(s.seq_q) * dim;
  a.q = {q.data(), heads * rows, rows, dim};
  a.k = pools.k_view, a.v = pools.v_view;
  a.cols_q = a.cols_k = a.cols_v = dim;
  a.o = {o.data(), heads * rows, rows, dim, 1};
  a.lse = lse.data(), a.lse_b = heads * s.seq_q, a.lse_h = s.seq_q, a.lse_s = 1;
  a.seq_q = s.seq_q, a.seq_k = pools.columns * size;
  a.key_lengths = lengths.data(), a.key_lengths_b = 1;
  ragged.pages = pools.pages;
  a.order = order((s.seq_q + kConfig.shape.block_m - 1) / kConfig.shape.block_m, entries * heads);
  run_grid(static_cast<long long>(a.order.blocks) * a.order.heads, kConfig.shape.warps * 32,
           fwd_sm80::shared, [&] { fwd_sm80::kernel<kConfig>(ragged); });
  for (const Bits x : o) got.push_back(widened<kElement>(x));
  expect(name, "O", error(o_truth, got), kBf16);
  expect(name, "LSE", lse_error(lse_truth, lse), 1e-5);
}

/// K or V out of the pages, side by side, as pack_rows makes them for rows that cannot be read in
/// place.
std::vector<Bits> gathered(const Pools& pools, const tile::View& from, int width, tile::View& to) {
  const auto entries = static_cast<int>(pools.lengths.size());
  const int rows = pools.columns * pools.size;
  std::vector<Bits> data(static_cast<std::size_t>(entries * pools.heads * rows * width), kPoison);
  pack_rows::RaggedArgs ragged;
  pack_rows::Args& a = ragged.args;
  ragged.paged[0] = true;
  ragged.pages = pools.pages;
  ragged.key_lengths = pools.lengths.data(), ragged.key_lengths_b = 1;
  pack_rows::Source& s = a.sources[a.count++];
  s.from = {from.data, from.stride_b, from.stride_h, from.stride_s, 1};
  s.to = data.data();
  s.heads = pools.heads, s.rows = rows, s.cols = pools.dim, s.padded = width;
  s.blocks = (rows + tile::kScaleRows - 1) / tile::kScaleRows;
  constexpr pack_rows::Config kConfig = {.from_float = false, .planes = 1, .ragged = true};
  run_grid(static_cast<long long>(entries) * s.heads * s.blocks, pack_rows::kThreads,
           fwd_sm80::shared, [&] { pack_rows::kernel<kConfig>(ragged); });
  const long long head = static_cast<long long>(rows) * width;
  to = {data.data(), pools.heads * head, head, width};
  return data;
}

/// Packed queries, with kBehind rows behind the last of them.
template <fwd_sm80::Config kConfig>
void check_packed(const char* name, const Shape& s, const std::vector<int>& queries,
                  const std::vector<int>& lengths, int size) {
  constexpr Element kElement = kConfig.form.element;
  constexpr int kBehind = 3;
  const int count = static_cast<int>(lengths.size()), dim = s.dim, heads = s.heads_q;
  std::vector<int> offsets = {0};
  for (const int length : queries) offsets.push_back(offsets.back() + length);
  const int total = offsets.back() + kBehind;
  Pools pools(lengths, size, s);
  const auto elems = static_cast<std::size_t>(heads) * total * dim;
  std::vector<Bits> q(elems, kPoison), o(elems, kPoison);
  std::vector<float> lse(static_cast<std::size_t>(heads * total), kNan), got;
  std::vector<double> o_truth(elems, 0.0);
  std::vector<double> lse_truth(lse.size(), -std::numeric_limits<double>::infinity());
  for (int b = 0; b < count; ++b) {
    Shape one = s;
    one.seq_q = queries[b], one.seq_k = lengths[b], one.first_pair = b * heads;
    const Truth t = make_truth(one, [](float x) { return widened<kElement>(narrow<kElement>(x)); });
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < queries[b]; ++i) {
        const int to = h * total + offsets[b] + i, from = h * queries[b] + i;
        lse_truth[to] = t.lse[from];
        for (int d = 0; d < dim; ++d) {
          q[to * dim + d] = narrow<kElement>(t.q[from * dim + d]);
          o_truth[to * dim + d] = t.o[from * dim + d];
        }
      }
    }
    pools.fill<kElement>(b, t);
  }
  fwd_sm80::RaggedArgs ragged;
  fwd_sm80::Args& a = ragged.args;
  fill_shape(a, s);
  a.q = {q.data(), 0, static_cast<long long>(total) * dim, dim};
  a.k = pools.k_view, a.v = pools.v_view;
  a.cols_q = a.cols_k = a.cols_v = dim;
  std::vector<Bits> k, v;
  if constexpr (!kConfig.paged()) {
    k = gathered(pools, pools.k_view, kConfig.head_dim, a.k);
    v = gathered(pools, pools.v_view, kConfig.head_dim_v, a.v);
    a.cols_k = a.cols_v = kConfig.head_dim;
  }
  a.o = {o.data(), 0, static_cast<long long>(total) * dim, dim, 1};
  a.lse = lse.data(), a.lse_h = total, a.lse_s = 1;
  a.seq_q = *std::max_element(queries.begin(), queries.end()), a.seq_k = pools.columns * size;
  a.key_lengths = lengths.data(), a.key_lengths_b = 1;
  ragged.pages = pools.pages;
  ragged.queries = {offsets.data(), 1, false, count, total};
  a.order = order(total / kConfig.shape.block_m + count + 1, heads);
  run_grid(static_cast<long long>(a.order.blocks) * a.order.heads, kConfig.shape.warps * 32,
           fwd_sm80::shared, [&] { fwd_sm80::kernel<kConfig>(ragged); });
  for (const Bits x : o) got.push_back(widened<kElement>(x));
  expect(name, "O", error(o_truth, got), kBf16);
  expect(name, "LSE", lse_error(lse_truth, lse), 1e-5);
}

}  // namespace

int main() {
  emulator::checks_races = true;
  using Forward = fwd_sm80::Config;
  constexpr Forward kPages = {
      .shape = {.q_in_registers = true}, .positional = true, .keys = fwd_sm80::Keys::pages};
  constexpr Forward kPagesWide = {.head_dim = 96,
                                  .head_dim_v = 96,
                                  .shape = {.block_m = 64, .stages = 1},
                                  .keys = fwd_sm80::Keys::pages};
  for (const int size : {1, 7, 16, 64, 200}) {
    check_pages<kPages>("pages", {.seq_q = 5, .causal = true}, {77, 0, 130}, size);
  }
  check_pages<kPagesWide>("pages, dim 72", {.seq_q = 70, .dim = 72}, {64, 129}, 16);

  constexpr Forward kPacked = {.shape = {.block_m = 64, .q_in_registers = true},
                               .positional = true,
                               .packed = true,
                               .keys = fwd_sm80::Keys::pages};
  constexpr Forward kGathered = {.shape = {.block_m = 64}, .positional = true, .packed = true};
  for (const int size : {1, 7, 64}) {
    check_packed<kPacked>("packed over pages", {.causal = true}, {5, 0, 70, 1, 2},
                          {77, 12, 130, 0, 64}, size);
  }
  check_packed<kGathered>("packed over copied pages", {.causal = true}, {5, 70, 1}, {77, 130, 9},
                          16);
  return failures == 0 ? 0 : 1;
}
