#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "tilewise/attention.h"
#include "tilewise/tilewise.h"

namespace {

TEST(Version, HeadersAndLibraryAgree) {
  const std::string headers = std::to_string(TW_VERSION_MAJOR) + "." +
                              std::to_string(TW_VERSION_MINOR) + "." +
                              std::to_string(TW_VERSION_PATCH);
  EXPECT_EQ(tw_version(), headers);
  EXPECT_EQ(tilewise::version(), headers);
}

tw_tensor tensor(float* data, std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) {
  tw_tensor t = TW_INIT(tw_tensor);
  t.data = data;
  t.dtype = TW_FLOAT32;
  t.rank = 4;
  const std::int64_t sizes[] = {b, h, s, d};
  for (int i = 3, stride = 1; i >= 0; --i) {
    t.sizes[i] = sizes[i];
    t.strides[i] = stride;
    stride *= static_cast<int>(sizes[i]);
  }
  return t;
}

/// One head, 4 queries, 6 keys, dim 8; q, k, v are a fixed wave.
struct Example {
  std::vector<float> q, k, v, o, lse, d_o, dq, dk, dv;
  tw_forward_args forward = TW_INIT(tw_forward_args);
  tw_backward_args backward = TW_INIT(tw_backward_args);

  Example() {
    const auto wave = [](std::size_t n, float phase) {
      std::vector<float> x(n);
      for (std::size_t i = 0; i < n; ++i) x[i] = std::sin(0.7F * static_cast<float>(i) + phase);
      return x;
    };
    q = wave(32, 0.0F);
    k = wave(48, 1.0F);
    v = wave(48, 2.0F);
    d_o = wave(32, 3.0F);
    o = dq = std::vector<float>(32, NAN);
    dk = dv = std::vector<float>(48, NAN);
    lse = std::vector<float>(4, NAN);
    forward.q = backward.q = tensor(q.data(), 1, 1, 4, 8);
    forward.k = backward.k = tensor(k.data(), 1, 1, 6, 8);
    forward.v = backward.v = tensor(v.data(), 1, 1, 6, 8);
    forward.o = backward.o = tensor(o.data(), 1, 1, 4, 8);
    tw_tensor l = TW_INIT(tw_tensor);
    l.data = lse.data();
    l.dtype = TW_FLOAT32;
    l.rank = 3;
    l.sizes[0] = l.sizes[1] = 1;
    l.sizes[2] = l.strides[0] = l.strides[1] = 4;
    l.strides[2] = 1;
    forward.lse = backward.lse = l;
    backward.d_o = tensor(d_o.data(), 1, 1, 4, 8);
    backward.dq = tensor(dq.data(), 1, 1, 4, 8);
    backward.dk = tensor(dk.data(), 1, 1, 6, 8);
    backward.dv = tensor(dv.data(), 1, 1, 6, 8);
  }
};

TEST(CApi, SameVerbsSameResults) {
  Example c;
  tw_spec spec = TW_INIT(tw_spec);
  spec.causal = TW_CAUSAL_BOTTOM_RIGHT;
  spec.has_scale = 1;
  spec.scale = 0.5;
  tw_plan plan = TW_INIT(tw_plan);
  ASSERT_EQ(tw_forward(&c.forward, &spec, nullptr, &plan), TW_OK) << tw_last_error();
  EXPECT_EQ(std::string(plan.implementation), "flash");
  ASSERT_EQ(tw_backward(&c.backward, &spec, nullptr, nullptr), TW_OK) << tw_last_error();

  Example cpp;
  const auto t = [](std::vector<float>& x, std::int64_t s) {
    return tilewise::Tensor::bhsd(x.data(), tilewise::DType::float32, 1, 1, s, 8);
  };
  const auto lse =
      tilewise::Tensor::contiguous(cpp.lse.data(), tilewise::DType::float32, {1, 1, 4});
  const tilewise::AttentionSpec s{.scale = 0.5, .causal = tilewise::Causal::bottom_right};
  tilewise::forward({t(cpp.q, 4), t(cpp.k, 6), t(cpp.v, 6), t(cpp.o, 4), lse, {}}, s);
  tilewise::backward({t(cpp.q, 4),
                      t(cpp.k, 6),
                      t(cpp.v, 6),
                      t(cpp.o, 4),
                      lse,
                      t(cpp.d_o, 4),
                      {},
                      t(cpp.dq, 4),
                      t(cpp.dk, 6),
                      t(cpp.dv, 6),
                      {},
                      {},
                      {}},
                     s);
  EXPECT_EQ(c.o, cpp.o);
  EXPECT_EQ(c.lse, cpp.lse);
  EXPECT_EQ(c.dq, cpp.dq);
  EXPECT_EQ(c.dk, cpp.dk);
  EXPECT_EQ(c.dv, cpp.dv);
}

TEST(CApi, OneLaunchNamesAKernelForEachPass) {
  Example c;
  tw_launch launch = TW_INIT(tw_launch);
  launch.kernel = "flash_fwd_scalar+flash_bwd_scalar";
  tw_plan plan = TW_INIT(tw_plan);
  EXPECT_EQ(tw_forward(&c.forward, nullptr, &launch, &plan), TW_OK) << tw_last_error();
  EXPECT_STREQ(plan.kernel, "flash_fwd_scalar");
  EXPECT_EQ(tw_backward(&c.backward, nullptr, &launch, &plan), TW_OK) << tw_last_error();
  EXPECT_STREQ(plan.kernel, "flash_bwd_scalar");
}

TEST(CApi, ErrorsAreCodesAndMessages) {
  Example c;
  tw_spec spec = TW_INIT(tw_spec);
  spec.softcap = -2;
  EXPECT_EQ(tw_forward(&c.forward, &spec, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tw_last_error()).find("softcap is -2"), std::string::npos)
      << tw_last_error();
  tw_launch launch = TW_INIT(tw_launch);
  launch.kernel = "nonesuch";
  EXPECT_EQ(tw_forward(&c.forward, nullptr, &launch, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_forward(nullptr, nullptr, nullptr, nullptr), TW_INVALID_ARGUMENT);
  spec = TW_INIT(tw_spec);
  spec.struct_size = 3;
  EXPECT_EQ(tw_forward(&c.forward, &spec, nullptr, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(std::isnan(c.o[0])) << "nothing is written on an error";
}

TEST(CApi, ValuesOutsideAnEnumAndMissingFunctionsAreNamed) {
  Example c;
  tw_spec spec = TW_INIT(tw_spec);
  tw_launch launch = TW_INIT(tw_launch);
  const auto refused = [&](const std::string& words) {
    EXPECT_EQ(tw_forward(&c.forward, &spec, &launch, nullptr), TW_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tw_last_error()).find(words), std::string::npos) << tw_last_error();
  };
  spec.precision = 3;
  refused("spec.precision is 3: expected a tw_precision, 0 to 2");
  spec.precision = TW_EXACT;
  c.forward.k.device_type = 7;
  refused("k.device_type is 7: expected TW_CPU (0) or TW_CUDA (1)");
  c.forward.k.device_type = TW_CPU;
  spec.bias = c.forward.q;
  spec.bias.dtype = 8;
  refused("bias.dtype is 8");
  spec.bias = TW_INIT(tw_tensor);
  const tw_allocator allocator = TW_INIT(tw_allocator);
  launch.allocator = &allocator;
  refused("allocator.allocate is NULL: expected a function");
  launch.allocator = nullptr;
  tw_executor executor = TW_INIT(tw_executor);
  launch.executor = &executor;
  refused("executor.parallel_for is NULL: expected a function");
  executor.parallel_for = [](void*, std::int64_t, tw_body, void*) {};
  refused("executor.concurrency is 0: expected at least 1");
}

template <class... Structs>
constexpr bool begin_with_their_size() {
  return ((offsetof(Structs, struct_size) == 0) && ...);
}
static_assert(begin_with_their_size<tw_tensor, tw_score_tile, tw_score_mod, tw_expression, tw_spec,
                                    tw_allocator, tw_executor, tw_launch, tw_forward_args,
                                    tw_backward_args, tw_plan>());

TEST(CApi, AnOlderCallerLeavesTheRestAtDefaults) {
  Example c;
  tw_spec spec = TW_INIT(tw_spec);
  spec.struct_size = offsetof(tw_spec, dropout_p);  // knows nothing of what follows
  spec.dropout_p = 1.0;
  ASSERT_EQ(tw_forward(&c.forward, &spec, nullptr, nullptr), TW_OK) << tw_last_error();
  EXPECT_NE(c.o[0], 0.0F);
}

TEST(CApi, APlanWithoutItsSizeIsRefusedBeforeTheLaunch) {
  Example c;
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, 4 * sizeof(tw_plan) + 1}) {
    tw_plan plan = {};
    plan.struct_size = size;
    const std::string words = "plan.struct_size is " + std::to_string(size) + ": expected " +
                              std::to_string(sizeof(tw_plan)) + " (use TW_INIT)";
    const auto refused = [&](tw_status status) {
      EXPECT_EQ(status, TW_INVALID_ARGUMENT);
      EXPECT_EQ(tw_last_error(), words);
    };
    refused(tw_forward(&c.forward, nullptr, nullptr, &plan));
    refused(tw_backward(&c.backward, nullptr, nullptr, &plan));
    refused(tw_plan_forward(&c.forward, nullptr, nullptr, &plan));
    refused(tw_plan_backward(&c.backward, nullptr, nullptr, &plan));
  }
  EXPECT_TRUE(std::isnan(c.o[0])) << "nothing is written on an error";
  EXPECT_TRUE(std::isnan(c.dq[0])) << "nothing is written on an error";
}

TEST(CApi, OptionsOfANewerCallerAreNotDropped) {
  Example c;
  struct Newer {
    tw_spec spec;
    std::int64_t option;
  } newer = {TW_INIT(tw_spec), 0};
  newer.spec.struct_size = sizeof newer;
  ASSERT_EQ(tw_forward(&c.forward, &newer.spec, nullptr, nullptr), TW_OK) << tw_last_error();
  newer.option = std::int64_t{1} << 56;  // its last byte alone
  EXPECT_EQ(tw_forward(&c.forward, &newer.spec, nullptr, nullptr), TW_INVALID_ARGUMENT);
  const std::string message = tw_last_error();
  EXPECT_EQ(message.find("spec.struct_size is " + std::to_string(sizeof newer)), 0U) << message;
  EXPECT_NE(message.find("expected zeros"), std::string::npos) << message;
}

TEST(CApi, CallersAllocatorAndExecutorAreUsed) {
  Example c;
  struct Count {
    std::int64_t allocated = 0, released = 0, tasks = 0;
  } count;
  tw_allocator allocator = TW_INIT(tw_allocator);
  allocator.context = &count;
  allocator.allocate = [](void* context, std::int64_t bytes, std::int32_t, std::int32_t,
                          void*) -> void* {
    static_cast<Count*>(context)->allocated += bytes;
    return std::aligned_alloc(256, static_cast<std::size_t>(bytes + 255) / 256 * 256);
  };
  allocator.release = [](void* context, void* data, std::int64_t bytes, std::int32_t, std::int32_t,
                         void*) {
    static_cast<Count*>(context)->released += bytes;
    std::free(data);
  };
  tw_executor executor = TW_INIT(tw_executor);
  executor.context = &count;
  executor.concurrency = 1;
  executor.parallel_for = [](void* context, std::int64_t tasks, tw_body body, void* body_context) {
    static_cast<Count*>(context)->tasks += tasks;
    for (std::int64_t i = 0; i < tasks; ++i) body(body_context, i, 0);
  };
  tw_launch launch = TW_INIT(tw_launch);
  launch.allocator = &allocator;
  launch.executor = &executor;
  tw_plan plan = TW_INIT(tw_plan);
  ASSERT_EQ(tw_forward(&c.forward, nullptr, &launch, &plan), TW_OK) << tw_last_error();
  EXPECT_EQ(count.allocated, plan.workspace_bytes);
  EXPECT_EQ(count.released, count.allocated);
  EXPECT_GT(count.tasks, 0);
  allocator.allocate = [](void*, std::int64_t, std::int32_t, std::int32_t, void*) -> void* {
    return nullptr;
  };
  EXPECT_EQ(tw_forward(&c.forward, nullptr, &launch, nullptr), TW_OUT_OF_MEMORY);
}

TEST(CApi, AnExecutorThatBreaksItsPromiseIsNamed) {
  const auto message = [](void (*parallel_for)(void*, std::int64_t, tw_body, void*)) {
    Example c;
    tw_executor executor = TW_INIT(tw_executor);
    executor.concurrency = 2;
    executor.parallel_for = parallel_for;
    tw_launch launch = TW_INIT(tw_launch);
    launch.executor = &executor;
    EXPECT_EQ(tw_forward(&c.forward, nullptr, &launch, nullptr), TW_INVALID_ARGUMENT);
    return std::string(tw_last_error());
  };
  EXPECT_NE(message([](void*, std::int64_t, tw_body, void*) {}).find("ran 0 of"),
            std::string::npos);
  EXPECT_NE(message([](void*, std::int64_t tasks, tw_body body, void* context) {
              for (std::int64_t i = 0; i < tasks; ++i) body(context, i, 2);
            }).find("worker 2: expected less than"),
            std::string::npos);
  EXPECT_NE(message([](void*, std::int64_t tasks, tw_body body, void* context) {
              for (std::int64_t i = 0; i <= tasks; ++i) body(context, i, 0);
            }).find("gave task"),
            std::string::npos);
}

TEST(CApi, PlansWithoutData) {
  Example c;
  c.forward.q.data = c.forward.k.data = c.forward.v.data = c.forward.o.data = c.forward.lse.data =
      nullptr;
  tw_plan plan = TW_INIT(tw_plan);
  ASSERT_EQ(tw_plan_forward(&c.forward, nullptr, nullptr, &plan), TW_OK) << tw_last_error();
  EXPECT_GT(plan.flops, 0.0);
  char* text = nullptr;
  ASSERT_EQ(tw_explain_forward(&c.forward, nullptr, nullptr, &text), TW_OK) << tw_last_error();
  EXPECT_NE(std::string(text).find(plan.kernel), std::string::npos);
  tw_free_string(text);
  EXPECT_EQ(tw_forward(&c.forward, nullptr, nullptr, nullptr), TW_INVALID_ARGUMENT)
      << "data is null";
}

TEST(CApi, ScoreModOfAnotherLanguage) {
  Example c;
  tw_score_mod mod = TW_INIT(tw_score_mod);
  mod.apply = [](void*, const tw_score_tile* x) {  // hide everything but key 2
    ASSERT_EQ(x->struct_size, sizeof(tw_score_tile));
    for (std::int64_t r = 0; r < x->rows; ++r) {
      for (std::int64_t j = 0; j < x->cols; ++j) {
        if (x->j0 + j != 2) x->scores[r * x->row_stride + j] = -INFINITY;
      }
    }
  };
  tw_spec spec = TW_INIT(tw_spec);
  spec.score_mod = &mod;
  ASSERT_EQ(tw_forward(&c.forward, &spec, nullptr, nullptr), TW_OK) << tw_last_error();
  for (std::size_t i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(c.o[i], c.v[2 * 8 + i % 8]);
}

TEST(CApi, FormulasWithCapturedTensors) {
  Example c;
  float slope = 0.5F;
  std::int32_t keys[] = {0, 0, 1, 0, 0, 0};
  std::int32_t none = 0;
  const auto vector = [](void* data, std::int32_t dtype, std::int64_t size) {
    tw_tensor t = TW_INIT(tw_tensor);
    t.data = data;
    t.dtype = dtype;
    t.rank = 1;
    t.sizes[0] = size;
    t.strides[0] = 1;
    return t;
  };
  const char* mask_names[] = {"seen"};
  const tw_tensor mask_tensors[] = {vector(keys, TW_INT32, 6)};
  tw_expression mask = TW_INIT(tw_expression);
  mask.text = "seen[j] == 1 | j == i";
  mask.names = mask_names;
  mask.tensors = mask_tensors;
  mask.count = 1;
  // The formula meets them in another order than the caller lists them.
  const char* score_names[] = {"offset", "slope"};
  const tw_tensor score_tensors[] = {vector(&none, TW_INT32, 1), vector(&slope, TW_FLOAT32, 1)};
  tw_expression score = TW_INIT(tw_expression);
  score.text = "score*slope + float(offset)";
  score.names = score_names;
  score.tensors = score_tensors;
  score.count = 2;
  tw_spec spec = TW_INIT(tw_spec);
  spec.score_expression = &score;
  spec.mask_expression = &mask;
  tw_launch reference = TW_INIT(tw_launch);
  reference.implementation = "reference";
  ASSERT_EQ(tw_forward(&c.forward, &spec, &reference, nullptr), TW_OK) << tw_last_error();
  for (std::size_t i = 16; i < 24; ++i) EXPECT_FLOAT_EQ(c.o[i], c.v[i]) << "query 2 sees key 2";

  float dslope = NAN;
  tw_tensor dcaptures[] = {TW_INIT(tw_tensor), vector(&dslope, TW_FLOAT32, 1)};
  c.backward.dcaptures = dcaptures;
  c.backward.dcaptures_count = 2;
  ASSERT_EQ(tw_backward(&c.backward, &spec, &reference, nullptr), TW_OK) << tw_last_error();
  const auto loss = [&](float at) {
    slope = at;
    Example moved;
    EXPECT_EQ(tw_forward(&moved.forward, &spec, &reference, nullptr), TW_OK);
    double sum = 0.0;
    for (std::size_t n = 0; n < 32; ++n) sum += static_cast<double>(moved.o[n] * c.d_o[n]);
    return sum;
  };
  EXPECT_NEAR(dslope, (loss(0.51F) - loss(0.49F)) / 0.02, 1e-3);

  const auto message = [&] {
    EXPECT_EQ(tw_backward(&c.backward, &spec, nullptr, nullptr), TW_INVALID_ARGUMENT);
    return std::string(tw_last_error());
  };
  c.backward.dcaptures_count = 1;
  EXPECT_NE(message().find("dcaptures_count is 1: expected 0 or score_expression.count, 2"),
            std::string::npos);
  c.backward.dcaptures_count = 0;
  score.text = "score*slope";
  EXPECT_NE(message().find("score_expression's offset is not read"), std::string::npos);
  score.text = "score*slop";
  EXPECT_NE(message().find("at character 7"), std::string::npos) << message();
  score.text = nullptr;
  EXPECT_NE(message().find("score_expression.text is NULL"), std::string::npos);
}

TEST(CApi, SelectsBlocks) {
  // Two blocks of queries, three of keys of which the second and third resemble the first two.
  std::vector<float> q(2 * 16 * 8), k(3 * 16 * 8);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = i / 128 == (i % 8) ? 4.0F : 0.0F;
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = i / 128 == (i % 8) + 1 ? 4.0F : 0.0F;
  const auto rows = [](std::vector<float>& x, std::int64_t count) {
    tw_tensor t = TW_INIT(tw_tensor);
    t.data = x.data();
    t.dtype = TW_FLOAT32;
    t.rank = 4;
    const std::int64_t sizes[] = {1, 1, count, 8}, strides[] = {count * 8, count * 8, 8, 1};
    std::copy_n(sizes, 4, t.sizes);
    std::copy_n(strides, 4, t.strides);
    return t;
  };
  tw_select_args args = TW_INIT(tw_select_args);
  args.q = rows(q, 32);
  args.k = rows(k, 48);
  args.block_q = args.block_k = 16;
  args.weight_mean = 1.0;
  args.rule = TW_BLOCKS_TOP_K;
  args.count = 1;
  args.drop_diagonal = args.drop_first = 1;
  std::int64_t bound = 0;
  ASSERT_EQ(tw_selected_blocks_bound(&args, &bound), TW_OK) << tw_last_error();
  ASSERT_EQ(bound, 2);
  std::vector<std::int32_t> offsets(3, -1), index(2, -1);
  tw_tensor t = TW_INIT(tw_tensor);
  t.dtype = TW_INT32;
  t.data = index.data();
  t.rank = 1;
  t.sizes[0] = 2;
  t.strides[0] = 1;
  args.block_index = t;
  t.data = offsets.data();
  t.rank = 3;
  t.sizes[0] = t.sizes[1] = 1;
  t.sizes[2] = t.strides[0] = t.strides[1] = 3;
  t.strides[2] = 1;
  args.block_row_offsets = t;
  ASSERT_EQ(tw_select_blocks(&args, nullptr), TW_OK) << tw_last_error();
  EXPECT_EQ(offsets, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(index, (std::vector<std::int32_t>{1, 2}));
  args.drop_first = 0;
  ASSERT_EQ(tw_selected_blocks_bound(&args, &bound), TW_OK);
  EXPECT_EQ(bound, 4) << "the first block beside the best one";
  args.rule = 3;
  EXPECT_EQ(tw_select_blocks(&args, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tw_last_error()).find("args.rule is 3"), std::string::npos);
}

}  // namespace
