/// Block lists of the emulated cases: random ones, what they make visible, and tile_lists run on
/// them.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "cuda/kernels/rows/mask_tiles.cuh"
#include "cuda/kernels/rows/tile_lists.cuh"
#include "cuda/kernels/rows/tile_lists.h"

namespace tilewise::tile_lists {
alignas(1024) unsigned char memory[64 * 1024];
}
namespace tilewise::mask_tiles {
alignas(1024) unsigned char memory[1024];
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

/// Runs mask_map (mask_maps.h).
using RunMap =
    std::function<void(const tile_lists::Config&, const tile_lists::Args&, std::int64_t blocks)>;

/// The lines of a bool mask's bits, and the bits.
struct MaskOfLists {
  cuda::MaskLines lines = cuda::MaskLines::none;
  tile::MaskBits bits;
};

/// The rows of tiles of a list, made by the kernels in memory that held other things.
struct MadeLists {
  std::vector<unsigned char> workspace;
  tile::TileLists lists, transposed;

  MadeLists(const Problem& p, int tile_q, int tile_k, tile::Lists kind, int rows_of_tile = 1,
            const RunMap& map = {}, bool packs_heads = false, const MaskOfLists& mask = {}) {
    const bool narrowed = mask.bits.words != nullptr && kind != tile::Lists::none;
    if (!p.block_list.defined() && !map && !narrowed) return;
    cuda::TileListsMaker maker(p, tile_q, tile_k, kind, rows_of_tile, packs_heads, mask.lines);
    std::vector<MemoryPart> parts;
    maker.add_memory(parts);
    maker.add_order_memory(parts);
    maker.add_transposed_memory(parts);
    std::int64_t bytes = 0;
    for (const MemoryPart& part : parts) bytes += align_workspace(part.bytes);
    workspace.assign(static_cast<std::size_t>(bytes), 0xff);
    WorkspaceCutter cutter(workspace.data());
    maker.take(cutter);
    maker.take_order(cutter);
    maker.take_transposed(cutter);
    lists = maker.lists();
    transposed = maker.transposed();
    const tile_lists::Args args = maker.args();
    if (map && !p.block_list.defined()) map(maker.config(), args, maker.blocks());
    emulator::shared_base = tile_lists::memory;
    for (unsigned i = 0; p.block_list.defined() && i < maker.blocks(); ++i) {
      emulator::run_block(i, tile_lists::kThreads, [&] { run(maker.config(), args); });
    }
    if (narrowed && mask.lines == cuda::MaskLines::queries) narrow(maker, mask.bits);
    const tile_lists::OrderArgs order = maker.order_args();
    emulator::run_block(0, tile_lists::kOrderThreads,
                        [&] { tile_lists::order<tile_lists::Config{}>(order); });
    transpose(maker.transpose_args(), maker.transpose_blocks());
    if (narrowed && mask.lines == cuda::MaskLines::keys) {
      narrow(maker, mask.bits);
      transpose(maker.way_back_args(), maker.way_back_blocks());
    }
  }

 private:
  static void transpose(const tile_lists::TransposeArgs& args, std::int64_t blocks) {
    for (unsigned i = 0; i < blocks; ++i) {
      emulator::run_block(i, tile_lists::kTransposeThreads,
                          [&] { tile_lists::transpose<tile_lists::Config{}>(args); });
    }
  }
  template <mask_tiles::Config kConfig>
  static bool narrow_as(const mask_tiles::Config& c, const mask_tiles::Args& args) {
    if (c.tile_q != kConfig.tile_q || c.tile_k != kConfig.tile_k || c.by_keys != kConfig.by_keys)
      return false;
    mask_tiles::kernel<kConfig>(args);
    return true;
  }
  static void narrow(const cuda::TileListsMaker& maker, const tile::MaskBits& bits) {
    using mask_tiles::Config;
    const mask_tiles::Args args = maker.mask_args(bits);
    const Config c = maker.mask_config();
    emulator::shared_base = mask_tiles::memory;
    for (unsigned i = 0; i < maker.mask_blocks(); ++i) {
      emulator::run_block(i, mask_tiles::kThreads, [&] {
        if (!narrow_as<Config{192, 128, false}>(c, args) &&
            !narrow_as<Config{128, 128, false}>(c, args) &&
            !narrow_as<Config{64, 64, false}>(c, args) &&
            !narrow_as<Config{128, 128, true}>(c, args) &&
            !narrow_as<Config{64, 128, true}>(c, args))
          std::abort();
      });
    }
    emulator::shared_base = tile_lists::memory;
  }
  template <tile_lists::Config kConfig>
  static bool run_as(const tile_lists::Config& config, const tile_lists::Args& args) {
    if (config.tile_q != kConfig.tile_q || config.tile_k != kConfig.tile_k ||
        config.parts != kConfig.parts)
      return false;
    tile_lists::kernel<kConfig>(args);
    return true;
  }
  static void run(const tile_lists::Config& c, const tile_lists::Args& args) {
    using tile_lists::Config;
    if (run_as<Config{128, 128, false}>(c, args) || run_as<Config{128, 128, true}>(c, args) ||
        run_as<Config{128, 64, false}>(c, args) || run_as<Config{128, 64, true}>(c, args) ||
        run_as<Config{64, 128, false}>(c, args) || run_as<Config{64, 128, true}>(c, args) ||
        run_as<Config{32, 128, true}>(c, args) || run_as<Config{128, 32, true}>(c, args) ||
        run_as<Config{64, 64, true}>(c, args) || run_as<Config{64, 64, false}>(c, args) ||
        run_as<Config{32, 64, false}>(c, args))
      return;
    std::abort();
  }
};

}  // namespace
