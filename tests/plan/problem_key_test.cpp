#include "plan/problem_key.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

namespace tilewise {
namespace {

Problem problem() {
  const auto tensor = [](std::int64_t heads, std::int64_t seq) {
    return Tensor::bhsd(nullptr, DType::bfloat16, 2, heads, seq, 64);
  };
  Problem p;
  p.pass = Pass::backward;
  p.dtype = DType::bfloat16;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_k = 2;
  p.seq_q = p.total_q = 32;
  p.seq_k = p.total_k = 48;
  p.head_dim = p.head_dim_v = 64;
  p.scale = 0.125F;
  p.scale64 = 0.125;
  p.q = p.o = p.d_o = p.dq = tensor(4, 32);
  p.k = p.v = p.dk = p.dv = tensor(2, 48);
  p.lse = Tensor::contiguous(nullptr, DType::float32, {2, 4, 32});
  return p;
}

expression::Function function(const char* text, std::vector<Tensor> captures) {
  auto program = std::make_shared<expression::Program>();
  program->text = text;
  return {.program = program, .captures = std::move(captures)};
}

using Change = std::function<void(Problem&)>;

TEST(ProblemKey, TellsApartWhatPlanningReads) {
  static const ScoreMod mod;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"pass", [](Problem& p) { p.pass = Pass::forward; }},
      {"device", [](Problem& p) { p.device.index = 1; }},
      {"dtype", [](Problem& p) { p.dtype = DType::float16; }},
      {"batch", [](Problem& p) { p.batch = 3; }},
      {"heads_q", [](Problem& p) { p.heads_q = 8; }},
      {"heads_k", [](Problem& p) { p.heads_k = 4; }},
      {"seq_q", [](Problem& p) { p.seq_q = 31; }},
      {"seq_k", [](Problem& p) { p.seq_k = 47; }},
      {"total_q", [](Problem& p) { p.total_q = 31; }},
      {"total_k", [](Problem& p) { p.total_k = 47; }},
      {"head_dim", [](Problem& p) { p.head_dim = 63; }},
      {"head_dim_v", [](Problem& p) { p.head_dim_v = 63; }},
      {"packed", [](Problem& p) { p.packed = true; }},
      {"sequences of their own",
       [](Problem& p) {
         static int offsets[2];
         p.packed = true;
         p.cu_seqlens_k.data = offsets;
       }},
      {"paged", [](Problem& p) { p.paged = true; }},
      {"page_size", [](Problem& p) { p.page_size = 16; }},
      {"scale", [](Problem& p) { p.scale64 = 0.25; }},
      {"softcap", [](Problem& p) { p.softcap = 30.0; }},
      {"causal", [](Problem& p) { p.causal = Causal::top_left; }},
      {"left", [](Problem& p) { p.left = 7; }},
      {"right", [](Problem& p) { p.right = 0; }},
      {"score_mod", [](Problem& p) { p.score_mod = &mod; }},
      {"dropout", [](Problem& p) { p.dropout.p = 0.1; }},
      {"deterministic", [](Problem& p) { p.deterministic = true; }},
      {"precision", [](Problem& p) { p.precision = Precision::tf32; }},
      {"saved", [](Problem& p) { p.saved.bytes = 256; }},
      {"stride", [](Problem& p) { p.k.strides[2] = 128; }},
      {"size", [](Problem& p) { p.v.sizes[3] = 32; }},
      {"type", [](Problem& p) { p.lse.dtype = DType::float16; }},
      {"no LSE", [](Problem& p) { p.lse = {}; }},
      {"mask", [](Problem& p) { p.mask = p.q; }},
      {"bias", [](Problem& p) { p.bias = p.q; }},
      {"dbias", [](Problem& p) { p.dbias = p.q; }},
      {"alibi", [](Problem& p) { p.alibi_slopes = p.lse; }},
      {"sinks", [](Problem& p) { p.sinks = p.lse; }},
      {"dsinks", [](Problem& p) { p.dsinks = p.lse; }},
      {"dLSE", [](Problem& p) { p.d_lse = p.lse; }},
      {"key lengths", [](Problem& p) { p.key_lengths = p.lse; }},
      {"cu_seqlens_q", [](Problem& p) { p.cu_seqlens_q = p.lse; }},
      {"cu_seqlens_k", [](Problem& p) { p.cu_seqlens_k = p.lse; }},
      {"block table", [](Problem& p) { p.block_table = p.lse; }},
      {"block list", [](Problem& p) { p.block_list.row_offsets = p.lse; }},
      {"block size", [](Problem& p) { p.block_list.block_q = 64; }},
      {"score", [](Problem& p) { p.score_function = function("a", {}); }},
      {"another score", [](Problem& p) { p.score_function = function("b", {}); }},
      {"mask", [](Problem& p) { p.mask_function = function("a", {}); }},
      {"score and mask",
       [](Problem& p) { p.score_function = p.mask_function = function("a", {}); }},
      {"capture", [](Problem& p) { p.score_function = function("a", {p.lse}); }},
      {"capture's type", [](Problem& p) { p.score_function = function("a", {p.q}); }},
      {"dcaptures",
       [](Problem& p) {
         p.score_function = function("a", {p.lse});
         p.dcaptures = {p.lse};
       }},
  };
  const std::string key = problem_key(problem());
  std::vector<std::string> keys = {key};
  for (const auto& [name, change] : changes) {
    Problem p = problem();
    change(p);
    const std::string changed = problem_key(p);
    for (const std::string& other : keys) EXPECT_NE(changed, other) << name;
    keys.push_back(changed);
  }
  EXPECT_NE(problem_key(problem(), "flash"), key);
}

