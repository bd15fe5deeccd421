#include "problem/arguments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "problem/plain_text.h"

namespace tilewise::arguments {

void fail(const char* name, const Tensor& value, const std::string& expected) {
  throw InvalidArgument(std::string(name) + " is " + value.describe() + ": " + expected);
}

void fail_value(const char* name, const std::string& value, const std::string& expected) {
  throw InvalidArgument(std::string(name) + " is " + value + ": " + expected);
}

std::string number_text(double value) {
  return tilewise::number_text(value, std::chars_format::general, 6);
}

std::string shape_text(const std::int64_t* sizes, int rank) {
  std::string text = "(";
  for (int i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

void require_countable(const char* name, const Tensor& t) {
  double elems = 1.0, span = 1.0;  // exact up to 2^53, and infinite at worst
  for (int i = 0; i < t.rank; ++i) {
    const auto axis = static_cast<std::size_t>(i);
    const auto steps = static_cast<double>(std::max<std::int64_t>(t.sizes[axis], 1)) - 1.0;
    elems *= steps + 1.0;
    span += steps * std::abs(static_cast<double>(t.strides[axis]));
  }
  if (std::max(elems, span) > static_cast<double>(Tensor::kMaxElems)) {
    fail(name, t,
         "it has strides " + shape_text(t.strides.data(), t.rank) +
             " and spans more than 2^56 elements");
  }
}

Tensor canonical(const char* name, const Tensor& t) {
  if (t.rank != 3 && t.rank != 4) {
    fail(name, t, "expected 4 axes (B, H, S, D), or 3 (B, S, D) for one head");
  }
  for (int i = 0; i < t.rank; ++i) {
    if (t.sizes[static_cast<std::size_t>(i)] < 0) fail(name, t, "sizes must be >= 0");
  }
  require_countable(name, t);
  Tensor c = t;
  if (t.rank == 3) {
    c.rank = 4;
    c.sizes = {t.sizes[0], 1, t.sizes[1], t.sizes[2]};
    c.strides = {t.strides[0], 0, t.strides[1], t.strides[2]};
  }
  // An axis of one element never moves. Its stride may be one that no address reaches.
  constexpr std::int64_t kFar = std::int64_t{1} << 48;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (c.sizes[axis] <= 1 && (c.strides[axis] > kFar || c.strides[axis] < -kFar))
      c.strides[axis] = 0;
  }
  return c;
}

bool is_softcap(double value) {
  constexpr double kMost = 2e38;
  return value <= kMost && std::isnormal(static_cast<float>(value)) && value > 0.0;
}

void require_device(const char* name, const Tensor& t, Device device) {
  if (t.device != device) fail(name, t, "it must be on q's device, " + device_name(device));
}

void require_data(const char* name, const Tensor& t) {
  if (!t.defined() || t.numel() == 0) return;
  if (t.data == nullptr) fail(name, t, "its data pointer is null");
  const auto bytes = static_cast<std::uintptr_t>(dtype_bytes(t.dtype));
  if (t.device.type == DeviceType::cuda && reinterpret_cast<std::uintptr_t>(t.data) % bytes != 0)
    fail(name, t, "its data pointer is not a multiple of " + std::to_string(bytes) + " bytes");
}

void require_shape(const char* name, const Tensor& t, DType dtype,
                   std::initializer_list<std::int64_t> sizes, const char* words) {
  const bool same = t.rank == static_cast<int>(sizes.size()) && t.dtype == dtype &&
                    std::equal(sizes.begin(), sizes.end(), t.sizes.begin());
  if (!same) {
    fail(name, t,
         "expected " + std::string(dtype_name(dtype)) + " " + words + " = " +
             shape_text(sizes.begin(), static_cast<int>(sizes.size())));
  }
  require_countable(name, t);
}

Tensor expand(const char* name, const Tensor& t, std::initializer_list<std::int64_t> sizes,
              const char* words) {
  const int rank = static_cast<int>(sizes.size());
  const int missing = rank - t.rank;
  if (missing < 0) {
    fail(name, t, "expected at most " + std::to_string(rank) + " axes, " + std::string(words));
  }
  Tensor e = t;
  e.rank = rank;
  for (int i = 0; i < rank; ++i) {
    const auto axis = static_cast<std::size_t>(i);
    const std::int64_t full = sizes.begin()[i];
    const std::int64_t size = i < missing ? 1 : t.sizes[static_cast<std::size_t>(i - missing)];
    const std::int64_t stride = i < missing ? 0 : t.strides[static_cast<std::size_t>(i - missing)];
    if (size != full && size != 1) {
      fail(name, t,
           std::string("expected a shape that broadcasts to ") + words + " = " +
               shape_text(sizes.begin(), rank));
    }
    e.sizes[axis] = full;
    e.strides[axis] = size == 1 ? 0 : stride;  // an axis of one element never moves
  }
  require_countable(name, t);
  return e;
}

void require_no_overlap(const char* name, const Tensor& t) {
  // Sorted by stride, every axis must step over all that the smaller ones span. Negative strides
  // count by magnitude.
  std::array<std::pair<std::int64_t, std::int64_t>, Tensor::kMaxRank> axes{};
  int count = 0;
  for (int i = 0; i < t.rank; ++i) {
    const auto axis = static_cast<std::size_t>(i);
    if (t.sizes[axis] == 0) return;
    if (t.sizes[axis] > 1)
      axes[static_cast<std::size_t>(count++)] = {std::abs(t.strides[axis]), t.sizes[axis]};
  }
  std::sort(axes.begin(), axes.begin() + count);
  std::int64_t span = 1;
  for (int i = 0; i < count; ++i) {
    const auto [stride, size] = axes[static_cast<std::size_t>(i)];
    if (stride < span) {
      fail(name, t,
           "its elements overlap in memory (strides " + shape_text(t.strides.data(), t.rank) +
               "); each element of an output needs its own address");
    }
    span = stride * (size - 1) + span;
  }
}

void check_block_list(const BlockList& list, const Tensor& given, std::int64_t key_blocks) {
  if (given.device.type != DeviceType::cpu || given.data == nullptr ||
      list.block_index.data == nullptr)
    return;
  const auto* offsets = static_cast<const std::int32_t*>(given.data);
  const auto* index = static_cast<const std::int32_t*>(list.block_index.data);
  const std::int64_t pairs = list.block_index.sizes[0];
  for (std::int64_t b = 0; b < given.sizes[0]; ++b) {
    for (std::int64_t h = 0; h < given.sizes[1]; ++h) {
      for (std::int64_t row = 0; row + 1 < given.sizes[2]; ++row) {
        const std::int32_t* at =
            offsets + b * given.strides[0] + h * given.strides[1] + row * given.strides[2];
        const std::int64_t begin = at[0];
        const std::int64_t end = at[given.strides[2]];
        if (begin < 0 || end < begin || end > pairs) {
          fail("block_list.row_offsets", given,
               "row " + std::to_string(row) + " spans " + std::to_string(begin) + " to " +
                   std::to_string(end) + " of " + std::to_string(pairs) + " pairs");
        }
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t block = index[i * list.block_index.strides[0]];
          const bool ascends = i == begin || index[(i - 1) * list.block_index.strides[0]] < block;
          if (block < 0 || block >= key_blocks || !ascends) {
            fail("block_list.block_index", list.block_index,
                 "pair " + std::to_string(i) + " is " + std::to_string(block) +
                     "; expected ascending blocks of 0 to " + std::to_string(key_blocks - 1));
          }
        }
      }
    }
  }
}

}  // namespace tilewise::arguments
