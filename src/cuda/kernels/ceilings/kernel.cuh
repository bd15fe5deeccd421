/// ceilings: kernels that keep one part of a multiprocessor busy and do nothing else: what
/// `tilewise info --measure` holds beside the vendor's figures.
#pragma once

#include "cuda/kernels/ceilings/args.h"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
#include "cuda/tile/mma.cuh"

namespace tilewise::ceilings {

using namespace tile;

__forceinline__ i64 thread_index() { return static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x; }

/// Bits that look random: tensor cores draw less power, and run faster, on zeros.
__forceinline__ u32 noise(u32 seed) {
  u32 x = seed * 0x9E3779B9U + 0x85EBCA6BU;
  x = (x ^ (x >> 15)) * 0x2C1B3C6DU;
  return x ^ (x >> 13);
}
/// Two bf16 (or one tf32) of magnitude 1 to 2 and either sign.
__forceinline__ u32 noisy_pair(u32 seed) { return (noise(seed) & 0x807F807FU) | 0x3F803F80U; }

/// Keeps `x` alive: the compiler cannot know that it is not `impossible`.
__forceinline__ void keep(const Args& args, float x) {
  if (x == args.impossible) static_cast<float*>(args.to)[thread_index()] = x;
}

/// Every thread of the grid in turn, kVectors loads ahead. The tail is the host's to avoid.
template <bool kCopies>
__forceinline__ void walk_memory(const Args& args) {
  const char* from = static_cast<const char*>(args.from);
  char* to = static_cast<char*>(args.to);
  const i64 threads = static_cast<i64>(gridDim.x) * kThreads;
  u32 bits = 0;
  for (i64 at = thread_index(); at + (kVectors - 1) * threads < args.vectors;
       at += kVectors * threads) {
    Bytes16 v[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = load_global_16(from + 16 * (at + i * threads));
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (kCopies) {
        store_global_16(to + 16 * (at + i * threads), v[i]);
      } else {
        bits |= v[i].x & v[i].y & v[i].z & v[i].w;
      }
    }
  }
  if constexpr (!kCopies) keep(args, static_cast<float>(bits));
}

/// A warp reads 512 bytes side by side: all banks, four times.
__forceinline__ void read_shared(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 base = shared_address(memory);
  for (u32 i = threadIdx.x; i < kSharedBytes / 4; i += kThreads) store_shared_4(base + 4 * i, i);
  __syncthreads();
  constexpr u32 kStep = 16 * kThreads;
  u32 bits = 0;
  for (int round = 0; round < args.rounds; ++round) {
#pragma unroll
    for (u32 i = 0; i < kSharedBytes / kStep; ++i) {
      // 16 bytes further each round: a load whose address comes again would be done once.
      const u32 at = i * kStep + 16 * (threadIdx.x + static_cast<u32>(round));
      const Bytes16 v = load_shared_16(base + at % kSharedBytes);
      bits ^= v.x ^ v.y ^ v.z ^ v.w;
    }
  }
  keep(args, static_cast<float>(bits));
}

__forceinline__ void multiply_add(const Args& args) {
  float sums[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) sums[c] = static_cast<float>(c) + args.factor * threadIdx.x;
  for (int round = 0; round < args.rounds; ++round) {
    // x -> x * 0.999 + 0.999 stays finite.
#pragma unroll
    for (int c = 0; c < kChains; ++c) sums[c] = __fmaf_rn(sums[c], args.factor, args.factor);
  }
  float sum = 0.0F;
#pragma unroll
  for (int c = 0; c < kChains; ++c) sum += sums[c];
  keep(args, sum);
}

template <What kWhat>
__forceinline__ void multiply_tiles(const Args& args) {
  const u32 seed = static_cast<u32>(thread_index()) * 64;
  u32 a[4], b[kTiles][2];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) a[i] = noisy_pair(seed + i);
#pragma unroll
  for (u32 i = 0; i < 2 * kTiles; ++i) b[i / 2][i % 2] = noisy_pair(seed + 4 + i);
  Acc sums[1][kTiles];
  clear(sums);
  for (int round = 0; round < args.rounds; ++round) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if constexpr (kWhat == What::tf32) {
        mma_tf32(sums[0][t], a, b[t][0], b[t][1]);
      } else {
        mma<Element::bf16>(sums[0][t], a, b[t][0], b[t][1]);
      }
    }
  }
  float sum = 0.0F;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) sum += sums[0][t][0] + sums[0][t][3];
  keep(args, sum);
}

/// Two warpgroups, each with a panel of A of its own; they share B.
template <int kN>
__forceinline__ void multiply_panels(const Args& args) {
  using Product = Wgmma<Element::bf16, kN>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 base = shared_address(memory);
  for (u32 i = threadIdx.x; i < kPanels / 4; i += kThreads) {
    store_shared_4(base + 4 * i, noisy_pair(i));
  }
  __syncthreads();
  fence_async_shared();
  constexpr u32 kPanelA = 64 * kPanelRowBytes;
  const u64 a = panel_descriptor(base + threadIdx.x / 128 * kPanelA, 16);
  const u64 b = panel_descriptor(base + 2 * kPanelA, 16);
  float sums[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = 0.0F;
  for (int round = 0; round < args.rounds; ++round) {
    pin(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const int step = i % (kPanelColumns / 16) * kStepColumns;
      Product::multiply_shared(sums, a + step, b + step, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
  }
  keep(args, sums[0] + sums[kN / 2 - 1]);
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  constexpr What kWhat = kConfig.what;
  if constexpr (kWhat == What::read || kWhat == What::copy) {
    walk_memory<kWhat == What::copy>(args);
  } else if constexpr (kWhat == What::shared) {
    read_shared(args);
  } else if constexpr (kWhat == What::float32) {
    multiply_add(args);
  } else if constexpr (kWhat == What::wgmma) {
    multiply_panels<kProductN>(args);
  } else {
    multiply_tiles<kWhat>(args);
  }
}

}  // namespace tilewise::ceilings
