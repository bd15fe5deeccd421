/// Device memory without a GPU. The same pages are mapped twice: as the device sees them, with
/// rights during a launch only, and as the driver's copies reach them. A host that touches a device
/// tensor, and a kernel that leaves its allocations, end by a signal.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace fake {

using Address = unsigned long long;

constexpr std::size_t kBytes = std::size_t{1} << 40;       ///< of all allocations of a process
constexpr std::size_t kMostBytes = std::size_t{32} << 30;  ///< of one
constexpr std::size_t kAlignment = 512, kPage = 4096;
constexpr unsigned char kUnused = 0xff;  ///< fills the rest of an allocation's last 512 bytes

inline std::size_t round_up(std::size_t x, std::size_t to) { return (x + to - 1) / to * to; }

/// An allocation ends at the end of its last page. A page without rights follows.
struct Block {
  std::size_t pages, bytes;
};

class Memory {
 public:
  Memory() {
    const int file = memfd_create("device", 0);
    if (ftruncate(file, kBytes) != 0) return;
    const int flags = MAP_SHARED | MAP_NORESERVE;
    device_ = static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE, flags, file, 0));
    host_ = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, file, 0));
  }
  bool is_there() const { return host_ != nullptr && host_ != MAP_FAILED; }

  /// 0 where it does not fit. No address is given twice.
  Address allocate(std::size_t bytes) {
    const std::size_t used = round_up(bytes, kAlignment), pages = round_up(used, kPage);
    if (bytes > kMostBytes || next_ + pages + kPage > kBytes) return 0;
    const std::size_t at = next_ + pages - used;
    next_ += pages + kPage;
    live_[at] = {pages, bytes};
    std::memset(host_ + at + bytes, kUnused, used - bytes);
    return reinterpret_cast<Address>(device_ + at);
  }
  void release(Address data) {
    const auto found = live_.find(offset(data));
    if (found == live_.end()) return;
    check_end("a kernel", *found);
    const auto [at, block] = *found;
    const std::size_t begin = at / kPage * kPage;
    madvise(host_ + begin, block.pages, MADV_REMOVE);
    live_.erase(found);
  }
  char* reach(Address data) const { return host_ + offset(data); }

  /// Rights to all allocations, for as long as a kernel runs.
  void open() { protect(PROT_READ | PROT_WRITE); }
  void close(const char* kernel) {
    protect(PROT_NONE);
    for (const auto& entry : live_) check_end(kernel, entry);
  }
  /// Where `data` lies, as text.
  void describe(const void* data, char* text, std::size_t size) const {
    const auto* at = static_cast<const char*>(data);
    if (at < device_ || at >= device_ + kBytes) {
      std::snprintf(text, size, "%p is no device memory", data);
      return;
    }
    const auto after = live_.upper_bound(static_cast<std::size_t>(at - device_));
    if (after == live_.begin()) {
      std::snprintf(text, size, "before every allocation");
      return;
    }
    const auto& [begin, block] = *std::prev(after);
    std::snprintf(text, size, "byte %zu of an allocation of %zu",
                  static_cast<std::size_t>(at - device_) - begin, block.bytes);
  }

 private:
  std::size_t offset(Address data) const {
    return static_cast<std::size_t>(reinterpret_cast<char*>(data) - device_);
  }
  void protect(int rights) {
    for (const auto& [at, block] : live_) {
      if (block.pages > 0) mprotect(device_ + at / kPage * kPage, block.pages, rights);
    }
  }
  void check_end(const char* kernel, const std::pair<const std::size_t, Block>& entry) const {
    const auto& [at, block] = entry;
    for (std::size_t i = block.bytes; i < round_up(block.bytes, kAlignment); ++i) {
      if (static_cast<unsigned char>(host_[at + i]) == kUnused) continue;
      std::fprintf(stderr, "%s wrote to byte %zu of an allocation of %zu\n", kernel, i,
                   block.bytes);
      std::abort();
    }
  }

  char* device_ = nullptr;
  char* host_ = nullptr;
  std::size_t next_ = 0;
  std::map<std::size_t, Block> live_;  ///< by where they begin
};

inline Memory& memory() {
  static Memory made;
  return made;
}

}  // namespace fake
