/// A call that a test spoils, and what the library says of it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "expect_parts.h"
#include "problem/problem.h"

namespace tilewise {

/// A valid forward and backward whose fields a test then spoils.
struct Call {
  std::vector<float> memory = std::vector<float>(1 << 16);
  ForwardTensors forward;
  BackwardTensors backward;
  AttentionSpec spec;

  explicit Call(std::int64_t heads_k = 2) {
    float* next = memory.data() + 4096;  // what lies before is for a spec's tensors
    const auto make = [&](std::int64_t h, std::int64_t s, std::int64_t d) {
      float* data = next;
      next += 2 * h * s * d;
      return Tensor::bhsd(data, DType::float32, 2, h, s, d);
    };
    const Tensor q = make(4, 5, 8);
    const Tensor k = make(heads_k, 7, 8);
    const Tensor v = make(heads_k, 7, 6);
    const Tensor o = make(4, 5, 6);
    const Tensor lse = Tensor::contiguous(next, DType::float32, {2, 4, 5});
    next += lse.numel();
    forward = {q, k, v, o, lse, {}};
    const Tensor dq = make(4, 5, 8), dk = make(heads_k, 7, 8), dv = make(heads_k, 7, 6);
    backward = {q, k, v, o, lse, o, {}, dq, dk, dv, {}, {}, {}};
  }
};

/// Runs the checks and returns the message of the InvalidArgument, or "accepted".
inline std::string forward_message(const std::function<void(Call&)>& spoil) {
  Call call;
  spoil(call);
  try {
    make_problem(call.forward, call.spec, Purpose::run);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "accepted";
}

inline std::string backward_message(const std::function<void(Call&)>& spoil) {
  Call call;
  spoil(call);
  try {
    make_problem(call.backward, call.spec, Purpose::run);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace tilewise
