// CUDA rows without a GPU: every row judges and prices every case for machines that are only named.
#include "cuda/rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/ask_row.h"
#include "harness/materialize.h"
#include "plan/accounting.h"
#include "problem/problem.h"
#include "tilewise/attention.h"

namespace tilewise::cuda {
namespace {

constexpr Device kDevice{DeviceType::cuda, 0};

Hardware named(int arch, int shared_kib) {
  Hardware hw;
  hw.device = kDevice;
  hw.name = "sm_" + std::to_string(arch);
  hw.arch = arch;
  hw.shared_kib = shared_kib;
  hw.multiprocessors = 100;
  hw.l2_bytes = std::int64_t{40} << 20;
  hw.memory_bytes = std::int64_t{80} << 30;
  hw.matrix_tflops = 300.0;
  hw.float32_tflops = 20.0;
  hw.bandwidth_gbps = 1500.0;
  hw.launch_us = 3.0;
  return hw;
}

/// Problems of a case that its device could run; packed offsets on a device need what a case does
/// not give.
std::vector<Problem> problems_of(const Case& c) {
  std::vector<Problem> problems;
  try {
    const PlannedCase planned(c, kDevice);
    problems.push_back(make_problem(planned.forward(), planned.spec(), Purpose::plan));
    problems.push_back(make_problem(planned.backward(), planned.spec(), Purpose::plan));
  } catch (const InvalidArgument&) {
    // Cases of invalid arguments are for the tests of problem/.
  }
  return problems;
}

void expect_sound(const KernelRow& row, const Problem& p, const Hardware& machine,
                  const std::string& where) {
  if (row.pass != p.pass || !refusal_by(row, p, machine).empty()) return;
  const Cost cost = cost_by(row, p, machine);
  EXPECT_TRUE(std::isfinite(cost.ms) && cost.ms >= 0.0) << where << ": " << cost.ms << " ms";
  EXPECT_TRUE(std::isfinite(cost.bytes_moved) && cost.bytes_moved >= 0.0) << where;
  EXPECT_GE(cost.splits, 1) << where;
  for (const MemoryPart& item : cost.memory) EXPECT_GE(item.bytes, 0) << where << ": " << item.name;
}

TEST(CudaRows, JudgeAndPriceEveryCase) {
  const Hardware machines[] = {named(80, 163), named(86, 99), named(90, 227), named(120, 99)};
  int seen = 0;
  for (const char* file : {"smoke", "edge", "seeds"}) {
    const std::string path = cases_dir(TILEWISE_CASES_DIR) + "/" + file + ".txt";
    for (const Case& c : read_case_file(path)) {
      for (const Problem& p : problems_of(c)) {
        for (const Hardware& machine : machines) {
          for (const KernelRow& row : cuda_rows()) {
            expect_sound(row, p, machine, row.name + std::string(" on ") + format_case(c));
          }
        }
        ++seen;
      }
    }
  }
  EXPECT_GT(seen, 100);
}

TEST(CudaRows, RefusalsAreWords) {
  const PlannedCase planned(parse_case("b1 h1 s8 d8 f64"), kDevice);
  const Problem p = make_problem(planned.forward(), planned.spec(), Purpose::plan);
  for (const KernelRow& row : cuda_rows()) {
    if (row.pass != Pass::forward) continue;
    EXPECT_GE(refusal_by(row, p, named(90, 227)).size(), 10U) << row.name;
  }
}

TEST(CudaRows, EagerLeavesASmallSoftcapBesideAlibiToOthers) {
  for (const auto& [words, refused] : {std::pair{"softcap=0.001 alibi", true},
                                       {"softcap=2 alibi", false},
                                       {"softcap=0.001", false}}) {
    for (const Problem& p : problems_of(parse_case("b1 h2 s64 d64 bf16 " + std::string(words)))) {
      for (const KernelRow& row : cuda_rows()) {
        if (row.implementation != std::string("eager") || row.pass != p.pass) continue;
        const bool expected = refused && p.pass == Pass::backward;
        EXPECT_EQ(!refusal_by(row, p, named(90, 227)).empty(), expected) << words;
      }
    }
  }
}

TEST(CudaRows, EagerMemoryIsTwoMatricesAndBackwardAThird) {
  // SEEDS: 2 B S^2 4 bytes are alive between forward and backward, dP on top of them.
  const PlannedCase planned(parse_case("b8 h1 s2048 d64 f32"), kDevice);
  const std::int64_t matrix = std::int64_t{8} * 2048 * 2048 * 4;
  const Hardware machine = named(90, 227);
  for (const char* implementation : {"eager", "fused"}) {
    const Choice choice{.implementation = implementation, .kernel = {}};
    ForwardTensors forward = planned.forward();
    EXPECT_EQ(plan(forward, planned.spec(), choice, &machine).saved_bytes, 2 * matrix);
    BackwardTensors backward = planned.backward();
    backward.saved.bytes = forward.saved.bytes = 2 * matrix;
    const Plan kept = plan(forward, planned.spec(), choice, &machine);
    EXPECT_LT(kept.workspace_bytes, matrix) << "S and P are saved, not workspace";
    const Plan back = plan(backward, planned.spec(), choice, &machine);
    EXPECT_GE(back.workspace_bytes, matrix);
    EXPECT_LT(back.workspace_bytes, 2 * matrix);
  }
}

}  // namespace
}  // namespace tilewise::cuda
