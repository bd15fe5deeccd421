/// What the contract tests share: owned tensors with guard bands, one call through the public API
/// with a named kernel, and the judgement of CONTRACT 18.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reference/reference.h"
#include "tilewise/attention.h"

namespace tilewise::contract {

using Values = std::vector<double>;
using Sizes = std::vector<std::int64_t>;

/// A row-major tensor that owns its memory. Memory before and after it holds NaN bits, and so does
/// the tensor itself until it is written.
class Owned {
 public:
  Owned() = default;
  Owned(DType dtype, const Sizes& sizes);
  Owned(DType dtype, const Sizes& sizes, const Values& values);

  Tensor tensor() { return tensor_; }
  Values values() const;
  bool guards_intact() const;
  /// All bytes of the elements.
  std::string bits() const;

 private:
  std::vector<std::byte> memory_;
  Tensor tensor_;
};

Owned integers(const std::vector<std::int64_t>& values, DType dtype = DType::int32);
Owned booleans(const Sizes& sizes, const std::vector<bool>& values);

/// N(0, scale^2), the same for the same seed everywhere.
Values randn(std::int64_t count, std::uint64_t seed, double scale = 1.0);
Values constant(std::int64_t count, double value);
/// 0, 1, 2, ...
Values counting(std::int64_t count, double first = 0.0);

/// One problem with its data. Packed: batch is 1, the lengths are totals, and the spec has the
/// offsets.
struct Trial {
  DType dtype = DType::float32;
  std::int64_t batch = 1, heads_q = 1, heads_k = 1;
  std::int64_t seq_q = 1, seq_k = 1;
  std::int64_t dim = 1, dim_v = 1;
  AttentionSpec spec;
  Values q, k, v;  ///< (B, H, S, D), row-major
  Values d_o;      ///< gradient of O
  Values d_lse;    ///< gradient of LSE; empty = not given
  bool packed = false;

  std::int64_t rows() const { return batch * heads_q * seq_q; }
  /// Fills q, k, v and d_o with randn.
  Trial& fill(std::uint64_t seed, double scale = 1.0);
};

/// Sets all sizes but the data.
Trial trial(DType dtype, std::int64_t batch, std::int64_t heads_q, std::int64_t heads_k,
            std::int64_t seq_q, std::int64_t seq_k, std::int64_t dim, std::int64_t dim_v);

struct Results {
  Values o, lse;
  Values dq, dk, dv, dbias, dsinks;
  std::string bits;  ///< of every output, for bitwise comparisons
  Plan plan;
};

/// A row of the kernel table as a test parameter.
struct Row {
  std::string kernel;
  std::string implementation;
};
std::ostream& operator<<(std::ostream& out, const Row& row);
std::vector<Row> cpu_rows(Pass pass);
std::string row_test_name(const testing::TestParamInfo<Row>& info);

/// Runs forward with the kernel; outputs and workspace hold NaN before. Empty kernel = the free
/// choice.
Results run_forward(const Trial& s, const std::string& kernel, Executor* executor = nullptr);
/// Runs backward with the kernel, on O and LSE of the same implementation's forward.
Results run_backward(const Trial& s, const Row& row, Executor* executor = nullptr);

/// The same on tensors that the caller lays out.
Plan run_forward(const ForwardTensors& t, const AttentionSpec& spec, const std::string& kernel,
                 Executor* executor = nullptr);
Plan run_backward(const BackwardTensors& t, const AttentionSpec& spec, const std::string& kernel,
                  Executor* executor = nullptr);

/// Every result against float64 under CONTRACT 18.
void expect_conforms(const Trial& s, const Results& forward);
void expect_gradients_conform(const Trial& s, const Results& backward);

/// The float64 results of a trial.
reference::Forward forward_truth(const Trial& s);
reference::Backward backward_truth(const Trial& s);

void expect_near(const Values& actual, const Values& expected, double tolerance, const char* name);
void expect_all(const Values& actual, double value, const char* name);
void expect_finite(const Values& actual, const char* name);
/// Elements [begin, end).
Values slice(const Values& values, std::int64_t begin, std::int64_t end);

/// True when the row refuses the problem as Unsupported.
bool refuses(const Trial& s, const Row& row, Pass pass);

/// Tests that run once for every forward (backward) row of the CPU. A row that this machine cannot
/// run is skipped.
class Forward : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override;
  Results run(const Trial& s) { return run_forward(s, GetParam().kernel); }
  /// For what a kernel may refuse (paged KV, block lists, score functions): skips the test then.
  /// The reference may not.
  bool skips(const Trial& s);
};
class Backward : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override;
  Results run(const Trial& s) { return run_backward(s, GetParam()); }
  bool skips(const Trial& s);
};

/// The same for every row, also those of one type: a test goes through types_.
class TypedForward : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override;
  std::vector<DType> types_;  ///< of float32 and bfloat16 what the row takes
};
class TypedBackward : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override;
  std::vector<DType> types_;
};

}  // namespace tilewise::contract
