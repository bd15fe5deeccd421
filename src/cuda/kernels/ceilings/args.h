/// ceilings: constants and parameters. See ceilings/README.md.
#pragma once

namespace tilewise::ceilings {

/// What a kernel keeps busy.
enum class What : int {
  read,     ///< device memory, reading
  copy,     ///< device memory, reading and writing
  shared,   ///< shared memory, reading
  float32,  ///< CUDA cores, float32 multiply-add
  bf16,     ///< tensor cores by mma.sync, bf16 into float32
  tf32,     ///< tensor cores by mma.sync, tf32 into float32
  wgmma,    ///< tensor cores by wgmma, bf16 into float32 (sm_90)
};

struct Config {
  What what = What::read;
};

struct Args {
  const void* from = nullptr;  ///< read, copy: memory of `vectors` 16-byte elements
  void* to = nullptr;          ///< copy: as much; else one float for each thread, never written
  long long vectors = 0;
  int rounds = 0;            ///< of the others
  float factor = 0.999F;     ///< unknown to the compiler, so that nothing is worked out ahead
  float impossible = -1.0F;  ///< a sum that does not come up: results are kept by comparing with it
};

inline constexpr int kThreads = 256;
/// 16-byte loads of a thread that are on their way together.
inline constexpr int kVectors = 4;
/// Independent sums of a thread (float32) and of a warp (mma.sync): latency times throughput, and
/// more.
inline constexpr int kChains = 16, kTiles = 8;
/// wgmma: products of m64 n256 k16 of a warpgroup in one round, over panels of 64 columns.
inline constexpr int kProducts = 16, kProductN = 256, kPanels = 64 * 128 * 2 + 256 * 128;
/// Shared memory that `shared` reads in one round.
inline constexpr int kSharedBytes = 32 * 1024;

}  // namespace tilewise::ceilings