TEST(ProblemKey, DoesNotTellApartWhatOnlyTheRunReads) {
  alignas(16) static float data[64];
  const std::string key = problem_key(problem());
  Problem p = problem();
  p.q.data = data;
  p.k.data = &data[1];
  p.dropout.seed = 5;
  EXPECT_EQ(problem_key(p), key);
  Problem planned = problem();
  planned.saved.bytes = 256;
  p.saved = {data, sizeof data};
  EXPECT_EQ(problem_key(p), problem_key(planned)) << "saved state is planned by its size alone";
}

TEST(ProblemKey, TellsApartWhetherValuesAreColumnsOfKeys) {
  alignas(16) static float data[64];
  Problem p = problem();
  p.head_dim_v = p.v.sizes[3] = 32;
  EXPECT_TRUE(has_values_in_keys(p));
  const std::string key = problem_key(p);
  p.k.data = p.v.data = data;
  EXPECT_EQ(problem_key(p), key);
  p.v.data = &data[32];
  EXPECT_FALSE(has_values_in_keys(p));
  EXPECT_NE(problem_key(p), key);
  p = problem();
  p.head_dim_v = 32;
  p.v = Tensor::bhsd(nullptr, DType::bfloat16, 2, 2, 48, 32);
  EXPECT_FALSE(has_values_in_keys(p)) << "rows of their own";
}

TEST(ProblemKey, TellsAlignmentApartOnAGpu) {
  alignas(16) static float data[64];
  const auto key_at = [](float* address) {
    Problem p = problem();
    p.q.device = {DeviceType::cuda, 0};
    p.q.data = address;
    return problem_key(p);
  };
  EXPECT_EQ(key_at(nullptr), key_at(&data[4]));
  EXPECT_NE(key_at(nullptr), key_at(&data[1]));
}

TEST(ProblemKey, HostLengthsAreRead) {
  Problem p = problem();
  EXPECT_FALSE(reads_host_lengths(p));
  p.key_lengths = Tensor::contiguous(nullptr, DType::int32, {2});
  EXPECT_TRUE(reads_host_lengths(p));
  p.key_lengths.device = {DeviceType::cuda, 0};
  EXPECT_FALSE(reads_host_lengths(p));
}

}  // namespace
}  // namespace tilewise
