/// Array: what an .npy file, or one tensor of a .safetensors file, holds. Row-major, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::files {

/// Gives memory at multiples of 64 bytes (a cache line, an AVX-512 register) and leaves it unset
/// where a vector asks for no value, since a reader fills every byte.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* pointer, std::size_t) { ::operator delete(pointer, kAlignment); }

  template <class U>
  void construct(U* pointer) {
    ::new (static_cast<void*>(pointer)) U;
  }
  template <class U, class... Args>
  void construct(U* pointer, Args&&... args) {
    ::new (static_cast<void*>(pointer)) U(std::forward<Args>(args)...);
  }

  bool operator==(const AlignedAllocator&) const = default;
};

using Bytes = std::vector<std::byte, AlignedAllocator<std::byte>>;

/// The most axes that a file may give an array: NumPy's own limit.
inline constexpr std::size_t kMaxFileRank = 64;

struct Array {
  DType dtype = DType::float32;
  std::vector<std::int64_t> shape;
  Bytes bytes;  ///< numel() elements

  std::int64_t numel() const;
  bool operator==(const Array&) const = default;
};

/// Bytes of an array of this shape; none if a size is negative, there are too many axes, or the
/// product of the sizes other than 0 overflows: then no stride of the array overflows either.
std::optional<std::int64_t> array_bytes(DType dtype, std::span<const std::int64_t> shape);

/// An array with its memory unset. `file` is for the message: throws FileError if array_bytes() has
/// none, and OutOfMemory if the machine has not that much memory.
Array make_array(std::string_view file, DType dtype, std::vector<std::int64_t> shape);

/// Throws FileError unless every byte of a bool array is 0 or 1: another value is no C++ bool.
void check_bools(std::string_view file, const Array& array);

/// Row-major number of the first NaN; none if there is none or the type knows none.
std::optional<std::int64_t> first_nan(const Array& array);

/// "(1, 12, 206, 32)", "(7,)", "()": a shape, or an index, as Python writes it.
std::string shape_text(std::span<const std::int64_t> shape);
/// The index, one number an axis, of the element with this row-major number.
std::vector<std::int64_t> element_index(const Array& array, std::int64_t element);

}  // namespace tilewise::files
