/// Tensor maps of the Hopper kernels: rows copied in panels of 64 columns.
#pragma once

#include <string>

#include "cuda/driver/tensor_map.h"
#include "cuda/tile/hopper/tensor_map.h"
#include "tilewise/tensor.h"

namespace tilewise::cuda {

/// The map of a tensor whose boxes are `box_rows` rows of 64 columns. `packed`: its batches are not
/// an axis of their own.
TensorMapSpec sm90_map_spec(const Tensor& tensor, int box_rows, bool packed = false);

/// Axes {D, H, S, B} to {D, H, x, y, B}, x of `rows` rows: see tile::Offsets. A box takes `heads`
/// heads.
TensorMapSpec sm90_ragged_map(TensorMapSpec spec, std::int64_t rows, int heads);

/// Boxes of `rows` rows with `panels` panels of 64 columns, or all: axes {64, S, panels, H, B}.
TensorMapSpec sm90_panel_map(const Tensor& tensor, int rows, int panels = 0);

/// Boxes of `rows` rows with `panels` panels of 64 columns, those of a row next to each other: axes
/// {64, panels, S, H, B}.
TensorMapSpec sm90_row_map(const Tensor& tensor, int rows, int panels);

enum class Sm90Access { read, write };

/// Why the copy engine cannot read or write a tensor. Empty if it can.
std::string sm90_map_refusal(const char* name, const Tensor& tensor, Sm90Access access,
                             bool packed = false);

void sm90_set_map(tile::TensorMapBytes& to, const TensorMapSpec& spec);

}  // namespace tilewise::cuda
