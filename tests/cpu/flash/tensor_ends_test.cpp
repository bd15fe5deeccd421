/// CPU rows read and write nothing beside their tensors: each lies at a page that nobody may touch.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <new>
#include <string>

#include "harness/materialize.h"
#include "plan/choose.h"
#include "tilewise/runtime.h"

namespace tilewise {
namespace {

/// A block ends where a forbidden page begins, or begins where one ends. Only bytes of tensors:
/// nothing is aligned beyond an element.
class AtForbiddenPage final : public Allocator {
 public:
  explicit AtForbiddenPage(bool at_end) : at_end_(at_end) {}

  void* allocate(std::int64_t bytes, Device /*device*/, void* /*stream*/) override {
    const std::int64_t inner = pages(bytes);
    void* memory = mmap(nullptr, static_cast<std::size_t>(inner + kPage), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    auto* begin = static_cast<std::byte*>(memory);
    if (mprotect(at_end_ ? begin + inner : begin, kPage, PROT_NONE) != 0) throw std::bad_alloc();
    return at_end_ ? begin + inner - bytes : begin + kPage;
  }
  void release(void* data, std::int64_t bytes, Device /*device*/,
               void* /*stream*/) noexcept override {
    const std::int64_t inner = pages(bytes);
    auto* at = static_cast<std::byte*>(data);
    munmap(at_end_ ? at + bytes - inner : at - kPage, static_cast<std::size_t>(inner + kPage));
  }

 private:
  static constexpr std::int64_t kPage = 4096;
  static std::int64_t pages(std::int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  bool at_end_;
};

constexpr const char* kCases[] = {
    // Few rows read K and V where they lie: whole vectors and parts of one, one key and an odd one.
    "b1 h4/1 q1 k1 d64 pass=fwd", "b1 h4/2 q1 k33 d40 layout=bshd pass=fwd",
    "b2 h3 q1 k130 d8 pass=fwd", "b1 h8/1 q3 k47 d72 dv24 causal pass=fwd",
    "b1 h40/1 q1 k65 d100 dv36 pass=fwd", "b1 h16/2 q2 k129 d160 layout=bshd causal pass=fwd",
    "b1 h2 q1 k17 d3 dv5 pass=fwd", "b1 h4/2 q2 k31 d64 layout=padded pass=fwd",
    "b1 h4/2 q2 k31 d64 layout=reversed pass=fwd", "b1 h16/1 q1 k70 d576 dv512 pass=fwd",
    // Pages.
    "b2 h4/1 q1 k49 d64 lengths=49,1 paged=1 pass=fwd",
    "b1 h8/2 q1 k100 d40 lengths=97 paged=16 layout=bshd pass=fwd",
    "b2 h6/3 q5 k64 d96 dv20 lengths=3,64 paged=7 causal pass=fwd",
    "packed=3,8/40,33 h4/2 d80 causal paged=16 pass=fwd",
    // Tiles.
    "b1 h2 q33 k47 d40", "b1 h4/2 q70 k65 d72 dv24 causal layout=bshd", "b2 h1 q5 k300 d100",
    "packed=5,64,17/9,133,80 h4/2 d24 causal",
    "b1 h2 q100 k77 d3 bias=b,h,q,k mask=b,1,q,k:some0.3"};

class TensorEnds : public testing::TestWithParam<const char*> {
 protected:
  static void run_row(const std::string& kernel, const std::string& line, bool at_end) {
    AtForbiddenPage pages(at_end);
    const std::unique_ptr<DeviceMemory> memory = host_memory(&pages);
    MaterializedCase made(parse_case(line), 5, *memory, {.guards = false});
    const auto launch = [&](const Problem& p, auto&& tensors, const std::string& name) {
      Plan plan;
      try {
        plan = choose(p, hardware(), {.kernel = name}, kernel_table());
      } catch (const Unsupported&) {
        return;
      }
      run(plan, tensors, made.spec(), {});
    };
    launch(make_problem(made.forward(), made.spec(), Purpose::run), made.forward(),
           "flash_fwd_" + kernel);
    if (line.find("pass=fwd") != std::string::npos) return;
    const BackwardTensors& back = made.backward();
    launch(make_problem(back, made.spec(), Purpose::run), back, "flash_bwd_" + kernel);
  }
};

TEST_P(TensorEnds, NothingBesideATensorIsTouched) {
  for (const char* line : kCases) {
    for (const char* type : {"f32", "bf16", "f16"}) {
      for (const bool at_end : {true, false}) {
        SCOPED_TRACE(std::string(line) + ' ' + type);
        run_row(GetParam(), std::string(line) + ' ' + type, at_end);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EverySet, TensorEnds,
                         testing::Values("amx", "avx512bf16", "avx512", "avx2", "scalar"),
                         [](const auto& chosen) { return std::string(chosen.param); });

}  // namespace
}  // namespace tilewise
