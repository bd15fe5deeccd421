#include "arrays.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>

namespace tilewise::python {
namespace {

constexpr std::int64_t kAlignment = 256;

dlpack::DeviceId device_id(Device device) {
  const bool cpu = device.type == DeviceType::cpu;
  return {cpu ? dlpack::DeviceCode::cpu : dlpack::DeviceCode::cuda, device.index};
}

const ExchangeApi* find_exchange_api(nb::handle type) {
  const nb::object capsule = nb::getattr(type, kExchangeAttribute, nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kExchangeCapsule)) return nullptr;
  auto* header =
      static_cast<ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), kExchangeCapsule));
  while (header != nullptr && header->version.major != 1) header = header->previous;
  const auto* api = reinterpret_cast<const ExchangeApi*>(header);
  return api != nullptr && api->view_of_object != nullptr ? api : nullptr;
}

/// Keeps the message of an allocation that failed.
void keep_message(void* context, const char* /*kind*/, const char* message) {
  *static_cast<std::string*>(context) = message != nullptr ? message : "";
}

bool is_text(nb::handle object, const char* text) {
  return nb::isinstance<nb::str>(object) &&
         std::strcmp(nb::borrow<nb::str>(object).c_str(), text) == 0;
}

/// ml_dtypes' bfloat16 in a NumPy array, whose kind is "V": a type that is not NumPy's own.
bool is_bfloat16_of_numpy(nb::handle object) {
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  return is_text(nb::getattr(dtype, "kind", nb::none()), "V") &&
         is_text(nb::getattr(dtype, "name", nb::none()), "bfloat16");
}

/// What the array's own library says of an object that it gives no view of.
InvalidArgument unreadable(const char* name) {
  const nb::python_error error;
  const std::string text = nb::str(error.value()).c_str();
  return InvalidArgument(std::string(name) + " cannot be read: " + text.substr(0, text.find('\n')));
}

dlpack::View view_of(const nb::ndarray<nb::ro>& array, std::vector<std::int64_t>& axes) {
  const std::size_t rank = array.ndim();
  axes.resize(2 * rank);
  for (std::size_t i = 0; i < rank; ++i) {
    axes[i] = static_cast<std::int64_t>(array.shape(i));
    axes[rank + i] = array.stride(i);
  }
  dlpack::View view;
  view.data = const_cast<void*>(static_cast<const void*>(array.data()));
  view.device = {static_cast<dlpack::DeviceCode>(array.device_type()), array.device_id()};
  view.rank = static_cast<std::int32_t>(rank);
  view.dtype = {static_cast<dlpack::TypeCode>(array.dtype().code), array.dtype().bits,
                array.dtype().lanes};
  view.sizes = axes.data();
  view.strides = axes.data() + rank;
  return view;
}

}  // namespace

const ExchangeApi* exchange_api(nb::handle object) {
  // Guarded by the interpreter lock. A type in it is kept, so that its address means it for ever.
  static auto& known = *new std::unordered_map<PyObject*, const ExchangeApi*>;
  static PyObject* last_type = nullptr;  // the arrays of a call are mostly of one
  static const ExchangeApi* last = nullptr;
  const nb::handle type = object.type();
  if (type.ptr() == last_type) return last;
  const auto found = known.find(type.ptr());
  if (found == known.end()) type.inc_ref();
  last = found != known.end() ? found->second
                              : known.emplace(type.ptr(), find_exchange_api(type)).first->second;
  last_type = type.ptr();
  return last;
}

