/// Block lists of the emulated cases: random ones, what they make visible, and the kernels of
/// tile_lists run on them.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "cuda/kernels/tile_lists/from_list.cuh"
#include "cuda/kernels/tile_lists/from_mask.cuh"
#include "cuda/kernels/tile_lists/maker.h"
#include "cuda/kernels/tile_lists/order.cuh"
#include "cuda/kernels/tile_lists/transpose.cuh"

namespace tilewise::tile_lists {
alignas(1024) unsigned char memory[64 * 1024];
}

namespace {

using namespace tilewise;

/// What a case says of its list. Row 1 of blocks lists nothing; nobody lists block 2 of keys.
struct Blocks {
  int q = 0, k = 0;  ///< sizes, 0: no list
  double density = 0.5;
  bool by_batch = false, by_head = false;
  bool full = false;     ///< flags where nothing else hides a pair
  int dense_row = -1;    ///< of blocks, which lists every block
  bool mangled = false;  ///< out of order, repeated, and with indices of no block
};

struct BlockLists {
  int batches = 1, heads = 1, rows = 0, columns = 0;
  std::vector<int> offsets, index;
  std::vector<unsigned char> full;
  std::vector<bool> listed;  ///< (batches, heads, rows, columns)

  bool has(const Blocks& blocks, int b, int h, long i, long j) const {
    if (blocks.q == 0) return true;
    const long list = b % batches * heads + h % heads;
    return listed[(list * rows + i / blocks.q) * columns + j / blocks.k];
  }
  /// `seen(b, i, j)`: whether the other masks show a pair.
  BlockLists(const Blocks& blocks, int batch, int heads_q, int seq_q, int seq_k,
             const std::function<bool(int, int, int)>& seen) {
    if (blocks.q == 0) return;
    std::mt19937 random(5);
    batches = blocks.by_batch ? batch : 1;
    heads = blocks.by_head ? heads_q : 1;
    rows = (seq_q + blocks.q - 1) / blocks.q;
    columns = (seq_k + blocks.k - 1) / blocks.k;
    std::bernoulli_distribution draw(blocks.density);
    const auto is_full = [&](int of_batch, int r, int c) {
      for (int b = 0; b < batch; ++b) {
        if (batches > 1 && b != of_batch) continue;
        for (int i = r * blocks.q; i < std::min((r + 1) * blocks.q, seq_q); ++i) {
          for (int j = c * blocks.k; j < std::min((c + 1) * blocks.k, seq_k); ++j) {
            if (!seen(b, i, j)) return false;
          }
        }
      }
      return true;
    };
    for (int list = 0; list < batches * heads; ++list) {
      for (int r = 0; r < rows; ++r) {
        offsets.push_back(static_cast<int>(index.size()));
        for (int c = 0; c < columns; ++c) {
          const bool drawn = draw(random) && (r != 1 || rows < 3) && (c != 2 || columns < 4);
          const bool here = drawn || r == blocks.dense_row;
          listed.push_back(here);
          if (here) index.push_back(c);
        }
        const auto begin = index.begin() + offsets.back();
        if (blocks.mangled && index.end() - begin > 1) {
          std::reverse(begin, index.end());
          const int again = index.back();
          index.insert(index.end(), {again, -1, columns, again});
        }
        for (std::size_t at = full.size(); at < index.size(); ++at) {
          const int c = index[at];
          full.push_back(blocks.full && c >= 0 && c < columns && is_full(list / heads, r, c));
        }
      }
      offsets.push_back(static_cast<int>(index.size()));
    }
  }
  void give(Problem& p, const Blocks& blocks) {
    if (blocks.q == 0) return;
    BlockList& list = p.block_list;
    list.row_offsets =
        Tensor::contiguous(offsets.data(), DType::int32, {batches, heads, rows + 1}, p.device);
    list.block_index =
        Tensor::contiguous(index.data(), DType::int32, {static_cast<long>(index.size())}, p.device);
    if (blocks.full)
      list.block_full =
          Tensor::contiguous(full.data(), DType::uint8, {static_cast<long>(full.size())}, p.device);
    list.block_q = blocks.q;
    list.block_k = blocks.k;
    if (batches == 1) list.row_offsets.strides[0] = 0;
    if (heads == 1) list.row_offsets.strides[1] = 0;
  }
};

/// Rows of tiles as the kernels on mma.sync want them.
inline cuda::WantedLists wanted_lists(int tile_q, int tile_k, tile::Lists kind, bool by_keys) {
  return {.tile_q = tile_q, .tile_k = tile_k, .kind = kind, .by_keys = by_keys};
}

/// Runs a step with a mask function that is compiled (mask_maps.h).
using RunMap = std::function<void(const cuda::ListsStep&)>;

/// Rows of tiles, made by the kernels in memory that held other things.
struct MadeLists {
  std::vector<unsigned char> workspace;
  tile::TileLists of_queries, of_keys;

