/// DLPack's C exchange API (1.3): what a Python array type publishes as
/// `__dlpack_c_exchange_api__`, so that a library reads its arrays, its current stream and its
/// allocator without a Python call. PyTorch has it from 2.11 on. Declared here by layout.
#pragma once

#include "tilewise/dlpack.h"

namespace tilewise::python {

struct ExchangeHeader {
  dlpack::Version version;
  ExchangeHeader* previous = nullptr;  ///< an older table of the same producer, or null
};

/// Functions return 0, or -1 with a Python error set (allocate: with set_error called).
struct ExchangeApi {
  using SetError = void (*)(void* context, const char* kind, const char* message);

  ExchangeHeader header;
  int (*allocate)(dlpack::View* prototype, dlpack::ManagedViewVersioned** out, void* context,
                  SetError set_error);
  int (*managed_from_object)(void* object, dlpack::ManagedViewVersioned** out);
  int (*managed_to_object)(dlpack::ManagedViewVersioned* tensor, void** out_object);
  int (*view_of_object)(void* object, dlpack::View* out);  ///< may be null
  int (*current_stream)(dlpack::DeviceCode device_type, std::int32_t device_index, void** stream);
};

inline constexpr const char* kExchangeAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kExchangeCapsule = "dlpack_exchange_api";

}  // namespace tilewise::python
