#include "contract/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>

#include "problem/problem.h"
#include "reference/elements.h"
#include "reference/unfused.h"

namespace tilewise::contract {
namespace {

constexpr std::size_t kGuardBytes = 4096;
constexpr auto kNanByte = std::byte{0xFF};  // NaN in every float type

/// Workspace that holds NaN.
class NanAllocator : public Allocator {
 public:
  void* allocate(std::int64_t bytes, Device device, void* stream) override {
    void* data = default_allocator().allocate(bytes, device, stream);
    std::memset(data, 0xFF, static_cast<std::size_t>(bytes));
    return data;
  }
  void release(void* data, std::int64_t bytes, Device device, void* stream) noexcept override {
    default_allocator().release(data, bytes, device, stream);
  }
};

/// A trial's tensors.
struct Tensors {
  Owned q, k, v, d_o, d_lse;
  Owned o, lse, dq, dk, dv, dbias, dsinks;

  explicit Tensors(const Trial& s)
      : q(s.dtype, q_sizes(s, s.dim), s.q),
        k(s.dtype, k_sizes(s, s.dim), s.k),
        v(s.dtype, k_sizes(s, s.dim_v), s.v),
        o(s.dtype, q_sizes(s, s.dim_v)),
        lse(DType::float32, lse_sizes(s)) {}

  void add_gradients(const Trial& s) {
    d_o = Owned(s.dtype, q_sizes(s, s.dim_v), s.d_o);
    if (!s.d_lse.empty()) d_lse = Owned(DType::float32, lse_sizes(s), s.d_lse);
    dq = Owned(s.dtype, q_sizes(s, s.dim));
    dk = Owned(s.dtype, k_sizes(s, s.dim));
    dv = Owned(s.dtype, k_sizes(s, s.dim_v));
    const Tensor& bias = s.spec.bias;
    if (bias.defined()) {
      dbias = Owned(bias.dtype, Sizes(bias.sizes.begin(), bias.sizes.begin() + bias.rank));
    }
    if (s.spec.sinks.defined()) dsinks = Owned(DType::float32, {s.heads_q});
  }

  ForwardTensors forward() {
    return {.q = q.tensor(),
            .k = k.tensor(),
            .v = v.tensor(),
            .o = o.tensor(),
            .lse = lse.tensor(),
            .saved = {}};
  }
  BackwardTensors backward() {
    return {.q = q.tensor(),
            .k = k.tensor(),
            .v = v.tensor(),
            .o = o.tensor(),
            .lse = lse.tensor(),
            .d_o = d_o.tensor(),
            .d_lse = d_lse.tensor(),
            .dq = dq.tensor(),
            .dk = dk.tensor(),
            .dv = dv.tensor(),
            .dbias = dbias.tensor(),
            .dsinks = dsinks.tensor(),
            .saved = {}};
  }

 private:
  static Sizes q_sizes(const Trial& s, std::int64_t dim) {
    return {s.batch, s.heads_q, s.seq_q, dim};
  }
  static Sizes k_sizes(const Trial& s, std::int64_t dim) {
    return {s.batch, s.heads_k, s.seq_k, dim};
  }
  static Sizes lse_sizes(const Trial& s) {
    return s.packed ? Sizes{s.heads_q, s.seq_q} : Sizes{s.batch, s.heads_q, s.seq_q};
  }
};

double max_error(const Values& actual, const Values& expected) {
  double error = 0.0;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const bool same =
        actual[n] == expected[n] || (std::isnan(actual[n]) && std::isnan(expected[n]));
    if (same) continue;
    const double difference = std::abs(actual[n] - expected[n]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    error = std::max(error, difference);
  }
  return error;
}

void expect_within_yardstick(const Values& actual, const Values& truth, const Values& unfused,
                             const char* name) {
  ASSERT_EQ(actual.size(), truth.size()) << name;
  const double yardstick = max_error(unfused, truth);
  ASSERT_TRUE(std::isfinite(yardstick))
      << name << ": the unfused formula overflows; judge this case otherwise";
  EXPECT_LE(max_error(actual, truth), 2 * yardstick + 1e-5) << name;
}

template <class Test>
void skip_what_cannot_run(Test& test, Pass pass) {
  const Trial tiny = trial(DType::float32, 1, 1, 1, 1, 1, 8, 8);
  if (refuses(tiny, test.GetParam(), pass))
    GTEST_SKIP() << test.GetParam().kernel << " does not run float32 here";
}

template <class Test>
std::vector<DType> types_of(Test& test, Pass pass) {
  std::vector<DType> types;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Trial many_rows = trial(dtype, 1, 1, 1, 64, 64, 8, 8);  // not what decoding takes
    if (!refuses(many_rows, test.GetParam(), pass)) types.push_back(dtype);
  }
  return types;
}

}  // namespace

