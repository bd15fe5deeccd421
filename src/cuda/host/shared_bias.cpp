#include "cuda/host/shared_bias.h"

#include "cuda/host/tma_maps.h"

namespace tilewise::cuda {

Tensor stored_bias(const Tensor& bias) {
  Tensor own = bias;
  for (int axis = 0; axis < own.rank; ++axis) {
    if (own.strides[axis] == 0) own.sizes[axis] = 1;
  }
  return own;
}

std::string bias_map_refusal(const Tensor& bias) {
  return sm90_map_refusal("bias", stored_bias(bias), Sm90Access::read);
}

tile::BiasTiles bias_tiles(const Tensor& bias, int rows) {
  const Tensor own = stored_bias(bias);
  tile::BiasTiles tiles;
  sm90_set_map(tiles.map, sm90_map_spec(own, rows));
  tiles.by_batch = own.sizes[0] > 1 ? 1 : 0;
  tiles.by_head = own.sizes[1] > 1 ? 1 : 0;
  tiles.by_query = own.sizes[2] > 1 ? 1 : 0;
  return tiles;
}

bool heads_share_bias(const Problem& p) {
  constexpr std::int64_t kStays = std::int64_t{16} << 20;
  return p.bias.defined() && p.bias.strides[1] == 0 && p.bias.strides[2] != 0 &&
         p.bias.strides[3] != 0 && p.seq_q * p.seq_k * dtype_bytes(p.bias.dtype) > kStays;
}

}  // namespace tilewise::cuda
