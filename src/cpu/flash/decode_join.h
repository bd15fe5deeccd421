/// The end of flash_decode: results of the splits of the keys become one.
#pragma once

#include "cpu/flash/decode_geometry.h"

namespace tilewise::cpu {

/// O, m and l of a row's splits into those of the first, in order. Split s of row r has m and
/// l at s * rows + r, and O at ld_v times that.
void join_splits(const DecodeGeometry& geometry, std::int64_t row, float* m, float* l, float* o);

}  // namespace tilewise::cpu