Owned::Owned(DType dtype, const Sizes& sizes) {
  tensor_.dtype = dtype;
  tensor_.rank = static_cast<int>(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    tensor_.sizes[axis] = sizes[axis];
    tensor_.strides[axis] = stride;
    stride *= sizes[axis];
  }
  const auto bytes = static_cast<std::size_t>(stride * dtype_bytes(dtype));
  memory_.assign(bytes + 2 * kGuardBytes, kNanByte);
  tensor_.data = memory_.data() + kGuardBytes;
}

Owned::Owned(DType dtype, const Sizes& sizes, const Values& values) : Owned(dtype, sizes) {
  if (static_cast<std::int64_t>(values.size()) != tensor_.numel()) {
    throw std::logic_error("a test gives " + std::to_string(values.size()) + " values for " +
                           tensor_.describe());
  }
  reference::from_double(tensor_, values);
}

Values Owned::values() const {
  return tensor_.defined() ? reference::to_double(tensor_) : Values{};
}

bool Owned::guards_intact() const {
  const auto intact = [](std::byte b) { return b == kNanByte; };
  return memory_.empty() || (std::all_of(memory_.begin(), memory_.begin() + kGuardBytes, intact) &&
                             std::all_of(memory_.end() - kGuardBytes, memory_.end(), intact));
}

std::string Owned::bits() const {
  if (memory_.empty()) return {};
  const auto* begin = reinterpret_cast<const char*>(memory_.data());
  return {begin + kGuardBytes, begin + memory_.size() - kGuardBytes};
}

Owned integers(const std::vector<std::int64_t>& values, DType dtype) {
  return Owned(dtype, {static_cast<std::int64_t>(values.size())},
               Values(values.begin(), values.end()));
}

Owned booleans(const Sizes& sizes, const std::vector<bool>& values) {
  return Owned(DType::boolean, sizes, Values(values.begin(), values.end()));
}

Values randn(std::int64_t count, std::uint64_t seed, double scale) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(bits);
  return values;
}

Values constant(std::int64_t count, double value) {
  return Values(static_cast<std::size_t>(count), value);
}

Values counting(std::int64_t count, double first) {
  Values values;
  for (std::int64_t n = 0; n < count; ++n) values.push_back(first + static_cast<double>(n));
  return values;
}

Trial& Trial::fill(std::uint64_t seed, double scale) {
  q = randn(batch * heads_q * seq_q * dim, 4 * seed, scale);
  k = randn(batch * heads_k * seq_k * dim, 4 * seed + 1, scale);
  v = randn(batch * heads_k * seq_k * dim_v, 4 * seed + 2, scale);
  d_o = randn(batch * heads_q * seq_q * dim_v, 4 * seed + 3);
  return *this;
}

