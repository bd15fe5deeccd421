#include "harness/case_buffers.h"

#include <algorithm>

#include "problem/arguments.h"

namespace tilewise {
namespace {

constexpr std::byte kPoison{0xFF};
constexpr std::int64_t kPadding = 3;  // odd, so that rows lose their alignment

/// Strides of memory in the given order of the axes, outermost first.
Placement in_order(const Sizes& sizes, const std::array<std::size_t, 4>& order,
                   std::int64_t innermost_stride, std::int64_t padding) {
  Placement placement;
  // The sizes stand in words of a case, where nobody has judged them yet.
  Tensor dense{.rank = 4, .sizes = sizes};
  dense.strides[3] = innermost_stride;
  arguments::require_countable("case", dense);
  std::int64_t stride = innermost_stride;
  for (std::size_t n = 4; n-- > 0;) {
    placement.strides[order[n]] = stride;
    stride *= sizes[order[n]];
    if (n == 3) stride += padding;
  }
  placement.elems = stride;
  return placement;
}

bool all_poison(const std::byte* data, std::int64_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte byte) { return byte == kPoison; });
}

}  // namespace

Placement place(Layout layout, const Sizes& sizes) {
  switch (layout) {
    case Layout::bhsd:
      return in_order(sizes, {0, 1, 2, 3}, 1, 0);
    case Layout::qkv:
    case Layout::latent:
    case Layout::bshd:
      return in_order(sizes, {0, 2, 1, 3}, 1, 0);
    case Layout::sbhd:
      return in_order(sizes, {2, 0, 1, 3}, 1, 0);
    case Layout::transposed:
      return in_order(sizes, {0, 1, 3, 2}, 1, 0);
    case Layout::step2:
      return in_order(sizes, {0, 1, 2, 3}, 2, 0);
    case Layout::padded:
      return in_order(sizes, {0, 1, 2, 3}, 1, kPadding);
    case Layout::reversed: {
      Placement placement = in_order(sizes, {0, 1, 2, 3}, 1, 0);
      placement.origin = std::max<std::int64_t>(0, sizes[2] - 1) * placement.strides[2];
      placement.strides[2] = -placement.strides[2];
      return placement;
    }
    case Layout::expanded: {
      Placement placement = in_order({1, 1, sizes[2], sizes[3]}, {0, 1, 2, 3}, 1, 0);
      placement.strides[0] = placement.strides[1] = 0;
      return placement;
    }
  }
  throw InvalidArgument("layout is out of range");
}

Layout output_layout(Layout layout) {
  if (layout == Layout::expanded) return Layout::bhsd;
  return layout == Layout::qkv || layout == Layout::latent ? Layout::bshd : layout;
}

Buffer::Buffer(std::string name, std::int64_t bytes, DeviceMemory* memory, bool guards)
    : name_(std::move(name)), bytes_(bytes), guard_(guards ? kGuardBytes : 0), memory_(memory) {
  if (memory_ == nullptr || whole() == 0) return;
  device_ = static_cast<std::byte*>(memory_->allocate(whole()));
  if (memory_->is_host()) {
    host_ = device_;
  } else {
    mirror_.resize(static_cast<std::size_t>(whole()));
    host_ = mirror_.data();
  }
  poison();
}

Buffer::~Buffer() {
  if (device_ != nullptr) memory_->release(device_, whole());
}

void Buffer::poison() {
  if (device_ == nullptr) return;
  std::fill(host_, host_ + whole(), kPoison);
  upload();
}

void Buffer::upload() {
  if (device_ != host_) memory_->copy_in(device_, host_, whole());
}

void Buffer::download() {
  if (device_ != host_) memory_->copy_out(host_, device_, whole());
}

bool Buffer::intact(const Tensor& view) const {
  if (host_ == nullptr) return true;
  if (!all_poison(host_, guard_) || !all_poison(host_ + guard_ + bytes_, guard_)) return false;
  const std::int64_t element = dtype_bytes(view.dtype);
  if (!view.defined() || view.numel() * element == bytes_) return true;  // no gaps
  std::vector<bool> covered(static_cast<std::size_t>(bytes_ / element));
  const auto* base = static_cast<const std::byte*>(host());
  const std::int64_t origin = (static_cast<const std::byte*>(view.data) - base) / element;
  Sizes sizes{1, 1, 1, 1};
  Sizes strides{};
  std::copy_n(view.sizes.begin(), view.rank, sizes.begin());
  std::copy_n(view.strides.begin(), view.rank, strides.begin());
  for (std::int64_t a = 0; a < sizes[0]; ++a) {
    for (std::int64_t b = 0; b < sizes[1]; ++b) {
      for (std::int64_t c = 0; c < sizes[2]; ++c) {
        const std::int64_t row = origin + a * strides[0] + b * strides[1] + c * strides[2];
        for (std::int64_t d = 0; d < sizes[3]; ++d) {
          covered[static_cast<std::size_t>(row + d * strides[3])] = true;
        }
      }
    }
  }
  for (std::size_t n = 0; n < covered.size(); ++n) {
    if (!covered[n] && !all_poison(base + static_cast<std::int64_t>(n) * element, element)) {
      return false;
    }
  }
  return true;
}

}  // namespace tilewise