  MadeLists(const Problem& p, const cuda::WantedLists& wanted, const RunMap& map = {},
            const tile::MaskBits& mask = {}, const int* taken = nullptr) {
    if (wanted.kind == tile::Lists::none) return;
    cuda::TileListsMaker maker(p, wanted);
    std::vector<MemoryPart> parts;
    maker.add_memory(parts);
    std::int64_t bytes = 0;
    for (const MemoryPart& part : parts) bytes += align_workspace(part.bytes);
    workspace.assign(static_cast<std::size_t>(bytes), 0xff);
    WorkspaceCutter cutter(workspace.data());
    maker.take(cutter);
    maker.leave_where(taken);
    of_queries = maker.of_queries();
    of_keys = maker.of_keys();
    for (const cuda::ListsStep& step : maker.steps(mask)) run(step, map);
  }

 private:
  using Config = tile_lists::Config;

  static void run(const cuda::ListsStep& step, const RunMap& map) {
    using Work = cuda::ListsKernel::Work;
    emulator::shared_base = tile_lists::memory;
    const Config& config = step.kernel.config;
    switch (step.kernel.work) {
      case Work::from_list:
        each_block<tile_lists::Args>(step, 32 * config.rows,
                                     [&](const auto& args) { from_list(config, args); });
        break;
      case Work::from_function:
      case Work::cut_bits:
        map(step);
        break;
      case Work::from_mask:
        each_block<tile_lists::MaskArgs>(step, tile_lists::kMaskThreads,
                                         [&](const auto& args) { from_mask(config, args); });
        break;
      case Work::transpose:
        each_block<tile_lists::TransposeArgs>(step, tile_lists::kTransposeThreads,
                                              [&](const auto& args) {
                                                constexpr Config kTells{.tells_placed = true};
                                                if (config.tells_placed)
                                                  return tile_lists::transpose<kTells>(args);
                                                tile_lists::transpose<Config{}>(args);
                                              });
        break;
      case Work::order:
        each_block<tile_lists::OrderArgs>(
            step, tile_lists::kOrderThreads,
            config.parts ? tile_lists::order<Config{.parts = true}> : tile_lists::order<Config{}>);
        break;
    }
  }
  template <class Args, class Kernel>
  static void each_block(const cuda::ListsStep& step, int threads, Kernel kernel) {
    for (unsigned i = 0; i < step.blocks; ++i)
      emulator::run_block(i, threads, [&] { kernel(std::get<Args>(step.args)); });
  }
  /// Whether the config is kConfig but for its shared memory.
  template <Config kConfig>
  static bool is(const Config& c) {
    return c.tile_q == kConfig.tile_q && c.tile_k == kConfig.tile_k && c.parts == kConfig.parts &&
           c.by_keys == kConfig.by_keys && c.rows == kConfig.rows;
  }
  template <Config... kConfigs>
  static void from_list_as(const Config& c, const tile_lists::Args& args) {
    const bool ran = ((is<kConfigs>(c) && (tile_lists::from_list<kConfigs>(args), true)) || ...);
    if (!ran) std::abort();
  }
  template <Config... kConfigs>
  static void from_mask_as(const Config& c, const tile_lists::MaskArgs& args) {
    const bool ran = ((is<kConfigs>(c) && (tile_lists::from_mask<kConfigs>(args), true)) || ...);
    if (!ran) std::abort();
  }
  static void from_list(const Config& c, const tile_lists::Args& args) {
    from_list_as<Config{128, 128, false}, Config{128, 128, true}, Config{128, 64, false},
                 Config{128, 64, true}, Config{64, 128, false}, Config{64, 128, true},
                 Config{32, 128, true}, Config{128, 32, true}, Config{64, 64, true},
                 Config{64, 64, false}, Config{32, 64, false}>(c, args);
  }
  static void from_mask(const Config& c, const tile_lists::MaskArgs& args) {
    from_mask_as<Config{192, 128}, Config{128, 128}, Config{64, 64},
                 Config{.tile_q = 128, .tile_k = 128, .by_keys = true},
                 Config{.tile_q = 64, .tile_k = 128, .by_keys = true}>(c, args);
  }
};

}  // namespace
