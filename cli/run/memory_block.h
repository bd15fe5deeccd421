/// Block: a piece of a device's memory for as long as it lives.
#pragma once

#include "harness/device_memory.h"

namespace tilewise::cli {

/// No memory, and a null pointer, for 0 bytes.
class Block {
 public:
  Block(DeviceMemory& memory, std::int64_t bytes)
      : memory_(memory), bytes_(bytes), data_(bytes > 0 ? memory.allocate(bytes) : nullptr) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (data_ != nullptr) memory_.release(data_, bytes_);
  }
  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  DeviceMemory& memory_;
  std::int64_t bytes_;
  void* data_;
};

}  // namespace tilewise::cli
