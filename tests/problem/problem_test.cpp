#include "problem/problem.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "problem/arguments.h"
#include "spoiled_call.h"

namespace tilewise {
namespace {

TEST(Problem, AcceptsWhatIsRight) {
  EXPECT_EQ(forward_message([](Call&) {}), "accepted");
  EXPECT_EQ(backward_message([](Call&) {}), "accepted");
}

TEST(Problem, NamesTheTensorItsValueAndTheAcceptedSet) {
  expect_parts(forward_message([](Call& c) { c.forward.q = {}; }), {"q is not given", "required"});
  expect_parts(forward_message([](Call& c) { c.forward.k.dtype = DType::float16; }),
               {"k is float16 (2, 2, 7, 8)", "one type", "float32"});
  expect_parts(forward_message([](Call& c) { c.forward.q.dtype = DType::int32; }),
               {"q is int32", "float64, float32, bfloat16 or float16"});
  expect_parts(forward_message([](Call& c) { c.forward.k.sizes[3] = 9; }),
               {"k is float32 (2, 2, 7, 9)", "head dim must equal q's, 8"});
  expect_parts(forward_message([](Call& c) { c.forward.v.sizes[2] = 6; }),
               {"v is float32", "equal those of k"});
  expect_parts(forward_message([](Call& c) { c.forward.k.sizes[0] = c.forward.v.sizes[0] = 3; }),
               {"k is", "batch"});
  expect_parts(forward_message([](Call& c) { c.forward.o.sizes[3] = 8; }),
               {"o is float32 (2, 4, 5, 8)", "(2, 4, 5, 6)"});
  expect_parts(forward_message([](Call& c) { c.forward.lse.dtype = DType::float64; }),
               {"lse is float64", "float32"});
  expect_parts(forward_message([](Call& c) {
                 c.forward.v.device = {DeviceType::cuda, 1};
               }),
               {"v is float32 (2, 2, 7, 6) on cuda:1", "on q's device, cpu"});
  expect_parts(forward_message([](Call& c) { c.forward.v.data = nullptr; }), {"v is", "null"});
  expect_parts(forward_message([](Call& c) {
                 c.forward.q.sizes[3] = 0;
                 c.forward.k.sizes[3] = 0;
               }),
               {"q is", "at least 1"});
}

TEST(Problem, SizesAndStridesThatNoAddressReachesAreRefused) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  expect_parts(forward_message([](Call& c) { c.forward.q.sizes[2] = INT64_MAX; }),
               {"q is float32 (2, 4, 9223372036854775807, 8)", "spans more than 2^56 elements"});
  expect_parts(forward_message([](Call& c) { c.forward.k.strides[2] = INT64_MIN; }),
               {"k is", "strides", "-9223372036854775808", "spans more than 2^56 elements"});
  expect_parts(forward_message([](Call& c) {
                 c.spec.bias = c.forward.q;
                 c.spec.bias.rank = 7;
               }),
               {"bias is", "at most 4 axes"});
  EXPECT_THROW(Tensor::bshd(nullptr, DType::float32, kHuge, kHuge, 1, 1), InvalidArgument);
  // 2^80 elements are not 0.
  expect_parts(forward_message([](Call& c) {
                 c.forward.k.data = nullptr;
                 c.forward.k.sizes[1] = c.forward.k.sizes[2] = kHuge;
               }),
               {"k is", "its data pointer is null"});
}

TEST(Problem, AnAxisOfOneElementNeverMoves) {
  for (const std::int64_t stride : {INT64_MAX, INT64_MIN, std::int64_t{0}, std::int64_t{9}}) {
    Tensor t = Tensor::bhsd(nullptr, DType::float32, 1, 4, 5, 8);
    t.strides[0] = stride;
    EXPECT_EQ(arguments::canonical("q", t).strides[0], stride == 9 ? 9 : 0);
  }
}

TEST(Problem, AGpuReadsWholeElements) {
  alignas(8) static std::byte memory[16];
  const auto message = [](std::size_t offset, Device device) -> std::string {
    try {
      arguments::require_data("k",
                              Tensor::contiguous(memory + offset, DType::float32, {1}, device));
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message(4, {DeviceType::cuda, 0}), "accepted");
  EXPECT_EQ(message(2, {}), "accepted");
  expect_parts(message(2, {DeviceType::cuda, 0}), {"k is", "not a multiple of 4 bytes"});
}

TEST(Problem, StridesOfIntegerArgumentsAreJudged) {
  constexpr std::int64_t kFar = std::int64_t{1} << 62;
  static std::int32_t zeros[8] = {};
  static bool flags[2] = {};
  const auto far = [](std::int64_t size) {
    Tensor t = Tensor::contiguous(zeros, DType::int32, {size});
    t.strides[0] = kFar;
    return t;
  };
  const auto message = [&](const std::function<void(AttentionSpec&)>& give) {
    return forward_message([&](Call& c) { give(c.spec); });
  };
  const auto list = [](AttentionSpec& spec) -> BlockList& {
    return spec.block_list = {Tensor::contiguous(zeros, DType::int32, {1, 1, 2}),
                              Tensor::contiguous(zeros, DType::int32, {2}),
                              Tensor::contiguous(flags, DType::boolean, {2}), 5, 7};
  };
  EXPECT_EQ(message([&](AttentionSpec& s) { list(s); }), "accepted");
  expect_parts(message([&](AttentionSpec& s) { s.key_lengths = far(2); }),
               {"key_lengths is int32 (2)", "strides (4611686018427387904)", "more than 2^56"});
  expect_parts(message([&](AttentionSpec& s) { list(s).row_offsets.strides[2] = kFar; }),
               {"block_list.row_offsets is", "strides", "more than 2^56"});
  expect_parts(message([&](AttentionSpec& s) { list(s).block_index = far(2); }),
               {"block_list.block_index is", "strides", "more than 2^56"});
  expect_parts(message([&](AttentionSpec& s) { list(s).block_full.strides[0] = kFar; }),
               {"block_list.block_full is", "strides", "more than 2^56"});
  expect_parts(message([&](AttentionSpec& s) { list(s).block_index.sizes[0] = -1; }),
               {"block_list.block_index is", "expected int32 (pairs)"});
}

TEST(Problem, BlocksMayBeLargerThanTheTensor) {
  static std::int32_t offsets[] = {0, 1}, index[] = {0};
  const auto message = [&](std::int64_t rows) {
    return forward_message([&](Call& c) {
      c.spec.block_list = {Tensor::contiguous(offsets, DType::int32, {1, 1, rows + 1}),
                           Tensor::contiguous(index, DType::int32, {1}),
                           {},
                           INT64_MAX,
                           INT64_MAX};
    });
  };
  EXPECT_EQ(message(1), "accepted");
  expect_parts(message(0), {"block_list.row_offsets is int32 (1, 1, 1)", "(B|1, Hq|1, 2)"});
}

TEST(Problem, GroupedHeadsMustDivide) {
  for (const std::int64_t heads_k : {3, 8}) {
    Call call(heads_k);
    EXPECT_THROW(make_problem(call.forward, call.spec, Purpose::run), InvalidArgument) << heads_k;
  }
  for (const std::int64_t heads_k : {1, 2, 4}) {
    Call call(heads_k);
    EXPECT_EQ(make_problem(call.forward, call.spec, Purpose::run).group(), 4 / heads_k);
  }
}

TEST(Problem, JudgesNumbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  expect_parts(forward_message([&](Call& c) { c.spec.scale = nan; }), {"scale", "finite"});
  expect_parts(forward_message([&](Call& c) { c.spec.scale = inf; }), {"scale is inf", "finite"});
  expect_parts(forward_message([&](Call& c) { c.spec.scale = 1e39; }), {"scale", "float32"});
  EXPECT_EQ(forward_message([](Call& c) { c.spec.scale = -0.5; }), "accepted");
  EXPECT_EQ(forward_message([](Call& c) { c.spec.scale = 0.0; }), "accepted");
  expect_parts(forward_message([](Call& c) { c.spec.softcap = -1.0; }), {"softcap", ">= 0"});
  expect_parts(forward_message([](Call& c) { c.spec.softcap = 1e-39; }), {"softcap", "1.18e-38"});
  expect_parts(forward_message([](Call& c) { c.spec.softcap = 3e38; }), {"softcap", "2e38"});
  EXPECT_EQ(forward_message([](Call& c) { c.spec.softcap = 1e38; }), "accepted");
  expect_parts(forward_message([](Call& c) { c.spec.dropout.p = 1.5; }), {"dropout.p", "[0, 1]"});
  expect_parts(forward_message([&](Call& c) { c.spec.dropout.p = nan; }), {"dropout.p", "[0, 1]"});
}

TEST(Problem, ACounterOnTheHostIsAddedToDropoutsOffset) {
  Call call;
  std::int64_t counter = 7;
  call.spec.dropout = {.p = 0.5, .seed = 1, .offset = 5};
  call.spec.dropout_counter = Tensor::contiguous(&counter, DType::int64, {1});
  EXPECT_EQ(make_problem(call.forward, call.spec, Purpose::run).dropout.offset, 12U);
  expect_parts(forward_message([](Call& c) {
                 c.spec.dropout_counter = Tensor::contiguous(c.memory.data(), DType::int32, {1});
               }),
               {"dropout_counter is int32", "(1)"});
}

TEST(Problem, BiasAndMaskBroadcast) {
  const auto with_bias = [](std::initializer_list<std::int64_t> sizes, DType dtype) {
    return forward_message(
        [&](Call& c) { c.spec.bias = Tensor::contiguous(c.memory.data(), dtype, sizes); });
  };
  EXPECT_EQ(with_bias({2, 4, 5, 7}, DType::float16), "accepted");
  EXPECT_EQ(with_bias({7}, DType::float32), "accepted");
  EXPECT_EQ(with_bias({4, 1, 7}, DType::bfloat16), "accepted");
  expect_parts(with_bias({3, 1, 1, 1}, DType::float32), {"bias is", "broadcasts", "(2, 4, 5, 7)"});
  expect_parts(with_bias({5, 7}, DType::int64), {"bias is int64", "float type"});
  expect_parts(forward_message([](Call& c) {
                 c.spec.mask = Tensor::contiguous(c.memory.data(), DType::uint8, {5, 7});
               }),
               {"mask is uint8", "bool"});

  Call call;
  call.spec.bias = Tensor::contiguous(call.memory.data(), DType::float32, {4, 1, 7});
  const Problem p = make_problem(call.forward, call.spec, Purpose::run);
  EXPECT_EQ(p.bias.sizes, (std::array<std::int64_t, 4>{2, 4, 5, 7}));
  EXPECT_EQ(p.bias.strides, (std::array<std::int64_t, 4>{0, 7, 0, 1}));
}

TEST(Problem, GradientsNeedWhatTheyAreOf) {
  expect_parts(backward_message([](Call& c) { c.backward.lse = {}; }),
               {"lse", "backward requires it"});
  expect_parts(backward_message([](Call& c) {
                 c.backward.dbias = Tensor::contiguous(c.memory.data(), DType::float32, {5, 7});
               }),
               {"dbias", "requires bias"});
  expect_parts(backward_message([](Call& c) {
                 c.backward.dsinks = Tensor::contiguous(c.memory.data(), DType::float32, {4});
               }),
               {"dsinks", "requires sinks"});
  expect_parts(backward_message([](Call& c) {
                 c.spec.bias = Tensor::contiguous(c.memory.data(), DType::float32, {5, 7});
                 c.backward.dbias = Tensor::contiguous(c.memory.data(), DType::float32, {1, 7});
               }),
               {"dbias is", "shape and type of bias"});
}

class Packed : public ::testing::Test {
 protected:
  std::string message(std::vector<std::int32_t> q, std::vector<std::int32_t> k,
                      std::int64_t max_q = 0, std::int64_t max_k = 0) {
    std::vector<float> memory(4096);
    const auto n_q = static_cast<std::int64_t>(q.size());
    const auto n_k = static_cast<std::int64_t>(k.size());
    const Tensor rows = Tensor::packed(memory.data(), DType::float32, 10, 2, 4);
    AttentionSpec spec;
    spec.cu_seqlens_q = Tensor::contiguous(q.data(), DType::int32, {n_q});
    spec.cu_seqlens_k = Tensor::contiguous(k.data(), DType::int32, {n_k});
    spec.max_seqlen_q = max_q;
    spec.max_seqlen_k = max_k;
    spec.mask = mask_;
    for (Tensor* t : {&spec.cu_seqlens_q, &spec.cu_seqlens_k}) {
      if (hidden_) t->data = nullptr;
      if (stride_ != 0) t->strides[0] = stride_;
    }
    const Purpose purpose = hidden_ ? Purpose::plan : Purpose::run;
    try {
      Tensor o = rows;
      o.data = output_.data();
      problem_ = make_problem(ForwardTensors{rows, rows, rows, o, {}, {}}, spec, purpose);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "accepted";
  }
  Problem problem_;
  Tensor mask_;
  std::vector<float> output_ = std::vector<float>(256);
  bool hidden_ = false;  ///< the host cannot read the offsets
  std::int64_t stride_ = 0;
};

TEST_F(Packed, OffsetsAreChecked) {
  EXPECT_EQ(message({0, 3, 3, 9}, {0, 0, 4, 10}), "accepted");
  EXPECT_EQ(problem_.batch, 3);
  EXPECT_EQ(problem_.seq_q, 6);
  EXPECT_EQ(problem_.seq_k, 6);
  expect_parts(message({1, 3}, {0, 3}), {"cu_seqlens_q", "first offset", "1"});
  expect_parts(message({0, 5, 4}, {0, 1, 2}), {"cu_seqlens_q", "offset 2 is 4"});
  expect_parts(message({0, 10}, {0, 20}), {"cu_seqlens_k", "offset 1 is 20", "10"});  // C110
  expect_parts(message({0, 4, 8}, {0, 4}), {"cu_seqlens_k", "as many offsets"});
  expect_parts(message({0, 8}, {0, 8}, 5), {"max_seqlen_q is 5", "8 rows"});
}

TEST_F(Packed, NoSequenceIsLongerThanTheTensor) {
  for (const bool hidden : {false, true}) {
    hidden_ = hidden;
    for (const std::int64_t bound : {std::int64_t{11}, std::int64_t{1} << 40, INT64_MAX}) {
      EXPECT_EQ(message({0, 3, 9}, {0, 4, 10}, bound, bound), "accepted");
      EXPECT_EQ(problem_.seq_q, 10) << bound;
      EXPECT_EQ(problem_.seq_k, 10) << bound;
    }
    EXPECT_EQ(message({0, 3, 9}, {0, 4, 10}, 7, 8), "accepted");
    EXPECT_EQ(problem_.seq_q, 7);
    EXPECT_EQ(problem_.seq_k, 8);
  }
}

TEST_F(Packed, AMaskKeepsTheColumnsOfItsBound) {
  static bool visible[10 * 16] = {};
  mask_ = Tensor::contiguous(visible, DType::boolean, {1, 10, 16});
  EXPECT_EQ(message({0, 3, 9}, {0, 4, 10}, 16, 16), "accepted");
  EXPECT_EQ(problem_.seq_q, 10);
  EXPECT_EQ(problem_.seq_k, 16);
  expect_parts(message({0, 3, 9}, {0, 4, 10}, 16, 17), {"mask is", "(1|Hq, total_q, max_k)"});
  mask_ = Tensor::contiguous(visible, DType::boolean, {1, 10, 1});
  EXPECT_EQ(message({0, 3, 9}, {0, 4, 10}, INT64_MAX, INT64_MAX), "accepted");
  EXPECT_EQ(problem_.seq_k, 10);
}

TEST_F(Packed, StridesOfOffsetsAreJudged) {
  stride_ = std::int64_t{1} << 62;
  hidden_ = true;
  expect_parts(message({0, 3, 9}, {0, 4, 10}, 10, 10),
               {"cu_seqlens_q is int32 (3)", "strides (4611686018427387904)", "more than 2^56"});
}

TEST(Problem, WhatNeedsAnotherArgumentIsNotIgnoredWithoutIt) {
  const auto of_spec = [](const std::function<void(AttentionSpec&)>& spoil) {
    return forward_message([&](Call& c) { spoil(c.spec); });
  };
  EXPECT_EQ(of_spec([](AttentionSpec& s) { s.max_seqlen_q = 5; }),
            "max_seqlen_q is 5: requires cu_seqlens_q");
  EXPECT_EQ(of_spec([](AttentionSpec& s) { s.max_seqlen_k = -1; }),
            "max_seqlen_k is -1: requires cu_seqlens_k or block_table");
  EXPECT_EQ(backward_message([](Call& c) { c.spec.max_seqlen_k = 7; }),
            "max_seqlen_k is 7: requires cu_seqlens_k or block_table");
  EXPECT_EQ(of_spec([](AttentionSpec& s) { s.block_list.block_q = 64; }),
            "block_list.block_q is 64: requires block_list.row_offsets");
  EXPECT_EQ(of_spec([](AttentionSpec& s) { s.block_list.block_k = 64; }),
            "block_list.block_k is 64: requires block_list.row_offsets");
  static std::uint8_t full[3] = {};
  expect_parts(of_spec([](AttentionSpec& s) {
                 s.block_list.block_full = Tensor::contiguous(full, DType::uint8, {3});
               }),
               {"block_list.block_full is uint8 (3)", "requires block_list.row_offsets"});
}

TEST(Problem, KeyLengthsAndPages) {
  expect_parts(forward_message([](Call& c) {
                 static std::int32_t lengths[] = {7, 8};
                 c.spec.key_lengths = Tensor::contiguous(lengths, DType::int32, {2});
               }),
               {"key_lengths", "entry 1 is 8", "0 to 7"});
  expect_parts(forward_message([](Call& c) {
                 static std::int32_t lengths[] = {7, 7};
                 static std::int32_t table[] = {0, 9};
                 c.spec.key_lengths = Tensor::contiguous(lengths, DType::int32, {2});
                 c.spec.block_table = Tensor::contiguous(table, DType::int32, {2, 1});
               }),
               {"block_table", "entry (1, 0) is 9", "0 to 1"});
}

/// Packed queries of 2 sequences over pools of 3 pages of 4 rows.
class PackedOverPages : public ::testing::Test {
 protected:
  std::vector<float> memory_ = std::vector<float>(1024);
  std::vector<std::int32_t> offsets_{0, 3, 8}, lengths_{7, 2}, table_{2, 0, 1, -1};
  AttentionSpec spec_;
  Problem problem_;

  void SetUp() override {
    spec_.cu_seqlens_q = Tensor::contiguous(offsets_.data(), DType::int32, {3});
    spec_.key_lengths = Tensor::contiguous(lengths_.data(), DType::int32, {2});
    spec_.block_table = Tensor::contiguous(table_.data(), DType::int32, {2, 2});
  }
  std::string message() {
    const Tensor q = Tensor::packed(memory_.data(), DType::float32, 10, 4, 8);
    const Tensor pool = Tensor::bshd(memory_.data(), DType::float32, 3, 4, 2, 8);
    const Tensor o = Tensor::packed(memory_.data() + 512, DType::float32, 10, 4, 8);
    const Tensor lse = Tensor::contiguous(memory_.data() + 900, DType::float32, {4, 10});
    try {
      problem_ = make_problem(ForwardTensors{q, pool, pool, o, lse, {}}, spec_, Purpose::run);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "accepted";
  }
};

TEST_F(PackedOverPages, SequencesHaveQueriesByOffsetsAndKeysByLengths) {
  ASSERT_EQ(message(), "accepted");
  EXPECT_EQ(problem_.batch, 2);
  EXPECT_EQ(problem_.seq_q, 5);
  EXPECT_EQ(problem_.seq_k, 8);
  EXPECT_TRUE(problem_.packed && problem_.paged && !problem_.packed_keys());
  const Sequence second = problem_.sequence(1);
  EXPECT_EQ(second.q_begin, 3);
  EXPECT_EQ(second.q_length, 5);
  EXPECT_EQ(second.k_begin, 0);
  EXPECT_EQ(second.k_length, 2);
  const Problem::KeyRow row = problem_.key_row(0, problem_.sequence(0), 5);
  EXPECT_EQ(row.batch, 0);
  EXPECT_EQ(row.row, 1);
  EXPECT_NE(problem_.k.strides[0], 0);
  spec_.max_seqlen_k = 7;
  ASSERT_EQ(message(), "accepted");
  EXPECT_EQ(problem_.seq_k, 7);
}

TEST_F(PackedOverPages, WhatDoesNotFitIsNamed) {
  const AttentionSpec right = spec_;
  spec_.cu_seqlens_k = spec_.cu_seqlens_q;
  expect_parts(message(), {"cu_seqlens_k", "cannot be combined with block_table"});
  spec_ = right;
  spec_.key_lengths = {};
  expect_parts(message(), {"key_lengths is not given", "block_table requires it"});
  spec_ = right;
  lengths_[1] = 5;
  expect_parts(message(), {"block_table", "entry (1, 1) is -1", "0 to 2"});
  lengths_[1] = 9;
  expect_parts(message(), {"key_lengths", "entry 1 is 9", "0 to 8"});
  lengths_[1] = 2;
  spec_.max_seqlen_k = 6;
  expect_parts(message(), {"key_lengths", "entry 0 is 7", "0 to 6"});
  spec_.max_seqlen_k = -1;
  expect_parts(message(), {"key_lengths", "entry 0 is 7", "0 to 0"});
  spec_.max_seqlen_k = -2;
  expect_parts(message(), {"max_seqlen_k is -2", ">= 0"});
  spec_ = right;
  spec_.block_table = Tensor::contiguous(table_.data(), DType::int32, {1, 2});
  expect_parts(message(), {"block_table", "B = 2"});
}

TEST(Problem, VisibleKeysFollowTheContract) {
  Problem p;
  const Sequence wide{0, 2, 0, 5};
  const Sequence tall{0, 5, 0, 2};
  const auto range = [&](const Sequence& s, std::int64_t i) {
    const KeyRange r = p.visible_keys(s, i);
    return std::pair(r.begin, r.end);
  };
  p.causal = Causal::bottom_right;
  p.right = 0;
  EXPECT_EQ(range(wide, 0), std::pair(0L, 4L));  // C018: mean of 1..4
  EXPECT_EQ(range(wide, 1), std::pair(0L, 5L));
  EXPECT_EQ(range(tall, 2).second, 0);
  EXPECT_EQ(range(tall, 3), std::pair(0L, 1L));
  p.causal = Causal::top_left;
  p.right = Problem::kUnbounded;
  EXPECT_EQ(range(wide, 0), std::pair(0L, 1L));
  EXPECT_EQ(range(tall, 4), std::pair(0L, 2L));
  p.causal = Causal::none;
  p.left = 1;
  p.right = -1;  // a negative bound is an offset: only the key before the diagonal
  EXPECT_EQ(range({0, 4, 0, 4}, 2), std::pair(1L, 2L));
  EXPECT_TRUE(p.visible_keys({0, 4, 0, 4}, 0).empty());
}

}  // namespace
}  // namespace tilewise
