#include "problem/apart.h"

#include <gtest/gtest.h>

#include "spoiled_call.h"

namespace tilewise {
namespace {

TEST(Apart, OutputsMustNotOverlap) {
  expect_parts(forward_message([](Call& c) { c.forward.o.strides[1] = 0; }), {"o is", "overlap"});
  expect_parts(forward_message([](Call& c) { c.forward.o.strides[2] = 3; }), {"o is", "overlap"});
  EXPECT_EQ(forward_message([](Call& c) { c.forward.q.strides[1] = 0; }), "accepted");
  expect_parts(backward_message([](Call& c) { c.backward.dk.strides[0] = 0; }),
               {"dk is", "overlap"});
  EXPECT_EQ(backward_message([](Call& c) { c.backward.d_o.strides = {0, 0, 0, 0}; }), "accepted");
}

TEST(Apart, OutputsShareMemoryWithNothing) {
  expect_parts(forward_message([](Call& c) { c.forward.o.data = c.forward.v.data; }),
               {"o is float32 (2, 4, 5, 6)", "shares memory with v"});
  expect_parts(forward_message([](Call& c) { c.forward.lse.data = c.forward.o.data; }),
               {"lse is", "shares memory with o"});
  expect_parts(backward_message([](Call& c) { c.backward.dq.data = c.backward.q.data; }),
               {"dq is", "shares memory with q"});
  expect_parts(backward_message([](Call& c) { c.backward.dv.data = c.backward.dk.data; }),
               {"dv is", "shares memory with dk"});
  // Its last element is q's first.
  expect_parts(forward_message([](Call& c) {
                 c.forward.o.data = static_cast<float*>(c.forward.q.data) - c.forward.o.numel() + 1;
               }),
               {"o is", "shares memory with q"});
  expect_parts(forward_message([](Call& c) {
                 c.spec.bias = Tensor::contiguous(c.forward.o.data, DType::float32, {7});
               }),
               {"o is", "shares memory with bias"});
  EXPECT_EQ(forward_message([](Call& c) {
              c.forward.o.data = static_cast<float*>(c.forward.q.data) - c.forward.o.numel();
            }),
            "accepted");
}

/// score + table[i], whose gradient is wanted.
void capture_table(Call& c) {
  c.spec.score_expression = Expression::parse(
      "score + table[i]",
      std::vector{Captured{"table", Tensor::contiguous(c.memory.data(), DType::float32, {5})}});
  c.backward.dcaptures = {Tensor::contiguous(c.memory.data() + 64, DType::float32, {5})};
}

TEST(Apart, OutputsShareMemoryWithNothingThatIsCaptured) {
  EXPECT_EQ(backward_message(capture_table), "accepted");
  expect_parts(forward_message([](Call& c) {
                 capture_table(c);
                 c.forward.o.data = c.memory.data();
               }),
               {"o is", "shares memory with score_expression's table"});
  expect_parts(backward_message([](Call& c) {
                 capture_table(c);
                 c.backward.dcaptures[0].data = c.memory.data();
               }),
               {"dcaptures is", "shares memory with score_expression's table"});
  expect_parts(backward_message([](Call& c) {
                 capture_table(c);
                 c.backward.dcaptures[0].data = c.backward.dk.data;
               }),
               {"dcaptures is", "shares memory with dk"});
}

/// dk and dv as slices of one packed gradient (B, S, 2, H, 8), dv from element `at` on.
void pack_gradients(Call& c, std::int64_t at) {
  c.backward.v.sizes[3] = c.backward.dv.sizes[3] = 8;
  c.backward.o.sizes[3] = c.backward.d_o.sizes[3] = 8;
  for (Tensor* t : {&c.backward.dk, &c.backward.dv}) t->strides = {224, 8, 32, 1};
  c.backward.dv.data = static_cast<float*>(c.backward.dk.data) + at;
}

TEST(Apart, OutputsMayInterleave) {
  EXPECT_EQ(backward_message([](Call& c) { pack_gradients(c, 16); }), "accepted");
}

TEST(Apart, OutputsThatInterleaveShareNoElement) {
  for (const std::int64_t at : {0, 8, 15, 17, 24, 15 + 224, 32}) {
    expect_parts(backward_message([&](Call& c) { pack_gradients(c, at); }),
                 {"dv is float32 (2, 2, 7, 8)", "shares memory with dk"});
  }
}

}  // namespace
}  // namespace tilewise
