/// tile_lists on the emulator: the tiles of many mask functions and bool masks beside position and
/// lengths, against every pair; the order of rows.
#include "emulator.h"
//
#include <algorithm>
#include <numeric>
#include <random>

#include "bool_masks.h"
#include "cuda/tile/expression_ranges.cuh"
#include "expression_texts.h"
#include "interpreted.h"
#include "mask_maps.h"

namespace {

int failures = 0;

struct Shape {
  const char* name;
  std::int64_t batch, heads, seq_q, seq_k, left, right;
  std::vector<int> lengths;
  int tile_q, tile_k = 128;
  std::vector<int> queries = {};  ///< packed sequences, of keys `lengths`
};

const Shape kShapes[] = {
    {"square", 2, 2, 512, 512, tile::Positions::kFar, tile::Positions::kFar, {}, 128},
    {"a window, more keys", 1, 3, 530, 1000, 300, 77, {}, 64},
    {"causal, lengths", 3, 1, 600, 700, tile::Positions::kFar, 0, {700, 0, 333}, 128},
    {"packed, causal",
     3,
     1,
     200,
     300,
     tile::Positions::kFar,
     0,
     {300, 40, 129},
     64,
     16,
     {200, 0, 70}},
};

/// A shape's problem without a mask, and the tensors of its lengths.
struct Shaped {
  Problem problem;
  std::vector<int> lengths, cu_q, cu_k;

  explicit Shaped(const Shape& shape) : lengths(shape.lengths) {
    Problem& p = problem;
    p.device = {DeviceType::cuda, 0};
    p.batch = shape.batch;
    p.heads_q = p.heads_k = shape.heads;
    p.seq_q = p.total_q = shape.seq_q;
    p.seq_k = p.total_k = shape.seq_k;
    p.left = std::min<std::int64_t>(p.left, shape.left);
    p.right = std::min<std::int64_t>(p.right, shape.right);
    const auto before = [](const std::vector<int>& of) {
      std::vector<int> offsets = {0};
      for (const int length : of) offsets.push_back(offsets.back() + length);
      return offsets;
    };
    cu_q = before(shape.queries), cu_k = before(lengths);
    p.packed = !shape.queries.empty();
    if (p.packed) {
      p.cu_seqlens_q = Tensor::contiguous(cu_q.data(), DType::int32, {p.batch + 1}, p.device);
      p.cu_seqlens_k = Tensor::contiguous(cu_k.data(), DType::int32, {p.batch + 1}, p.device);
      p.total_q = cu_q.back();
      p.total_k = cu_k.back();
    } else if (!lengths.empty()) {
      p.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {p.batch}, p.device);
    }
  }
};

/// Rows of tiles against every pair. `shows(b, h, i, j, queries, keys)`: the mask alone. `joint`:
/// a tile is seen where a pair is that mask and position show, else where either shows one.
/// `by_keys`: the rows are of keys. `tells`: they tell what position and lengths alone cut.
template <class Shows>
void compare(const char* name, const Shape& shape, const Problem& p, const tile::TileLists& lists,
             bool by_keys, bool joint, bool tells, Shows shows) {
  int wrong = 0, tiles[4] = {};
  const std::int64_t tile_k = shape.tile_k, tile_q = shape.tile_q;
  for (int b = 0; b < p.batch; ++b) {
    const std::int64_t keys = shape.lengths.empty() ? p.seq_k : shape.lengths[b];
    const std::int64_t queries = p.packed ? shape.queries[b] : p.seq_q;
    for (int h = 0; h < p.heads_q; ++h) {
      const int list = b * lists.list_b + h * lists.list_h;
      for (int row = 0; row < lists.rows; ++row) {
        const std::int64_t at = static_cast<std::int64_t>(list) * lists.rows + row;
        int counts[2] = {};
        for (int n = 0; n < 32 * lists.words; ++n) {
          const std::int64_t r = by_keys ? n : row, c = by_keys ? row : n;
          bool both = false, by_mask = false, placed = false, hidden = (c + 1) * tile_k > keys;
          bool hides = false;  // what position shows
          for (std::int64_t i = r * tile_q; i < std::min((r + 1) * tile_q, queries); ++i) {
            const KeyRange range = p.visible_keys({0, queries, 0, keys}, i);
            for (std::int64_t j = c * tile_k; j < std::min((c + 1) * tile_k, keys); ++j) {
              const bool in = j >= range.begin && j < range.end, shown = shows(b, h, i, j);
              both |= in && shown;
              by_mask |= shown;
              placed |= in;
              hidden |= !in || !shown;
              hides |= in && !shown;
            }
          }
          const bool seen = joint ? both : by_mask && placed;
          const unsigned* bits = lists.bits + at * 2 * lists.words + n / 32;
          const bool whole = (*bits >> (n % 32) & 1U) != 0;
          const bool cut = (bits[lists.words] >> (n % 32) & 1U) != 0;
          const bool alone = tells && seen && hidden && !hides;
          if (whole != (seen && (!hidden || alone)) || cut != (seen && hidden)) ++wrong;
          ++tiles[cut ? (whole ? 1 : 2) : whole ? 0 : 3];
          counts[0] += whole && !cut;
          counts[1] += cut;
        }
        if (counts[0] != lists.counts[2 * at] || counts[1] != lists.counts[2 * at + 1]) ++wrong;
      }
    }
  }
  std::printf("%s %s: %s%s: whole %d, cut by position alone %d, cut %d, not seen %d\n",
              wrong == 0 ? "ok" : "FAILED", name, shape.name, by_keys ? ", by keys" : "", tiles[0],
              tiles[1], tiles[2], tiles[3]);
  failures += wrong;
}

