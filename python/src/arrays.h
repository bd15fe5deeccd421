/// A caller's arrays: torch tensors, NumPy arrays, anything with DLPack, as Tensors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "exchange.h"
#include "tilewise/runtime.h"
#include "tilewise/tensor.h"

namespace tilewise::python {

namespace nb = nanobind;

/// The exchange API of an object's type; null when it has none.
const ExchangeApi* exchange_api(nb::handle object);

/// The arrays of one call. Keeps alive what it borrowed; the objects themselves are the caller's.
class Arrays {
 public:
  /// None is "not given". Throws InvalidArgument, which names the argument, for what is no array.
  Tensor take(nb::handle object, const char* name);

 private:
  std::vector<nb::ndarray<nb::ro>> borrowed_;
};

/// Workspace from the array library that the tensors came from, so that its own accounting and its
/// caching see it. Lives as long as a call.
class ExchangeAllocator final : public Allocator {
 public:
  explicit ExchangeAllocator(const ExchangeApi& api) : api_(api) {}
  void* allocate(std::int64_t bytes, Device device, void* stream) override;
  void release(void* data, std::int64_t bytes, Device device, void* stream) noexcept override;

 private:
  struct Block {
    void* data = nullptr;
    dlpack::ManagedViewVersioned* managed = nullptr;
  };
  const ExchangeApi& api_;
  std::vector<Block> blocks_;
};

/// The stream on which the array library works at the moment; null on the CPU.
void* current_stream(const ExchangeApi& api, Device device);

/// A new array of ours, with DLPack: for libraries whose arrays we do not allocate ourselves.
nb::object new_array(const std::vector<std::int64_t>& sizes, DType dtype, Device device);

}  // namespace tilewise::python
