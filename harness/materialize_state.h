/// State of a MaterializedCase or PlannedCase: blocks of memory and two sets of views, host's and
/// device's.
#pragma once

#include <array>
#include <deque>
#include <utility>

#include "harness/case_buffers.h"
#include "harness/case_masks.h"
#include "harness/materialize.h"

namespace tilewise {

/// One side's views.
struct CaseViews {
  ForwardTensors forward;
  BackwardTensors backward;
  AttentionSpec spec;
  std::array<Tensor, kMaxCaptures> captures;  ///< in the case's order
};

class CaseState {
 public:
  /// Without `memory` no large tensor has data; small index tensors always do.
  CaseState(const Case& problem, std::uint64_t seed, DeviceMemory* memory, Device device,
            bool guards);

  const Case& problem() const { return c_; }
  const CaseViews& host() const { return host_; }
  const CaseViews& device() const { return device_; }

  void make_backward();
  void refresh(std::uint64_t seed);
  void poison_outputs();
  void poison_gradients();
  void download();
  void set_forward_results(const std::vector<double>& o, const std::vector<double>& lse);
  std::string damage();
  void own(std::unique_ptr<DeviceMemory> memory) { owned_memory_ = std::move(memory); }

 private:
  using Slot = Tensor& (*)(CaseViews&);
  struct Output {
    Buffer* buffer;
    Slot slot;
  };

  std::unique_ptr<DeviceMemory> owned_memory_;  // outlives the buffers below
  Case c_;
  std::uint64_t seed_;
  DeviceMemory* memory_;
  Device where_;
  bool guards_;
  CaseViews host_, device_;
  std::deque<Buffer> buffers_;
  std::vector<Output> outputs_, gradients_;
  std::vector<Buffer*> inputs_;
  ScoreMod score_mod_;
  bool has_backward_ = false;

  Buffer& add_buffer(std::string name, std::int64_t bytes, bool small = false);
  void bind(Slot slot, Buffer& buffer, const Tensor& view, std::int64_t origin);
  Tensor values_view(const Sizes& sizes, const Placement& placement, DType dtype) const;
  Tensor statistics_view(const Placement& placement) const;
  Placement statistics_placement() const;
  Sizes q_sizes() const;
  Sizes k_sizes(std::int64_t dim) const;

  Buffer& add_values(const char* name, Slot slot, const Sizes& sizes, Layout layout);
  void add_shared(const char* name, std::array<Slot, 3> slots, std::vector<Output>* outputs);
  Buffer& add_vector(std::string name, Slot slot, DType dtype,
                     const std::vector<std::int64_t>& sizes, const std::vector<double>& values,
                     bool small = true);
  Buffer& add_statistics(const char* name, Slot slot);
  void add_inputs();
  void add_spec();
  void add_packed();
  void add_pages();
  void add_pairs();
  void add_blocks();
  void add_outputs();
  void add_score_mod();
  void add_expressions();
  bool is_read_by_plans(const std::vector<std::int64_t>& sizes) const;
  void add_capture_gradients();

  void fill_inputs();
  void fill_backward_inputs();
  void cover_rows(const Tensor& tensor, std::int64_t b, std::int64_t begin, std::int64_t end);
  void cover_beyond();
  void cover_pages();
  void poke(char name, const Tensor& tensor);
};

}  // namespace tilewise
