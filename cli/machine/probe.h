/// Quick measurements of this CPU's ceilings, for `tilewise info --measure`.
#pragma once

#include "tilewise/runtime.h"

namespace tilewise::cli {

/// Float32 multiply-adds of all threads, in TFLOP/s, by the widest registers there are.
double measure_fma_tflops(Executor& executor);

/// Copy of a buffer larger than the caches by all threads, in GB/s, both directions counted.
double measure_copy_gbps(Executor& executor);

/// The same within each core's own cache: what a tile that stays there is read and written at.
double measure_cache_gbps(Executor& executor);

/// One parallel region with nothing to do, in microseconds.
double measure_region_us(Executor& executor);

}  // namespace tilewise::cli
