#include <utility>

#include "harness/case_captures.h"
#include "harness/materialize_state.h"

namespace tilewise {
namespace {

template <std::size_t n>
Tensor& capture_slot(CaseViews& s) {
  return s.captures[n];
}
template <std::size_t n>
Tensor& gradient_slot(CaseViews& s) {
  return s.backward.dcaptures[n];
}

using SlotOf = Tensor& (*)(CaseViews&);
template <std::size_t... n>
constexpr std::array<SlotOf, sizeof...(n)> capture_slots(std::index_sequence<n...>) {
  return {capture_slot<n>...};
}
template <std::size_t... n>
constexpr std::array<SlotOf, sizeof...(n)> gradient_slots(std::index_sequence<n...>) {
  return {gradient_slot<n>...};
}
constexpr auto kCaptureSlots = capture_slots(std::make_index_sequence<kMaxCaptures>());
constexpr auto kGradientSlots = gradient_slots(std::make_index_sequence<kMaxCaptures>());

}  // namespace

/// Plans count what a mask shows on the CPU alone. Those that look for the longest problem would
/// fill gigabytes.
bool CaseState::is_read_by_plans(const std::vector<std::int64_t>& sizes) const {
  constexpr double kMostElements = 1 << 22;
  double count = 1.0;
  for (const std::int64_t size : sizes) count *= static_cast<double>(size);
  return where_.type == DeviceType::cpu && count <= kMostElements;
}

void CaseState::add_expressions() {
  for (std::size_t n = 0; n < c_.captures.size(); ++n) {
    const CaptureCase& capture = c_.captures[n];
    const std::vector<std::int64_t> sizes = capture_sizes(c_, capture);
    const bool is_read = memory_ != nullptr || is_read_by_plans(sizes);
    add_vector(capture.name, kCaptureSlots[n], capture.dtype, sizes,
               is_read ? capture_values(c_, capture, sizes, seed_) : std::vector<double>(),
               is_read);
  }
  for (CaseViews* side : {&host_, &device_}) {
    std::vector<Captured> captured;
    for (std::size_t n = 0; n < c_.captures.size(); ++n) {
      captured.emplace_back(c_.captures[n].name, side->captures[n]);
    }
    const auto read = [&](const std::string& text) {
      return text.empty() ? Expression() : Expression::parse(text, captured);
    };
    side->spec.score_expression = read(c_.score_expression);
    side->spec.mask_expression = read(c_.mask_expression);
  }
}

void CaseState::add_capture_gradients() {
  const std::vector<Captured> captures = host_.spec.score_expression.captures();
  for (CaseViews* side : {&host_, &device_}) side->backward.dcaptures.resize(captures.size());
  for (std::size_t n = 0; n < captures.size(); ++n) {
    const Tensor& of = captures[n].tensor();
    if (!is_floating(of.dtype)) continue;
    const std::vector<std::int64_t> sizes(of.sizes.begin(), of.sizes.begin() + of.rank);
    Buffer& buffer = add_vector("d" + captures[n].name(), kGradientSlots[n], of.dtype, sizes, {});
    gradients_.push_back({&buffer, kGradientSlots[n]});
  }
}

}  // namespace tilewise
