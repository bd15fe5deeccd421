/// Asking for what is read after a block. In an unnamed namespace, as in micro_impl.h.
#pragma once

#include "cpu/micro/micro.h"

namespace tilewise::cpu {
namespace {

constexpr std::ptrdiff_t kLineBytes = 64;

/// The next `bytes` bytes, all of one row. Into the second-level cache: the first-level one has too
/// few misses under way.
inline void ask_in_row(Ahead& ahead, std::ptrdiff_t bytes) {
  for (std::ptrdiff_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(ahead.next + i, 0, 2);
  ahead.next += bytes;
  ahead.left -= bytes;
}

__attribute__((noinline)) inline void ask_over_rows(Ahead& ahead, std::ptrdiff_t bytes) {
  while (bytes > 0) {
    if (ahead.left <= 0) {
      if (ahead.row >= ahead.count) return;
      ahead.next = ahead.data + ahead.at[ahead.row++] * ahead.element_bytes;
      ahead.left = ahead.bytes;
    }
    const std::ptrdiff_t count = bytes < ahead.left ? bytes : ahead.left;
    ask_in_row(ahead, count);
    bytes -= count;
  }
}

/// For the next `bytes` bytes.
__attribute__((always_inline)) inline void ask(Ahead& ahead, std::ptrdiff_t bytes) {
  if (bytes <= ahead.left) return ask_in_row(ahead, bytes);
  if (ahead.left > 0 || ahead.row < ahead.count) ask_over_rows(ahead, bytes);
}

}  // namespace
}  // namespace tilewise::cpu