/// The bits of cut tiles against every pair.
template <class Shows>
void compare_bits(const char* name, const Shape& shape, const Problem& p,
                  const tile::TileLists& lists, Shows shows) {
  int wrong = 0, tiles = 0;
  for (int b = 0; b < p.batch; ++b) {
    const std::int64_t keys = shape.lengths.empty() ? p.seq_k : shape.lengths[b];
    for (int h = 0; h < p.heads_q; ++h) {
      for (int row = 0; row < lists.rows; ++row) {
        const std::int64_t at =
            static_cast<std::int64_t>(b * lists.list_b + h * lists.list_h) * lists.rows + row;
        int rank = 0;
        for (int c = 0; c < 32 * lists.words && rank < lists.shown_most; ++c) {
          const unsigned* cut = lists.bits + (2 * at + 1) * lists.words;
          if ((cut[c / 32] >> (c % 32) & 1U) == 0) continue;
          const unsigned* words = lists.shown + (at * lists.shown_most + rank) * (4 * shape.tile_q);
          ++rank, ++tiles;
          for (int r = 0; r < shape.tile_q && row * shape.tile_q + r < p.seq_q; ++r) {
            const std::int64_t i = row * shape.tile_q + r;
            const KeyRange range = p.visible_keys({0, p.seq_q, 0, keys}, i);
            for (int n = 0; n < 128; ++n) {
              const std::int64_t j = 128 * c + n;
              const bool seen = j < keys && j >= range.begin && j < range.end && shows(b, h, i, j);
              const unsigned word = words[4 * r + n % 8 / 2];
              if ((word >> (n / 8 * 2 + n % 2) & 1U) != (seen ? 1U : 0U)) ++wrong;
            }
          }
        }
      }
    }
  }
  std::printf("%s %s: %s: bits of %d tiles\n", wrong == 0 ? "ok" : "FAILED", name, shape.name,
              tiles);
  failures += wrong;
}

template <int kMask>
void check(const Shape& shape, bool tells) {
  const samples::Interpreted of({"", samples::kMasks[kMask]});
  Shaped shaped(shape);
  Problem& p = shaped.problem;
  p.mask_function = of.problem.mask_function;
  constexpr TileSize kNarrow = {64, 16};
  const cuda::WantedLists wanted = {.tile_q = shape.tile_q,
                                    .tile_k = shape.tile_k,
                                    .kind = tile::Lists::whole,
                                    .ordered = !tells,
                                    .by_keys = tells,
                                    .shows_cut = tells || shape.tile_k != 128 ? 0 : 3,
                                    .tells_placed = tells};
  const MadeLists made(p, wanted,
                       map_of<samples::kMasksFrom + kMask, kNarrow>(cuda::captures_of(p)));
  const auto visible = [&](int b, int h, std::int64_t i, std::int64_t j) {
    const std::int64_t keys = shape.lengths.empty() ? p.seq_k : shape.lengths[b];
    const std::int64_t queries = p.packed ? shape.queries[b] : p.seq_q;
    return of.is_visible({b, h, i, j, queries, keys, 0.0});
  };
  const char* const name = samples::kMasks[kMask];
  compare(name, shape, p, made.of_queries, false, true, tells, visible);
  if (tells) compare(name, shape, p, made.of_keys, true, true, tells, visible);
  if (made.of_queries.shown_most > 0) compare_bits(name, shape, p, made.of_queries, visible);
}

/// Where a kernel before has taken the work, those of a map leave all as it is.
void check_taken(int taken) {
  const samples::Interpreted of({"", samples::kMasks[0]});
  Shaped shaped(kShapes[0]);
  Problem& p = shaped.problem;
  p.mask_function = of.problem.mask_function;
  const cuda::WantedLists wanted = {.kind = tile::Lists::whole, .ordered = true, .shows_cut = 3};
  const MadeLists made(p, wanted, map_of<samples::kMasksFrom>(cuda::captures_of(p)), {}, &taken);
  const bool untouched = std::all_of(made.workspace.begin(), made.workspace.end(),
                                     [](unsigned char byte) { return byte == 0xff; });
  if (untouched == (taken != 0)) return;
  std::printf("FAILED a map where %d row blocks are taken\n", taken);
  ++failures;
}

