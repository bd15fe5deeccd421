/// mask_map on the emulator: the tiles of many masks beside position and lengths, against every
/// pair.
#include "emulator.h"
//
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

template <int kMask>
void check(const Shape& shape) {
  const samples::Interpreted of({"", samples::kMasks[kMask]});
  Problem p;
  p.device = {DeviceType::cuda, 0};
  p.batch = shape.batch;
  p.heads_q = p.heads_k = shape.heads;
  p.seq_q = shape.seq_q;
  p.seq_k = shape.seq_k;
  p.left = std::min<std::int64_t>(p.left, shape.left);
  p.right = std::min<std::int64_t>(p.right, shape.right);
  std::vector<int> lengths = shape.lengths;
  const auto before = [](const std::vector<int>& of) {
    std::vector<int> offsets = {0};
    for (const int length : of) offsets.push_back(offsets.back() + length);
    return offsets;
  };
  std::vector<int> cu_q = before(shape.queries), cu_k = before(lengths);
  p.packed = !shape.queries.empty();
  if (p.packed) {
    p.cu_seqlens_q = Tensor::contiguous(cu_q.data(), DType::int32, {p.batch + 1}, p.device);
    p.cu_seqlens_k = Tensor::contiguous(cu_k.data(), DType::int32, {p.batch + 1}, p.device);
    p.total_q = cu_q.back();
    p.total_k = cu_k.back();
  } else if (!lengths.empty()) {
    p.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {p.batch}, p.device);
  }
  p.mask_function = of.problem.mask_function;
  constexpr TileSize kNarrow = {64, 16};
  const MadeLists made(p, shape.tile_q, shape.tile_k, tile::Lists::whole, 1,
                       map_of<samples::kMasksFrom + kMask, kNarrow>(cuda::captures_of(p)));
  int wrong = 0, tiles[3] = {};
  for (int b = 0; b < p.batch; ++b) {
    const std::int64_t keys = lengths.empty() ? p.seq_k : lengths[b];
    const std::int64_t queries = p.packed ? shape.queries[b] : p.seq_q, tile_k = shape.tile_k;
    for (int h = 0; h < p.heads_q; ++h) {
      const int list = b * made.lists.list_b + h * made.lists.list_h;
      for (int row = 0; row < made.lists.rows; ++row) {
        const std::int64_t at = static_cast<std::int64_t>(list) * made.lists.rows + row;
        int counts[2] = {};
        for (int c = 0; c < 32 * made.lists.words; ++c) {
          bool seen = false, hidden = (c + 1) * tile_k > keys;
          for (std::int64_t i = row * shape.tile_q;
               i < std::min<std::int64_t>((row + 1) * shape.tile_q, queries); ++i) {
            const KeyRange range = p.visible_keys({0, queries, 0, keys}, i);
            for (std::int64_t j = c * tile_k; j < std::min((c + 1) * tile_k, keys); ++j) {
              const bool shows = j >= range.begin && j < range.end &&
                                 of.is_visible({b, h, i, j, queries, keys, 0.0});
              (shows ? seen : hidden) = true;
            }
          }
          const unsigned* bits = made.lists.bits + at * 2 * made.lists.words + c / 32;
          const bool whole = (*bits >> (c % 32) & 1U) != 0;
          const bool cut = (bits[made.lists.words] >> (c % 32) & 1U) != 0;
          if (whole != (seen && !hidden) || cut != (seen && hidden)) ++wrong;
          ++tiles[whole ? 0 : cut ? 1 : 2];
          counts[0] += whole;
          counts[1] += cut;
        }
        if (counts[0] != made.lists.counts[2 * at] || counts[1] != made.lists.counts[2 * at + 1])
          ++wrong;
      }
    }
  }
  std::printf("%s %s: %s: whole %d, cut %d, not seen %d\n", wrong == 0 ? "ok" : "FAILED",
              samples::kMasks[kMask], shape.name, tiles[0], tiles[1], tiles[2]);
  failures += wrong;
}

template <int kMask = 0>
void check_all() {
  if constexpr (kMask < static_cast<int>(std::size(samples::kMasks))) {
    for (const Shape& shape : kShapes) check<kMask>(shape);
    check_all<kMask + 1>();
  }
}

}  // namespace

int main() {
  check_all();
  return failures == 0 ? 0 : 1;
}
