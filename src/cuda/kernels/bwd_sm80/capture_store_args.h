/// bwd_capture_store: constants and parameters. See bwd_sm80/captures.md.
#pragma once

namespace tilewise::bwd_capture_store {

enum class Type : int { float32, bf16, fp16, float64 };
struct Config {
  Type type = Type::float32;  ///< of the gradient
  bool exact = false;         ///< sums are tile::ExactSum
};

/// Sums side by side to a tensor of any strides.
struct Args {
  const void* sums = nullptr;  ///< float32 or exact
  void* to = nullptr;
  long long elements = 0;
  long long sizes[4] = {1, 1, 1, 1}, strides[4] = {0, 0, 0, 0};
};

inline constexpr int kThreads = 256;

}  // namespace tilewise::bwd_capture_store
