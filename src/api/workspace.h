/// Workspace of one call: the caller's, or from the call's allocator, given back at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tilewise/error.h"
#include "tilewise/runtime.h"

namespace tilewise {

class Workspace {
 public:
  /// `user`: who needs so many bytes. Throws InvalidArgument where the caller's are fewer.
  Workspace(std::int64_t bytes, Device device, const std::string& user, const Launch& launch)
      : launch_(launch), device_(device) {
    if (bytes == 0) return;
    if (launch.workspace != nullptr) {
      if (launch.workspace_bytes < bytes) {
        throw InvalidArgument("workspace_bytes is " + std::to_string(launch.workspace_bytes) +
                              ": " + user + " needs at least " + std::to_string(bytes));
      }
      data_ = launch.workspace;
      return;
    }
    owned_bytes_ = bytes;
    allocator_ = launch.allocator != nullptr ? launch.allocator : &default_allocator();
    data_ = allocator_->allocate(owned_bytes_, device_, launch.stream);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (allocator_ != nullptr) allocator_->release(data_, owned_bytes_, device_, launch_.stream);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const Launch& launch_;
  Device device_;
  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
  std::int64_t owned_bytes_ = 0;
};

}  // namespace tilewise
