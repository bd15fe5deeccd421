/// Bool masks of the emulated cases: random ones, and mask_bits run on them.
#pragma once

#include <random>
#include <vector>

#include "cuda/kernels/rows/mask_bits.cuh"
#include "cuda/kernels/rows/mask_bits.h"

namespace tilewise::mask_bits {
alignas(1024) unsigned char memory[1024];
}

namespace {

using namespace tilewise;

/// What a case says of its mask. Row 3 sees nothing; the last 40 keys, and those from 130 to 269,
/// are seen by nobody where the mask goes by keys.
struct Shows {
  double density = 0.0;  ///< of what is visible, 0: no mask
  bool by_batch = false, by_head = false, by_query = true, by_key = true;
  int pitch = 16;           ///< rows are whole multiples of so many bytes
  bool transposed = false;  ///< elements of neighbouring queries lie side by side
  /// Squares of so many queries and 128 keys: a third of them is hidden and a third shown, but for
  /// row 3. 0: none.
  int square = 0;
};

struct BoolMask {
  Shows shows;
  std::int64_t batch = 1, heads = 1, queries = 1, keys = 1;
  std::int64_t pitch = 1;
  std::vector<unsigned char> data;

  BoolMask(const Shows& of, int batch_, int heads_, int queries_, int keys_) : shows(of) {
    if (shows.density == 0.0) return;
    batch = shows.by_batch ? batch_ : 1;
    heads = shows.by_head ? heads_ : 1;
    queries = shows.by_query ? queries_ : 1;
    keys = shows.by_key ? keys_ : 1;
    const std::int64_t side = shows.transposed ? queries : keys;
    pitch = (side + shows.pitch - 1) / shows.pitch * shows.pitch;
    data.assign(static_cast<std::size_t>(batch * heads * rows() * pitch), 0);
    std::mt19937 random(17);
    std::bernoulli_distribution draw(shows.density);
    for (std::int64_t n = 0; n < batch * heads; ++n) {
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t j = 0; j < keys; ++j) {
          bool hidden = keys > 90 && (j >= keys - 40 || (j >= 130 && j < 270)), shown = false;
          if (shows.square > 0) {
            const std::int64_t third = (n + i / shows.square + 2 * (j / 128)) % 3;
            hidden = third == 0, shown = third == 1;
          }
          hidden |= queries > 4 && i == 3;
          // Any byte but 0 shows.
          data[place(n, i, j)] = !hidden && (draw(random) || shown) ? 1 + j % 200 : 0;
        }
      }
    }
  }
  std::int64_t rows() const { return shows.transposed ? keys : queries; }
  std::size_t place(std::int64_t n, std::int64_t i, std::int64_t j) const {
    const std::int64_t row = shows.transposed ? j : i, column = shows.transposed ? i : j;
    return static_cast<std::size_t>((n * rows() + row) * pitch + column);
  }
  bool has(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (shows.density == 0.0) return true;
    return data[place(b % batch * heads + h % heads, i % queries, j % keys)] != 0;
  }
  void give(Problem& p, int batch_, int heads_, int queries_, int keys_) {
    if (shows.density == 0.0) return;
    p.mask = Tensor::contiguous(data.data(), DType::boolean, {batch_, heads_, queries_, keys_},
                                p.device);
    const std::int64_t side = rows() * pitch;
    p.mask.strides = {batch > 1 ? heads * side : 0, heads > 1 ? side : 0,
                      queries > 1 ? (shows.transposed ? 1 : pitch) : 0,
                      keys > 1 ? (shows.transposed ? pitch : 1) : 0};
  }
};

/// The bits of a mask, made by the kernel in memory that held other things.
struct MadeBits {
  std::vector<unsigned char> workspace;
  tile::MaskBits bits;

  MadeBits(const Problem& p, int block, bool by_keys) {
    if (!p.mask.defined()) return;
    cuda::MaskBitsMaker maker(p, block, by_keys);
    std::vector<MemoryPart> parts;
    maker.add_memory(parts);
    workspace.assign(static_cast<std::size_t>(align_workspace(parts[0].bytes)), 0x5a);
    WorkspaceCutter cutter(workspace.data());
    maker.take(cutter);
    bits = maker.bits();
    const mask_bits::Args args = maker.args();
    emulator::shared_base = mask_bits::memory;
    for (unsigned i = 0; i < maker.blocks(); ++i) {
      emulator::run_block(i, mask_bits::kThreads, [&] { run(maker.config(), args); });
    }
  }

 private:
  template <int kBlock>
  static bool run_as(const mask_bits::Config& config, const mask_bits::Args& args) {
    using mask_bits::Config;
    using mask_bits::Way;
    if (config.block != kBlock) return false;
    switch (config.way) {
      case Way::along:
        mask_bits::kernel<Config{Way::along, kBlock}>(args);
        return true;
      case Way::across:
        mask_bits::kernel<Config{Way::across, kBlock}>(args);
        return true;
      default:
        mask_bits::kernel<Config{Way::single, kBlock}>(args);
        return true;
    }
  }
  static void run(const mask_bits::Config& config, const mask_bits::Args& args) {
    if (run_as<128>(config, args) || run_as<64>(config, args) || run_as<80>(config, args)) return;
    std::abort();
  }
};

}  // namespace
