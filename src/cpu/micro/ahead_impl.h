/// Asking for what is read after a block. In an unnamed namespace, as in micro_impl.h.
#pragma once

#include "cpu/micro/micro.h"

namespace tilewise::cpu {
namespace {

constexpr std::ptrdiff_t kLineBytes = 64;

/// For the next `bytes` bytes. Into the second-level cache: the first-level one has too few misses
/// under way.
__attribute__((always_inline)) inline void ask(Ahead& ahead, std::ptrdiff_t bytes) {
  while (bytes > 0) {
    if (ahead.left <= 0) {
      if (ahead.row >= ahead.count) return;
      ahead.next = ahead.data + ahead.at[ahead.row++] * ahead.element_bytes;
      ahead.left = ahead.bytes;
    }
    const std::ptrdiff_t count = bytes < ahead.left ? bytes : ahead.left;
    const char* next = ahead.next;
    for (std::ptrdiff_t i = 0; i < count; i += kLineBytes) __builtin_prefetch(next + i, 0, 2);
    ahead.next = next + count;
    ahead.left -= count;
    bytes -= count;
  }
}

}  // namespace
}  // namespace tilewise::cpu