/// A bool mask, its lines queries or keys.
void check_bools(const char* name, const Shape& shape, const Shows& shows, bool by_keys) {
  Shaped shaped(shape);
  Problem& p = shaped.problem;
  const auto int_of = [](std::int64_t x) { return static_cast<int>(x); };
  BoolMask mask(shows, p.packed ? 1 : int_of(p.batch), int_of(p.heads_q), int_of(p.total_q),
                int_of(p.seq_k));
  mask.give(p, int_of(p.batch), int_of(p.heads_q), int_of(p.total_q), int_of(p.seq_k));
  const MadeBits bits(p, by_keys ? shape.tile_q : shape.tile_k, by_keys);
  const MadeLists made(p,
                       {.tile_q = shape.tile_q,
                        .tile_k = shape.tile_k,
                        .kind = tile::Lists::whole,
                        .by_keys = by_keys,
                        .by_both = by_keys,
                        .narrowed = true},
                       {}, bits.bits);
  const auto visible = [&](int b, int h, std::int64_t i, std::int64_t j) {
    return mask.has(b, h, i + (p.packed ? shaped.cu_q[b] : 0), j);
  };
  compare(name, shape, p, by_keys ? made.of_keys : made.of_queries, by_keys, false, false, visible);
  if (by_keys) compare("turned round", shape, p, made.of_queries, false, false, false, visible);
}

template <int kMask = 0>
void check_all() {
  if constexpr (kMask < static_cast<int>(std::size(samples::kMasks))) {
    for (const Shape& shape : kShapes) {
      check<kMask>(shape, false);
      check<kMask>(shape, true);
    }
    check_all<kMask + 1>();
  }
}

/// The order of rows of `lists` lists, most of which have few tiles, against a stable sort by
/// class.
template <tile_lists::Config kConfig>
void check_order(int lists, int rows, int rows_of_tile) {
  std::mt19937 random(7);
  std::vector<int> counts(2UL * lists * rows);
  for (int& count : counts) {
    const unsigned kind = random() % 16;
    count = static_cast<int>(kind == 0  ? 300 + random() % 50
                             : kind < 3 ? 90 + random() % 60
                                        : random() % 60);
  }
  tile_lists::OrderArgs args;
  args.counts = counts.data();
  args.rows = rows;
  args.rows_of_tile = rows_of_tile;
  args.tiles = (rows + rows_of_tile - 1) / rows_of_tile;
  args.entries = lists * args.tiles;
  std::vector<int> order(args.entries, -1), classes(tile::kListClasses, -1);
  args.order = order.data();
  args.classes = classes.data();
  emulator::shared_base = tile_lists::memory;
  emulator::run_block(0, tile_lists::kOrderThreads, [&] { tile_lists::order<kConfig>(args); });

  std::vector<long> tiles(args.entries, 0);
  for (int at = 0; at < lists * rows; ++at)
    tiles[at / rows * args.tiles + at % rows / rows_of_tile] += counts[2 * at] + counts[2 * at + 1];
  const long total = std::accumulate(tiles.begin(), tiles.end(), 0L);
  std::vector<int> expected, of_classes;
  for (int c = 0; c < tile::kListClasses; ++c) {
    const std::size_t before = expected.size();
    for (int i = 0; i < args.entries; ++i) {
      const long n = tiles[i] * args.entries;
      if ((n >= 3 * total ? 0 : 2 * n >= 3 * total ? 1 : 2) == c) expected.push_back(i);
    }
    of_classes.push_back(static_cast<int>(expected.size() - before));
  }
  if (order == expected && classes == of_classes) return;
  std::printf("FAILED order of %d lists of %d rows, %d a tile\n", lists, rows, rows_of_tile);
  ++failures;
}

}  // namespace

int main() {
  check_order<tile_lists::Config{}>(1, 1, 1);
  check_order<tile_lists::Config{}>(3, 21, 1);
  check_order<tile_lists::Config{}>(2, 4099, 1);
  check_order<tile_lists::Config{.parts = true}>(3, 130, 4);
  check_order<tile_lists::Config{.parts = true}>(2, 1500, 2);
  check_all();
  check_taken(0);
  check_taken(45);
  const Shows squares = {.density = 0.5, .by_batch = true, .by_head = true, .square = 128};
  const Shows keys = {.density = 1.0, .by_batch = true, .by_query = false, .square = 128};
  const Shows queries = {.density = 0.9, .by_key = false};
  const Shape window = {"a window, more keys", 1, 3, 530, 1000, 300, 77, {}, 64};
  Shape packed = kShapes[3];
  packed.tile_k = 64;
  check_bools("squares", kShapes[0], squares, false);
  check_bools("squares", kShapes[0], squares, true);
  check_bools("squares", window, squares, true);
  check_bools("keys", kShapes[2], keys, false);
  check_bools("keys", kShapes[2], keys, true);
  check_bools("queries", kShapes[0], queries, false);
  check_bools("squares", packed, {.density = 0.02, .by_head = true, .square = 64}, false);
  return failures == 0 ? 0 : 1;
}