Trial trial(DType dtype, std::int64_t batch, std::int64_t heads_q, std::int64_t heads_k,
            std::int64_t seq_q, std::int64_t seq_k, std::int64_t dim, std::int64_t dim_v) {
  Trial s;
  s.dtype = dtype;
  s.batch = batch;
  s.heads_q = heads_q;
  s.heads_k = heads_k;
  s.seq_q = seq_q;
  s.seq_k = seq_k;
  s.dim = dim;
  s.dim_v = dim_v;
  s.q = constant(batch * heads_q * seq_q * dim, 0.0);
  s.k = constant(batch * heads_k * seq_k * dim, 0.0);
  s.v = constant(batch * heads_k * seq_k * dim_v, 0.0);
  s.d_o = constant(batch * heads_q * seq_q * dim_v, 1.0);
  return s;
}

std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.kernel; }

std::vector<Row> cpu_rows(Pass pass) {
  std::vector<Row> rows;
  for (const KernelInfo& info : kernels()) {
    if (info.device == DeviceType::cpu && info.pass == pass)
      rows.push_back({info.name, info.implementation});
  }
  return rows;
}

std::string row_test_name(const testing::TestParamInfo<Row>& info) { return info.param.kernel; }

Plan run_forward(const ForwardTensors& t, const AttentionSpec& spec, const std::string& kernel,
                 Executor* executor) {
  NanAllocator allocator;
  const Launch launch{.allocator = &allocator, .executor = executor};
  Plan plan = forward(t, spec, launch, {.implementation = {}, .kernel = kernel});
  EXPECT_TRUE(kernel.empty() || plan.kernel == kernel) << plan.kernel;  // CONTRACT 19
  return plan;
}

Plan run_backward(const BackwardTensors& t, const AttentionSpec& spec, const std::string& kernel,
                  Executor* executor) {
  NanAllocator allocator;
  const Launch launch{.allocator = &allocator, .executor = executor};
  Plan plan = backward(t, spec, launch, {.implementation = {}, .kernel = kernel});
  EXPECT_TRUE(kernel.empty() || plan.kernel == kernel) << plan.kernel;
  return plan;
}

Results run_forward(const Trial& s, const std::string& kernel, Executor* executor) {
  Tensors t(s);
  Results r;
  r.plan = run_forward(t.forward(), s.spec, kernel, executor);
  r.o = t.o.values();
  r.lse = t.lse.values();
  r.bits = t.o.bits() + t.lse.bits();
  EXPECT_TRUE(t.o.guards_intact() && t.lse.guards_intact()) << "forward wrote outside O or LSE";
  return r;
}

Results run_backward(const Trial& s, const Row& row, Executor* executor) {
  Tensors t(s);
  t.add_gradients(s);
  NanAllocator allocator;
  const Launch launch{.allocator = &allocator, .executor = executor};
  forward(t.forward(), s.spec, launch, {.implementation = row.implementation, .kernel = {}});
  Results r;
  r.plan = run_backward(t.backward(), s.spec, row.kernel, executor);
  r.dq = t.dq.values();
  r.dk = t.dk.values();
  r.dv = t.dv.values();
  r.dbias = t.dbias.values();
  r.dsinks = t.dsinks.values();
  for (const Owned* out : {&t.dq, &t.dk, &t.dv, &t.dbias, &t.dsinks}) {
    r.bits += out->bits();
    EXPECT_TRUE(out->guards_intact())
        << "backward wrote outside " << out->values().size() << " elements";
  }
  return r;
}

reference::Forward forward_truth(const Trial& s) {
  Tensors t(s);
  return reference::forward_f64(make_problem(t.forward(), s.spec, Purpose::run));
}

reference::Backward backward_truth(const Trial& s) {
  Tensors t(s);
  t.add_gradients(s);
  return reference::backward_f64(make_problem(t.backward(), s.spec, Purpose::run));
}

