/// A tensor that owns memory of GPU 0.
#pragma once

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/memory.h"
#include "cuda/machine.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// (B, H, S, D) on GPU 0: bfloat16 or float32, N(0, 1), or NaN for seed 0.
class DeviceTensor {
 public:
  DeviceTensor(DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t seq,
               std::int64_t dim, unsigned seed)
      : bytes_(batch * heads * seq * dim * dtype_bytes(dtype)) {
    data_ = cuda::allocate(bytes_, 0, nullptr);
    tensor_ = Tensor::bhsd(data_, dtype, batch, heads, seq, dim, kCuda);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<std::byte> host(static_cast<std::size_t>(bytes_));
    for (std::int64_t i = 0; i < tensor_.numel(); ++i) {
      const float x = seed == 0 ? std::numeric_limits<float>::quiet_NaN() : normal(random);
      // The upper half of a float is a bfloat16.
      const auto width = static_cast<std::size_t>(dtype_bytes(dtype));
      std::memcpy(&host[static_cast<std::size_t>(i) * width],
                  reinterpret_cast<const char*>(&x) + 4 - width, width);
    }
    cuda::copy_to_device(data_, host.data(), bytes_, 0, nullptr);
    cuda::synchronize(0, nullptr);
  }
  ~DeviceTensor() { cuda::release(data_, 0, nullptr); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;
  const Tensor& get() const { return tensor_; }
  std::vector<std::byte> read() const {
    std::vector<std::byte> host(static_cast<std::size_t>(bytes_));
    cuda::copy_to_host(host.data(), data_, bytes_, 0, nullptr);
    cuda::synchronize(0, nullptr);
    return host;
  }

 private:
  std::int64_t bytes_;
  void* data_ = nullptr;
  Tensor tensor_;
};

}  // namespace tilewise
