/// tile_lists: from a mask function to rows of tiles, each a bit: seen whole, seen through the
/// mask, or not at all. Rows may tell what position and lengths alone cut. See
/// tile_lists/README.md.
///
/// One block takes one row of tiles of one list, each warp one tile after another. What a tile's
/// rows and columns have is known by its smallest and largest value; what the mask can be between
/// these often decides. Where it does not the warp asks pair by pair, until one is seen and one
/// hidden.
#pragma once

#include "cuda/kernels/tile_lists/row.cuh"
#include "cuda/tile/expression_ranges.cuh"

namespace tilewise::tile_lists {

using namespace tile;

template <Config kConfig>
struct FunctionRow {
  using Function = MaskFunction<kConfig.expressions.mask>;
  using Ranges = MaskRanges<kConfig.expressions.mask>;
  static constexpr int kColumns = (kConfig.tile_k + 31) / 32;  ///< of a lane
  const Args& args;
  const Captures& captures;
  const int lane, row;
  int first_query, last_query;
  Lengths of;
  Place place;
  typename Function::Uniform uniform;
  typename Ranges::Row rows;

  __forceinline__ FunctionRow(const Args& a, const Captures& t, const RowIndex& at, int lane_)
      : args(a), captures(t), lane(lane_), row(at.row) {
    const int batch = at.list / args.list_heads;
    of = lengths_of(args, batch);
    first_query = row * kConfig.tile_q;
    last_query = min(first_query + kConfig.tile_q, of.queries) - 1;
    // Rows behind a packed sequence see nothing.
    if (first_query > last_query) of.keys = 0;
    place = {batch, at.list - batch * args.list_heads, of.queries, of.keys};
    if (of.keys == 0) return;  // functions are asked for pairs alone
    uniform = Function::uniform(place, captures);
    rows = Ranges::Row::of(row_part(lane));
#pragma unroll
    for (int more = 32; more < kConfig.tile_q; more += 32)
      rows.join(Ranges::Row::of(row_part(more + lane)));
    rows.gather(lane);
  }

  /// Beyond the last query the last one counts again.
  __forceinline__ int query_at(int row) const { return min(first_query + row, last_query); }
  __forceinline__ typename Function::Row row_part(int row) const {
    return Function::row(place, uniform, query_at(row), captures);
  }

  /// Whether tile `c` is seen at all, and whether all its pairs are; `shows`: of those that
  /// position and lengths show the function hides none. For all lanes.
  __forceinline__ void look_at(int c, bool& seen, bool& whole, bool& shows) const {
    const int first_key = c * kConfig.tile_k, end_key = first_key + kConfig.tile_k;
    seen = whole = shows = false;
    if (first_key >= of.keys || last_query + of.high <= first_key ||
        first_query + of.low >= min(end_key, of.keys))
      return;
    const int last_key = min(end_key, of.keys) - 1;
    const bool uncut =
        first_query + of.high > last_key && last_query + of.low <= first_key && end_key <= of.keys;
    typename Function::Column columns[kColumns];
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      columns[n] = Function::column(place, uniform, key_at(first_key, n, last_key), captures);
    typename Ranges::Column of_columns = Ranges::Column::of(columns[0]);
#pragma unroll
    for (int n = 1; n < kColumns; ++n) of_columns.join(Ranges::Column::of(columns[n]));
    of_columns.gather(lane);
    const auto can_be = Ranges::over(place, uniform, rows, of_columns, {first_query, last_query},
                                     {first_key, last_key}, captures);
    if (can_be.never()) return;
    seen = shows = can_be.always();
    if (!seen)
      ask_pairs(columns, first_key, last_key, !kConfig.tells_placed && !uncut, seen, shows);
    whole = shows && uncut;
  }

 private:
  __forceinline__ int key_at(int first_key, int n, int last_key) const {
    return min(first_key + 32 * n + lane, last_key);
  }

  /// `one_tells`: nothing but one that is seen is looked for.
  __forceinline__ void ask_pairs(const typename Function::Column (&columns)[kColumns],
                                 int first_key, int last_key, bool one_tells, bool& seen,
                                 bool& shows) const {
    // Rows that lie apart first: what differs in a tile most often differs between them.
    constexpr int kApart = 37;
    bool some_seen = false, some_hidden = false;
#pragma unroll 1
    for (int n = 0, row = 0; n < kConfig.tile_q; ++n, row = (row + kApart) % kConfig.tile_q) {
      const int i = query_at(row);
      const typename Function::Row part = row_part(row);
      bool sees = false, hides = false;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const int j = key_at(first_key, column, last_key), d = i - j;
        const typename Function::Diagonal diagonal =
            Function::diagonal(place, uniform, d, static_cast<float>(d), captures);
        const bool visible =
            Function::value(place, uniform, part, columns[column], diagonal, i, j, captures);
        const bool placed = i + of.low <= j && j < i + of.high;
        sees |= visible && placed;
        hides |= !visible && placed;
      }
      some_seen |= __any_sync(~0U, sees);
      some_hidden |= __any_sync(~0U, hides);
      if (some_seen && (some_hidden || one_tells)) break;
    }
    seen = some_seen;
    shows = !some_hidden;
  }
};

template <Config kConfig>
__forceinline__ void from_function(const Expressed<FunctionArgs>& expressed) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const FunctionArgs& args = expressed.args;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const RowIndex index = RowIndex::of_block(args.rows);
  unsigned* counts = reinterpret_cast<unsigned*>(memory);
  unsigned* row_bits = counts + kCountWords;
  let_next_start();
  if (is_taken(args.taken)) return;
  for (int i = thread; i < kCountWords + 2 * args.words; i += kFunctionThreads) counts[i] = 0;
  __syncthreads();  // all bits are 0
  const FunctionRow<kConfig> row(args, expressed.captures, index, lane);
  for (int c = thread / 32; c < 32 * args.words; c += kFunctionThreads / 32) {
    bool seen, whole, shows;
    row.look_at(c, seen, whole, shows);
    if (!seen || lane != 0) continue;
    atomicOr(row_bits + (whole ? 0 : args.words) + c / 32, 1U << (c % 32));
    if (kConfig.tells_placed && shows && !whole) atomicOr(row_bits + c / 32, 1U << (c % 32));
    atomicAdd(counts + (whole ? 0 : 1), 1U);
  }
  __syncthreads();  // all tiles have been looked at
  const i64 at = index.at(args.rows);
  for (int i = thread; i < 2 * args.words; i += kFunctionThreads)
    args.bits[at * 2 * args.words + i] = row_bits[i];
  store_counts(args, at, counts);
}

}  // namespace tilewise::tile_lists
