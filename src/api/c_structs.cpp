#include "api/c_structs.h"

#include <vector>

namespace tilewise::c_api {

void check_size(const char* name, std::size_t size, std::size_t ours) {
  if (size >= sizeof(std::size_t) && size <= 4 * ours) return;
  throw InvalidArgument(std::string(name) + ".struct_size is " + std::to_string(size) +
                        ": expected " + std::to_string(ours) + " (use TW_INIT)");
}

void require_within(const std::string& name, std::int32_t value, std::int32_t last,
                    const char* expected) {
  if (value >= 0 && value <= last) return;
  throw InvalidArgument(name + " is " + std::to_string(value) + ": expected " + expected);
}

void require_function(const char* name, bool given) {
  if (!given) throw InvalidArgument(std::string(name) + " is NULL: expected a function");
}

Tensor tensor(const char* name, const tw_tensor& t) {
  Tensor out;
  if (t.rank == 0) return out;
  const std::string prefix(name);
  require_within(prefix + ".rank", t.rank, Tensor::kMaxRank, "0 (not given) to 4");
  require_within(prefix + ".dtype", t.dtype, TW_INT64, "a tw_dtype, 0 to 7");
  require_within(prefix + ".device_type", t.device_type, TW_CUDA, "TW_CPU (0) or TW_CUDA (1)");
  out.data = t.data;
  out.dtype = static_cast<DType>(t.dtype);
  out.device = {static_cast<DeviceType>(t.device_type), t.device_index};
  out.rank = t.rank;
  std::copy_n(t.sizes, 4, out.sizes.begin());
  std::copy_n(t.strides, 4, out.strides.begin());
  return out;
}

Expression expression(const char* name, const tw_expression* given) {
  if (given == nullptr) return {};
  const tw_expression e = known(given, name);
  const std::string prefix(name);
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw InvalidArgument(prefix + what);
  };
  require(e.text != nullptr, ".text is NULL: expected a formula");
  require(e.count >= 0, ".count is " + std::to_string(e.count) + ": expected at least 0");
  require(e.count == 0 || (e.names != nullptr && e.tensors != nullptr),
          ".names or .tensors is NULL: expected " + std::to_string(e.count) + " of them");
  std::vector<Captured> captures;
  for (std::int64_t n = 0; n < e.count; ++n) {
    require(e.names[n] != nullptr, ".names[" + std::to_string(n) + "] is NULL");
    const std::string who = prefix + "'s " + e.names[n];
    captures.emplace_back(e.names[n], tensor(who.c_str(), e.tensors[n]));
  }
  Expression made = Expression::parse(e.text, captures);
  const std::vector<Captured> used = made.captures();
  for (const Captured& c : captures) {
    require(std::any_of(used.begin(), used.end(),
                        [&](const auto& other) { return other.name() == c.name(); }),
            "'s " + c.name() + " is not read by its formula");
  }
  return made;
}

}  // namespace tilewise::c_api