Tensor Arrays::take(nb::handle object, const char* name) {
  if (object.is_none()) return {};
  if (const ExchangeApi* api = exchange_api(object)) {
    dlpack::View view;
    if (api->view_of_object(object.ptr(), &view) != 0) throw unreadable(name);
    return dlpack::from_dlpack(view, name);
  }
  nb::ndarray<nb::ro> array;
  bool bfloat16 = false;
  if (!nb::try_cast(object, array)) {
    // NumPy exchanges only its own types: the bits of a bfloat16 of ml_dtypes come as integers.
    bfloat16 = is_bfloat16_of_numpy(object) && nb::try_cast(object.attr("view")("uint16"), array);
    if (!bfloat16) {
      // NumPy's, but of elements that DLPack cannot say: another byte order, records, objects.
      const bool of_numpy = nb::hasattr(object.type(), "__array_interface__");
      const std::string of =
          of_numpy ? std::string(" of ") + nb::str(nb::getattr(object, "dtype")).c_str() : "";
      throw InvalidArgument(std::string(name) + " is of type " +
                            nb::type_name(object.type()).c_str() + of +
                            ": expected a torch tensor, a NumPy array or another one with DLPack" +
                            (of.empty() ? "" : ", of a type and strides that DLPack can say"));
    }
  }
  borrowed_.push_back(array);
  std::vector<std::int64_t> axes;
  dlpack::View view = view_of(array, axes);
  if (bfloat16) view.dtype.code = dlpack::TypeCode::bfloat;
  return dlpack::from_dlpack(view, name);
}

void* ExchangeAllocator::allocate(std::int64_t bytes, Device device, void* /*stream*/) {
  // The prototype has no alignment: some room to find ours.
  std::int64_t size = bytes + kAlignment;
  dlpack::View prototype;
  prototype.device = device_id(device);
  prototype.rank = 1;
  prototype.dtype = {dlpack::TypeCode::unsigned_integer, 8, 1};
  prototype.sizes = &size;
  std::int64_t stride = 1;
  prototype.strides = &stride;
  dlpack::ManagedViewVersioned* managed = nullptr;
  std::string message;
  if (api_.allocate(&prototype, &managed, &message, keep_message) != 0 || managed == nullptr) {
    throw OutOfMemory("workspace of " + std::to_string(bytes) + " bytes on " + device_name(device) +
                      ": " + message);
  }
  const auto begin =
      reinterpret_cast<std::uintptr_t>(managed->view.data) + managed->view.byte_offset;
  auto* data = reinterpret_cast<void*>((begin + kAlignment - 1) / kAlignment * kAlignment);
  blocks_.push_back({data, managed});
  return data;
}

void ExchangeAllocator::release(void* data, std::int64_t /*bytes*/, Device /*device*/,
                                void* /*stream*/) noexcept {
  const auto block = std::find_if(blocks_.begin(), blocks_.end(),
                                  [data](const Block& b) { return b.data == data; });
  if (block == blocks_.end()) return;
  if (block->managed->deleter != nullptr) block->managed->deleter(block->managed);
  blocks_.erase(block);
}

void* current_stream(const ExchangeApi& api, Device device) {
  if (device.type == DeviceType::cpu) return nullptr;
  void* stream = nullptr;
  if (api.current_stream(device_id(device).type, device.index, &stream) != 0) {
    throw nb::python_error();
  }
  return stream;
}

nb::object new_array(const std::vector<std::int64_t>& sizes, DType dtype, Device device) {
  struct Owned {
    void* data;
    std::int64_t bytes;
    Device device;
  };
  std::int64_t bytes = dtype_bytes(dtype);
  for (const std::int64_t size : sizes) bytes *= size;
  bytes = std::max<std::int64_t>(bytes, 1);
  auto* owned = new Owned{default_allocator().allocate(bytes, device, nullptr), bytes, device};
  const nb::capsule owner(owned, [](void* self) noexcept {
    const auto* o = static_cast<Owned*>(self);
    default_allocator().release(o->data, o->bytes, o->device, nullptr);
    delete o;
  });
  // What to_dlpack says of the type is what the array says.
  const Tensor element{.data = owned->data, .dtype = dtype, .device = device, .rank = 1};
  dlpack::ManagedViewVersioned* managed = dlpack::to_dlpack(element);
  const dlpack::DataType type = managed->view.dtype;
  const auto place = static_cast<int>(managed->view.device.type);
  managed->deleter(managed);
  const std::vector<std::size_t> shape(sizes.begin(), sizes.end());
  const nb::ndarray<nb::array_api> array(
      owned->data, shape.size(), shape.data(), owner, nullptr,
      {static_cast<std::uint8_t>(type.code), type.bits, type.lanes}, place, device.index);
  return nb::cast(array);
}

}  // namespace tilewise::python
