/// What the Hopper kernels are compiled for of positions and lengths. Nothing is included.
#pragma once

namespace tilewise::tile {

/// Which keys position hides: none (only those past the end), those right of a diagonal, or those
/// on either side of a band.
enum class Mask : int { none, right, both };

/// Whose lengths the device must look up: nobody's, each batch entry's keys, those of packed
/// sequences.
enum class Lengths : int { dense, keys, packed };

}  // namespace tilewise::tile
