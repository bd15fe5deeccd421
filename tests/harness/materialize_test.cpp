#include "harness/materialize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "harness/memory_meter.h"
#include "problem/problem.h"
#include "reference/elements.h"

namespace tilewise {
namespace {

using reference::load;
using reference::to_double;

MaterializedCase make(const std::string& line, std::uint64_t seed = 1) {
  return materialize(parse_case(line), seed);
}

double at(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return load(t, a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d * t.strides[3]);
}

TEST(Materialize, EveryLayoutHoldsTheSameValues) {
  const std::vector<double> expected = to_double(make("b2 h2 q5 k7 d6 f32").forward().k);
  for (const char* layout : {"bshd", "sbhd", "transposed", "step2", "padded", "reversed"}) {
    const MaterializedCase c = make(std::string("b2 h2 q5 k7 d6 f32 layout=") + layout);
    EXPECT_EQ(to_double(c.forward().k), expected) << layout;
  }
}

TEST(Materialize, StridesAreThoseOfTheLayout) {
  EXPECT_EQ(make("b2 h3 s5 d4 layout=bshd").forward().q.strides,
            (std::array<std::int64_t, 4>{60, 4, 12, 1}));
  EXPECT_EQ(make("b2 h3 s5 d4 layout=transposed").forward().q.strides[3], 5);
  EXPECT_EQ(make("b2 h3 s5 d4 layout=step2").forward().q.strides[3], 2);
  EXPECT_EQ(make("b2 h3 s5 d4 layout=padded").forward().q.strides[2], 7);
  EXPECT_EQ(make("b2 h3 s5 d4 layout=reversed").forward().q.strides[2], -4);
  const MaterializedCase expanded = make("b2 h3 s5 d4 layout=expanded");
  EXPECT_EQ(expanded.forward().k.strides[0], 0);
  EXPECT_NE(expanded.forward().o.strides[0], 0);
  const MaterializedCase qkv = make("b2 h4/2 s5 d4 layout=qkv");
  const auto* q = static_cast<const float*>(qkv.forward().q.data);
  EXPECT_EQ(static_cast<const float*>(qkv.forward().k.data), q + 16);
  EXPECT_EQ(static_cast<const float*>(qkv.forward().v.data), q + 24);
  EXPECT_EQ(qkv.forward().k.strides[2], 32);
  MaterializedCase sum = make("b2 h3 s5 d4 do=expanded:ones");
  EXPECT_EQ(sum.backward().d_o.strides, (std::array<std::int64_t, 4>{}));
  EXPECT_EQ(to_double(sum.backward().d_o), std::vector<double>(120, 1.0));
}

TEST(Materialize, ProblemsAreAccepted) {
  for (const char* line :
       {"b2 h2 s8 d4 bias=1,h,q,k mask=b,1,1,k:some0.5 sink alibi", "b3 h1 s4 d4 rank3",
        "packed=3,0,5/4,2,0:tail=1,2 h2 d4 bias=h,q,k", "b2 h2 s8 d4 blocks=4,4:b,h:0.5:full",
        "b2 h2 s8 d4 layout=qkv dlse", "b2 h2 s8 d4 bias=1,1,q,k:expanded mask=b,h,q,k:step2"}) {
    MaterializedCase c = make(line);
    EXPECT_NO_THROW(make_problem(c.forward(), c.spec(), Purpose::run)) << line;
    EXPECT_NO_THROW(make_problem(c.backward(), c.spec(), Purpose::run)) << line;
    const PlannedCase planned(parse_case(line));
    EXPECT_EQ(planned.forward().q.data, nullptr);
    EXPECT_NO_THROW(make_problem(planned.forward(), planned.spec(), Purpose::plan)) << line;
    EXPECT_NO_THROW(make_problem(planned.backward(), planned.spec(), Purpose::plan)) << line;
  }
  MaterializedCase paged = make("b2 h2 q1 k30 d4 lengths=30,3 paged=8 pass=fwd");
  EXPECT_NO_THROW(make_problem(paged.forward(), paged.spec(), Purpose::run));
}

TEST(Materialize, PlansDoNotFillLongCaptures) {
  const auto captured = [](const char* keys, Device device) {
    const std::string line = std::string("h1 q1 d4 pass=fwd k") + keys +
                             " mask_expr='doc[j] == 0' captures='doc:i32[Sk]=j // 64'";
    const PlannedCase planned(parse_case(line), device);
    return planned.spec().mask_expression.captures().front().tensor().data;
  };
  EXPECT_NE(captured("4096", {}), nullptr);  // the blocks that the mask leaves are counted
  EXPECT_EQ(captured("1073741824", {}), nullptr);
  EXPECT_EQ(captured("4096", {DeviceType::cuda, 0}), nullptr);
}

TEST(Materialize, RandomValuesFollowSeedAndTensor) {
  const std::vector<double> first = to_double(make("h2 s300 d40", 1).forward().q);
  EXPECT_EQ(to_double(make("h2 s300 d40", 1).forward().q), first);
  EXPECT_NE(to_double(make("h2 s300 d40", 2).forward().q), first);
  EXPECT_NE(to_double(make("h2 s300 d40", 1).forward().k), first);
  double sum = 0.0;
  double squares = 0.0;
  for (double value : first) {
    sum += value;
    squares += value * value;
  }
  const auto n = static_cast<double>(first.size());
  EXPECT_NEAR(sum / n, 0.0, 4.0 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1.0, 4.0 * std::sqrt(2.0 / n));
  MaterializedCase c = make("h2 s300 d40", 1);
  c.refresh(2);
  EXPECT_EQ(to_double(c.forward().q), to_double(make("h2 s300 d40", 2).forward().q));
}

TEST(Materialize, FillsAndPokes) {
  const MaterializedCase c = make("b1 h2 s3 d4 q=iota*2+1 k=heads v=eye poke=v:0,1,*,0-1:9");
  EXPECT_EQ(at(c.forward().q, 0, 1, 2, 3), 5.0);
  EXPECT_EQ(at(c.forward().k, 0, 1, 2, 0), 1.0);
  EXPECT_EQ(at(c.forward().v, 0, 0, 2, 2), 1.0);
  EXPECT_EQ(at(c.forward().v, 0, 0, 2, 1), 0.0);
  EXPECT_EQ(at(c.forward().v, 0, 1, 2, 1), 9.0);
  EXPECT_EQ(at(make("h2 s3 d4 q=arange").forward().q, 0, 1, 0, 1), 13.0);
  EXPECT_THROW(make("h2 s3 d4 poke=q:0,2,0,0:1"), InvalidArgument);
}

TEST(Materialize, MasksHideTheirRegions) {
  const MaterializedCase c = make("b2 h1 s6 d4 mask=b,1,q,k:keys0-1@1:rows5:upper");
  const Tensor& mask = c.spec().mask;
  EXPECT_EQ(at(mask, 0, 0, 3, 0), 1.0);
  EXPECT_EQ(at(mask, 1, 0, 3, 0), 0.0);
  EXPECT_EQ(at(mask, 0, 0, 5, 0), 0.0);
  EXPECT_EQ(at(mask, 0, 0, 3, 4), 0.0);
  const std::vector<double> some = to_double(make("b4 h4 s64 d4 mask=b,h,q,k:some0.3").spec().mask);
  double visible = 0.0;
  for (double value : some) visible += value;
  EXPECT_NEAR(visible / static_cast<double>(some.size()), 0.7, 0.01);
  // What the wrong stride would read says "visible".
  const MaterializedCase stepped = make("b1 h1 s6 d4 mask=1,1,q,k:all:step2");
  const auto* bytes = static_cast<const std::uint8_t*>(stepped.spec().mask.data);
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[1], 1);
}

TEST(Materialize, BiasValues) {
  const MaterializedCase c =
      make("b2 h1 s6 d4 f32 bias=b,1,q,k:bf16:zeros:-inf@rows2:3@keys0@1:min@keys5");
  const Tensor& bias = c.spec().bias;
  EXPECT_EQ(bias.dtype, DType::bfloat16);
  EXPECT_EQ(at(bias, 0, 0, 2, 3), -HUGE_VAL);
  EXPECT_EQ(at(bias, 0, 0, 2, 0), -HUGE_VAL);
  EXPECT_EQ(at(bias, 1, 0, 2, 0), 3.0);  // the last that holds wins
  EXPECT_EQ(at(bias, 1, 0, 1, 1), 0.0);
  EXPECT_EQ(at(bias, 0, 0, 1, 5), -0x1.FEp127);
}

TEST(Materialize, BeyondLengthsIsNan) {
  const MaterializedCase c = make("b2 h2 q3 k8 d4 lengths=8,2 bias=b,1,1,k");
  EXPECT_FALSE(std::isnan(at(c.forward().k, 0, 1, 7, 0)));
  EXPECT_FALSE(std::isnan(at(c.forward().v, 1, 1, 1, 0)));
  EXPECT_TRUE(std::isnan(at(c.forward().k, 1, 0, 2, 0)));
  EXPECT_TRUE(std::isnan(at(c.forward().v, 1, 1, 7, 3)));
  EXPECT_TRUE(std::isnan(at(c.spec().bias, 1, 0, 0, 2)));
  MaterializedCase packed = make("packed=3,2:tail=2,1 h1 d4");
  EXPECT_TRUE(std::isnan(at(packed.forward().q, 0, 0, 5, 0)));
  EXPECT_TRUE(std::isnan(at(packed.backward().d_o, 0, 0, 6, 0)));
  EXPECT_FALSE(std::isnan(at(packed.forward().q, 0, 0, 4, 0)));
  const MaterializedCase paged = make("b2 h1 q1 k20 d4 lengths=20,3 paged=8 pass=fwd");
  std::int64_t rows = 0;
  for (std::int64_t page = 0; page < paged.forward().k.sizes[0]; ++page) {
    for (std::int64_t slot = 0; slot < 8; ++slot)
      rows += std::isnan(at(paged.forward().k, page, 0, slot, 0)) ? 0 : 1;
  }
  EXPECT_EQ(rows, 23);
}

TEST(Materialize, OutputsAreNanAndGuardsNoticeWrites) {
  for (const char* layout : {"bhsd", "step2", "padded", "qkv"}) {
    MaterializedCase c = make(std::string("b1 h2 s5 d4 layout=") + layout);
    for (double value : to_double(c.forward().o)) EXPECT_TRUE(std::isnan(value));
    for (double value : to_double(c.backward().dq)) EXPECT_TRUE(std::isnan(value));
    reference::from_double(c.forward().o, std::vector<double>(40, 1.0));
    EXPECT_EQ(c.damage(), "") << layout;
    c.poison_outputs();
    EXPECT_TRUE(std::isnan(at(c.forward().o, 0, 0, 0, 0)));
    static_cast<float*>(c.forward().lse.data)[-1] = 0.0F;
    EXPECT_EQ(c.damage(), "lse") << layout;
  }
  MaterializedCase stepped = make("b1 h2 s5 d4 layout=step2");
  static_cast<float*>(stepped.forward().o.data)[1] = 0.0F;  // a gap
  EXPECT_EQ(stepped.damage(), "o");
  MaterializedCase after = make("b1 h1 s5 d4");
  static_cast<float*>(after.backward().dv.data)[20] = 0.0F;
  EXPECT_EQ(after.damage(), "dv");
}

TEST(Materialize, BackwardsTensorsComeWhenAsked) {
  MemoryMeter meter;
  const std::unique_ptr<DeviceMemory> memory = host_memory(&meter);
  MaterializedCase c(parse_case("b1 h2 s64 d32"), 1, *memory, {.guards = false});
  const std::int64_t tensor_bytes = 2 * 64 * 32 * std::int64_t{4};
  const std::int64_t lse_bytes = 2 * 64 * std::int64_t{4};
  EXPECT_EQ(meter.live_bytes(), 4 * tensor_bytes + lse_bytes);  // q, k, v, o
  c.backward();
  EXPECT_EQ(meter.live_bytes(), 8 * tensor_bytes + lse_bytes);  // and d_o, dq, dk, dv
}

TEST(Materialize, ForwardResultsAreRounded) {
  MaterializedCase c = make("b1 h1 s2 d2 bf16");
  c.set_forward_results({1.0, 1.001, 2.0, 3.0}, {0.5, 0.25});
  EXPECT_EQ(to_double(c.backward().o), (std::vector<double>{1.0, 1.0, 2.0, 3.0}));
  EXPECT_EQ(to_double(c.backward().lse), (std::vector<double>{0.5, 0.25}));
}

TEST(Materialize, BlockListsAreWellFormed) {
  const MaterializedCase c = make("b2 h2 s70 d4 causal blocks=16,16:b,h:0.6:full");
  const BlockList& list = c.spec().block_list;
  EXPECT_EQ(list.row_offsets.sizes, (std::array<std::int64_t, 4>{2, 2, 6, 0}));
  const std::vector<double> full = to_double(list.block_full);
  const std::vector<double> index = to_double(list.block_index);
  const std::vector<double> offsets = to_double(list.row_offsets);
  EXPECT_EQ(offsets.back(), static_cast<double>(index.size()));
  // Causal: a full block lies wholly at or below the diagonal, so never on it.
  for (std::size_t row = 0; row < 5; ++row) {
    for (auto n = static_cast<std::size_t>(offsets[row]);
         n < static_cast<std::size_t>(offsets[row + 1]); ++n) {
      EXPECT_EQ(full[n] != 0.0, index[n] < static_cast<double>(row) && row < 5) << row;
    }
  }
}

TEST(Materialize, RefusesWhatNoTensorsExpress) {
  EXPECT_THROW(make("h2 s4 rank3"), InvalidArgument);
  EXPECT_THROW(make("q4 k5 layout=qkv"), InvalidArgument);
  EXPECT_THROW(make("q4 k8 lengths=8 paged=4"), InvalidArgument);
  EXPECT_THROW(make("s4 blocks=0,4:1,1:1"), InvalidArgument);
  for (const char* density : {"1.5", "-0.1", "nan"}) {
    EXPECT_THROW(make(std::string("s4 blocks=4,4:1,1:") + density), InvalidArgument) << density;
  }
}

}  // namespace
}  // namespace tilewise