void expect_conforms(const Trial& s, const Results& forward) {
  Tensors t(s);
  const Problem problem = make_problem(t.forward(), s.spec, Purpose::run);
  const reference::Forward truth = reference::forward_f64(problem);
  const reference::Forward unfused = reference::unfused_forward(problem);
  expect_within_yardstick(forward.o, truth.o, unfused.o, "O");
  double largest = 1.0;
  for (const double lse : truth.lse) {
    if (std::isfinite(lse)) largest = std::max(largest, std::abs(lse));
  }
  expect_near(forward.lse, truth.lse, 1e-5 * largest, "LSE");
}

void expect_gradients_conform(const Trial& s, const Results& backward) {
  Tensors t(s);
  t.add_gradients(s);
  const Problem problem = make_problem(t.backward(), s.spec, Purpose::run);
  const reference::Backward truth = reference::backward_f64(problem);
  const reference::Backward unfused = reference::unfused_backward(problem);
  expect_within_yardstick(backward.dq, truth.dq, unfused.dq, "dQ");
  expect_within_yardstick(backward.dk, truth.dk, unfused.dk, "dK");
  expect_within_yardstick(backward.dv, truth.dv, unfused.dv, "dV");
  expect_within_yardstick(backward.dbias, truth.dbias, unfused.dbias, "dbias");
  expect_within_yardstick(backward.dsinks, truth.dsinks, unfused.dsinks, "dsinks");
}

void expect_near(const Values& actual, const Values& expected, double tolerance, const char* name) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    if (actual[n] == expected[n]) continue;  // equal infinities have no difference
    if (std::isnan(actual[n]) && std::isnan(expected[n])) continue;
    ASSERT_LE(std::abs(actual[n] - expected[n]), tolerance)
        << name << "[" << n << "] is " << actual[n] << ", expected " << expected[n];
    ASSERT_FALSE(std::isnan(actual[n])) << name << "[" << n << "], expected " << expected[n];
  }
}

void expect_all(const Values& actual, double value, const char* name) {
  for (std::size_t n = 0; n < actual.size(); ++n)
    ASSERT_EQ(actual[n], value) << name << "[" << n << "]";
}

void expect_finite(const Values& actual, const char* name) {
  for (std::size_t n = 0; n < actual.size(); ++n) {
    ASSERT_TRUE(std::isfinite(actual[n])) << name << "[" << n << "] is " << actual[n];
  }
}

Values slice(const Values& values, std::int64_t begin, std::int64_t end) {
  return {values.begin() + begin, values.begin() + end};
}

namespace {
void skip_refused(const Trial& s, const Row& row, Pass pass) {
  if (!refuses(s, row, pass)) return;
  ASSERT_NE(row.implementation, "reference") << "the oracle refuses a part of the contract";
  GTEST_SKIP() << row.kernel << " refuses this problem";
}
}  // namespace

bool Forward::skips(const Trial& s) {
  skip_refused(s, GetParam(), Pass::forward);
  return IsSkipped() || HasFatalFailure();
}

bool Backward::skips(const Trial& s) {
  skip_refused(s, GetParam(), Pass::backward);
  return IsSkipped() || HasFatalFailure();
}

void Forward::SetUp() { skip_what_cannot_run(*this, Pass::forward); }
void Backward::SetUp() { skip_what_cannot_run(*this, Pass::backward); }

void TypedForward::SetUp() {
  types_ = types_of(*this, Pass::forward);
  if (types_.empty()) GTEST_SKIP() << "this machine cannot run " << GetParam().kernel;
}
void TypedBackward::SetUp() {
  types_ = types_of(*this, Pass::backward);
  if (types_.empty()) GTEST_SKIP() << "this machine cannot run " << GetParam().kernel;
}

bool refuses(const Trial& s, const Row& row, Pass pass) {
  Tensors t(s);
  t.add_gradients(s);
  const Choice choice{.implementation = {}, .kernel = row.kernel};
  try {
    if (pass == Pass::forward) {
      plan(t.forward(), s.spec, choice);
    } else {
      plan(t.backward(), s.spec, choice);
    }
    return false;
  } catch (const Unsupported&) {
    return true;
  }
}

}  // namespace tilewise::contract
