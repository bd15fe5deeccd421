/// mask_bits: a bool mask as bits, in the order in which the threads of a warpgroup hold scores
/// (tile::MaskBits). See rows/README.md.
#pragma once

#include "cuda/kernels/rows/mask_bits_args.h"
#include "cuda/tile/pairs.cuh"

namespace tilewise::mask_bits {

using namespace tile;

/// Where a thread works.
struct Work {
  int batch, head, line, block, part;
  bool exists;

  template <Way kWay>
  static __forceinline__ Work of(const Args& args, i64 thread) {
    Work work;
    work.part = static_cast<int>(thread % threads(kWay));
    i64 rest = thread / threads(kWay);
    // The next four lines are the next thread's: their elements lie side by side.
    const int line_groups = (args.lines + lines(kWay) - 1) / lines(kWay);
    if constexpr (kWay == Way::across) {
      work.line = static_cast<int>(rest % line_groups) * lines(kWay);
      rest /= line_groups;
      work.block = static_cast<int>(rest % args.blocks);
      rest /= args.blocks;
    } else {
      work.block = static_cast<int>(rest % args.blocks);
      rest /= args.blocks;
      work.line = static_cast<int>(rest % line_groups);
      rest /= line_groups;
    }
    work.head = static_cast<int>(rest % args.heads);
    rest /= args.heads;
    work.batch = static_cast<int>(rest);
    work.exists = rest < args.batch;
    return work;
  }
  __forceinline__ const unsigned char* from(const Args& args, int element) const {
    return args.mask + batch * args.stride_b + head * args.stride_h + line * args.stride_line +
           element * args.stride_element;
  }
  __forceinline__ unsigned* to(const Args& args) const {
    return args.words +
           (((static_cast<i64>(batch) * args.heads + head) * args.lines + line) * args.blocks +
            block) *
               4;
  }
};

/// Eight threads of a line's block, 16 elements each.
template <int kBlock>
__forceinline__ void along(const Args& args, const Work& work) {
  u32 bits = 0xffffU;
  const int first = work.block * kBlock + 16 * work.part;
  if (work.exists && 16 * work.part < kBlock && first < args.elements) {
    const unsigned char* const from = work.from(args, first);
    if (first + 16 <= args.elements) {
      const Bytes16 x = load_global_16(from);
      bits = set_bytes(x.x) | set_bytes(x.y) << 4 | set_bytes(x.z) << 8 | set_bytes(x.w) << 12;
    } else {
      for (int e = 0; e < args.elements - first; ++e) {
        if (from[e] == 0) bits &= ~(1U << e);
      }
    }
  }
  u32 word[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    // Elements past the block show, as those past the last do.
    word[t] = ((bits >> (2 * t) & 3U) | (bits >> (8 + 2 * t) & 3U) << 2) << (4 * work.part);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
      word[t] |= static_cast<u32>(__shfl_xor_sync(~0U, static_cast<int>(word[t]), step));
  }
  if (!work.exists) return;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    if (work.part == t) work.to(args)[t] = word[t];
  }
}

/// One thread of a block of four lines, whose elements lie side by side.
template <int kBlock>
__forceinline__ void across(const Args& args, const Work& work) {
  if (!work.exists) return;
  u32 word[4][4] = {};
#pragma unroll 2
  for (int group = 0; group < 16; ++group) {
    const int first = work.block * kBlock + 8 * group;
    u32 four[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const bool inside = 8 * group < kBlock && first + e < args.elements;
      four[e] =
          inside ? __ldg(reinterpret_cast<const u32*>(work.from(args, first + e))) : 0x01010101U;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const u32 bits = set_bytes(four[e]);
#pragma unroll
      for (int line = 0; line < 4; ++line)
        word[line][e / 2] |= (bits >> line & 1U) << (2 * group + e % 2);
    }
  }
#pragma unroll
  for (int line = 0; line < 4; ++line) {
    unsigned* const to = work.to(args) + static_cast<i64>(line) * args.blocks * 4;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (work.line + line < args.lines) to[t] = word[line][t];
    }
  }
}

/// One thread of a word.
template <int kBlock>
__forceinline__ void single(const Args& args, const Work& work) {
  if (!work.exists) return;
  u32 word = 0;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    const int element = 8 * (i / 2) + 2 * work.part + i % 2;
    const int at = work.block * kBlock + element;
    const bool inside = element < kBlock && at < args.elements;
    word |= (!inside || *work.from(args, at) != 0 ? 1U : 0U) << i;
  }
  work.to(args)[work.part] = word;
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  const i64 thread = blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x;
  const Work work = Work::of<kConfig.way>(args, thread);
  if constexpr (kConfig.way == Way::along) {
    along<kConfig.block>(args, work);
  } else if constexpr (kConfig.way == Way::across) {
    across<kConfig.block>(args, work);
  } else {
    single<kConfig.block>(args, work);
  }
}

}  // namespace tilewise::mask_bits
