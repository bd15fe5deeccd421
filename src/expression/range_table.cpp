#include "expression/range_table.h"

#include <algorithm>
#include <cmath>

#include "problem/blocks.h"
#include "reference/elements.h"

namespace tilewise::expression {
namespace {

constexpr std::int64_t kRadix = 16;      // elements of a block, blocks of the next level's
constexpr std::int64_t kMostLines = 64;  // that a query looks at: of more it takes the tensor

/// The low 32 bits, as a signed number.
std::int64_t wrapped(std::int64_t value) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(value)));
}

}  // namespace

void RangeTable::Bounds::add(const Bounds& other) {
  least = std::min(least, other.least);
  most = std::max(most, other.most);
  nan = nan || other.nan;
}

RangeTable::RangeTable(const Tensor& tensor, Type type)
    : t_(tensor), type_(type), last_(tensor.rank - 1) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr Bounds kNothing{kInfinity, -kInfinity, false};
  for (int axis = 0; axis < last_; ++axis) lines_ *= t_.sizes[static_cast<std::size_t>(axis)];
  const std::int64_t length = t_.sizes[static_cast<std::size_t>(last_)];
  for (std::int64_t count = ceil_div(length, kRadix);; count = ceil_div(count, kRadix)) {
    begins_.push_back(static_cast<std::int64_t>(blocks_.size()));
    sizes_.push_back(count);
    blocks_.resize(blocks_.size() + static_cast<std::size_t>(lines_ * count), kNothing);
    if (count <= 1) break;
  }
  whole_ = kNothing;
  for (std::int64_t line = 0; line < lines_; ++line) {
    std::int64_t at = 0;
    std::int64_t rest = line;
    for (int axis = last_ - 1; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      at += rest % t_.sizes[a] * t_.strides[a];
      rest /= t_.sizes[a];
    }
    Bounds* first = blocks_.data() + line * sizes_[0];
    for (std::int64_t n = 0; n < length; ++n) {
      first[n / kRadix].add(element(at + n * t_.strides[static_cast<std::size_t>(last_)]));
    }
    for (std::size_t level = 1; level < sizes_.size(); ++level) {
      const Bounds* below = blocks_.data() + begins_[level - 1] + line * sizes_[level - 1];
      Bounds* blocks = blocks_.data() + begins_[level] + line * sizes_[level];
      for (std::int64_t n = 0; n < sizes_[level - 1]; ++n) blocks[n / kRadix].add(below[n]);
    }
    if (length > 0) whole_.add(blocks_[static_cast<std::size_t>(begins_.back() + line)]);
  }
}

RangeTable::Bounds RangeTable::element(std::int64_t at) const {
  double value = 0.0;
  if (t_.dtype == DType::int32) {
    value = static_cast<const std::int32_t*>(t_.data)[at];
  } else if (t_.dtype == DType::int64) {
    value = static_cast<double>(wrapped(static_cast<const std::int64_t*>(t_.data)[at]));
  } else {
    value = reference::load(t_, at);
  }
  if (type_ == Type::boolean) value = value != 0.0 ? 1.0 : 0.0;
  if (std::isnan(value)) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return {-kInfinity, kInfinity, true};
  }
  return {value, value, false};
}

/// Bounds of the elements of one line that starts at `at`: blocks, and single elements at the ends.
RangeTable::Bounds RangeTable::over_line(std::int64_t line, std::int64_t at,
                                         Stretch stretch) const {
  const std::int64_t stride = t_.strides[static_cast<std::size_t>(last_)];
  Bounds bounds = element(at + stretch.begin * stride);
  auto [begin, end] = stretch;
  for (; begin < end && begin % kRadix != 0; ++begin) bounds.add(element(at + begin * stride));
  for (; end > begin && end % kRadix != 0; --end) bounds.add(element(at + (end - 1) * stride));
  for (std::size_t level = 0; begin < end; ++level) {
    begin /= kRadix;
    end /= kRadix;
    const Bounds* blocks = blocks_.data() + begins_[level] + line * sizes_[level];
    const bool top = level + 1 == sizes_.size();
    for (; begin < end && (top || begin % kRadix != 0); ++begin) bounds.add(blocks[begin]);
    for (; end > begin && end % kRadix != 0; --end) bounds.add(blocks[end - 1]);
  }
  return bounds;
}

Range RangeTable::range_of(const Bounds& bounds) const {
  if (type_ == Type::real) return stored_reals(bounds.least, bounds.most, bounds.nan);
  return integers(static_cast<std::int64_t>(bounds.least), static_cast<std::int64_t>(bounds.most));
}

Range RangeTable::over(std::span<const Range> indices) const {
  if (t_.numel() == 0) return anything(type_);  // only where there are no pairs
  std::array<Stretch, Tensor::kMaxRank> box{};
  std::int64_t lines = 1;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    const std::int64_t size = t_.sizes[axis];
    std::int64_t low = indices[axis].low;
    std::int64_t high = indices[axis].high;
    if (low < 0 && high >= 0) {
      low = 0;
      high = size - 1;
    } else if (low < 0) {
      low += size;
      high += size;
    }
    box[axis] = {std::clamp<std::int64_t>(low, 0, size - 1),
                 std::clamp<std::int64_t>(high, 0, size - 1) + 1};
    if (static_cast<int>(axis) < last_) {
      lines = std::min(lines * (box[axis].end - box[axis].begin), kMostLines + 1);
    }
  }
  if (lines > kMostLines) return range_of(whole_);
  Bounds bounds{};
  bool first = true;
  std::array<std::int64_t, Tensor::kMaxRank> index{};
  for (std::size_t axis = 0; axis < index.size(); ++axis) index[axis] = box[axis].begin;
  for (bool more = true; more;) {
    std::int64_t at = 0;
    std::int64_t line = 0;
    for (int axis = 0; axis < last_; ++axis) {
      const auto a = static_cast<std::size_t>(axis);
      at += index[a] * t_.strides[a];
      line = line * t_.sizes[a] + index[a];
    }
    const Bounds of_line = over_line(line, at, box[static_cast<std::size_t>(last_)]);
    if (first) bounds = of_line;
    bounds.add(of_line);
    first = false;
    more = false;
    for (int axis = last_ - 1; axis >= 0 && !more; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      more = ++index[a] < box[a].end;
      if (!more) index[a] = box[a].begin;
    }
  }
  return range_of(bounds);
}

std::int64_t RangeTable::bytes() const {
  return static_cast<std::int64_t>(blocks_.size() * sizeof(Bounds));
}

}  // namespace tilewise::expression
