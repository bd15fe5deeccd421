/// Arguments that no kernel may take: CONTRACT 19. The message names the argument.
#include <limits>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

/// The message of the InvalidArgument that the call throws; empty when it does not.
template <class Call>
std::string complaint(Call call) {
  try {
    call();
    return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

std::string complaint(const Trial& s) {
  return complaint([&] { run_forward(s, ""); });
}

bool names(const std::string& message, const std::string& argument) {
  return message.find(argument) != std::string::npos;
}

TEST(Arguments, C078HeadsThatDoNotDivide) {
  for (const auto& [heads_q, heads_k] : {std::pair{33, 2}, {3, 2}, {8, 3}}) {
    const std::string message = complaint(trial(DType::float32, 1, heads_q, heads_k, 4, 4, 8, 8));
    EXPECT_TRUE(names(message, "heads") && names(message, std::to_string(heads_q))) << message;
  }
}

TEST(Arguments, C105MixedTypes) {
  const Sizes sizes{1, 1, 4, 8};
  Owned q(DType::float32, sizes), k(DType::float16, sizes), v(DType::float16, sizes),
      o(DType::float32, sizes);
  const ForwardTensors t{
      .q = q.tensor(), .k = k.tensor(), .v = v.tensor(), .o = o.tensor(), .lse = {}, .saved = {}};
  EXPECT_TRUE(names(complaint([&] { forward(t); }), "k is float16"));
  Trial s = trial(DType::bfloat16, 1, 1, 1, 4, 4, 8, 8).fill(80);
  Owned longs = integers({1, 2, 3, 4}, DType::int64);
  s.spec.bias = longs.tensor();
  EXPECT_TRUE(names(complaint(s), "bias is int64"));
  Owned floats(DType::float32, {4}, {1, 2, 3, 4});
  s.spec.bias = floats.tensor();
  EXPECT_EQ(complaint(s), "");
}

TEST(Arguments, C110LengthsPastTheTensors) {
  Trial s = trial(DType::float32, 1, 1, 1, 10, 17, 8, 8);
  s.packed = true;
  Owned cu_q = integers({0, 4, 10}), cu_k = integers({0, 10, 20});
  s.spec.cu_seqlens_q = cu_q.tensor();
  s.spec.cu_seqlens_k = cu_k.tensor();
  const std::string message = complaint(s);
  EXPECT_TRUE(names(message, "cu_seqlens_k") && names(message, "20")) << message;

  Trial cache = trial(DType::float32, 2, 1, 1, 1, 17, 8, 8);
  Owned lengths = integers({17, 18});
  cache.spec.key_lengths = lengths.tensor();
  EXPECT_TRUE(names(complaint(cache), "key_lengths"));
}

TEST(Arguments, NothingIsWrittenOnAnError) {
  const Sizes sizes{1, 3, 4, 8};
  Owned q(DType::float32, sizes, constant(96, 1.0)),
      k(DType::float32, {1, 2, 4, 8}, constant(64, 1.0));
  Owned o(DType::float32, sizes, constant(96, 7.0));
  const ForwardTensors t{
      .q = q.tensor(), .k = k.tensor(), .v = k.tensor(), .o = o.tensor(), .lse = {}, .saved = {}};
  EXPECT_THROW(forward(t), InvalidArgument);
  expect_all(o.values(), 7.0, "O");
}

TEST(Arguments, NumbersOutOfRange) {
  const auto with = [](auto change) {
    Trial s = trial(DType::float32, 1, 1, 1, 4, 4, 8, 8);
    change(s.spec);
    return complaint(s);
  };
  EXPECT_TRUE(names(
      with([](AttentionSpec& a) { a.scale = std::numeric_limits<double>::quiet_NaN(); }), "scale"));
  EXPECT_TRUE(names(
      with([](AttentionSpec& a) { a.scale = std::numeric_limits<double>::infinity(); }), "scale"));
  EXPECT_TRUE(names(with([](AttentionSpec& a) { a.softcap = -1.0; }), "softcap"));
  EXPECT_TRUE(names(with([](AttentionSpec& a) { a.softcap = 1e39; }), "softcap"));
  EXPECT_TRUE(names(with([](AttentionSpec& a) { a.softcap = 1e-44; }), "softcap is 1e-44"));
  EXPECT_TRUE(names(with([](AttentionSpec& a) { a.dropout.p = 1.5; }), "dropout.p"));
  EXPECT_EQ(with([](AttentionSpec& a) { a.scale = 1e300; }),
            "scale is 1e+300: it must be finite in float32");
}

TEST(Arguments, AKernelThatCannotRunTheProblemIsAnError) {
  const Trial s = trial(DType::float64, 1, 1, 1, 4, 4, 8, 8);  // float64 is the reference's alone
  EXPECT_THROW(run_forward(s, ""), Unsupported);
  EXPECT_EQ(run_forward(s, "reference_fwd").plan.kernel, "reference_fwd");
  EXPECT_THROW(run_forward(s, "no_such_kernel"), InvalidArgument);
}

TEST(Arguments, MergeSharesNoMemory) {
  const Sizes sizes{1, 2, 3, 4};
  Owned o(DType::float32, sizes), other(DType::float32, sizes);
  Owned lse(DType::float32, {1, 2, 3}), other_lse(DType::float32, {1, 2, 3});
  const auto told = [&](const Tensor& from, const Tensor& statistics) {
    return complaint([&] { merge(o.tensor(), lse.tensor(), from, statistics); });
  };
  EXPECT_TRUE(names(told(o.tensor(), other_lse.tensor()), "memory with o_other"));
  EXPECT_TRUE(names(told(other.tensor(), lse.tensor()), "memory with lse_other"));
  EXPECT_EQ(told(other.tensor(), other_lse.tensor()), "");
}

}  // namespace
}  // namespace tilewise::contract
