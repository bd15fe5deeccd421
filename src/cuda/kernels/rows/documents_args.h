/// documents: constants and parameters. See rows/README.md.
#pragma once

namespace tilewise::documents {

struct Config {
  int rows = 128;     ///< of a row block
  bool wide = false;  ///< numbers of documents are int64

  bool operator==(const Config&) const = default;
};

struct Args {
  const void* ids = nullptr;  ///< (B, S): of each row the number of its document
  long long stride_b = 0, stride_s = 1;
  int length = 1;         ///< S
  int rows = 0;           ///< B * S
  int most = 0;           ///< row blocks at most
  int* blocks = nullptr;  ///< (most, 4): number in its document, its begin and end, batch entry
  int* count = nullptr;   ///< row blocks; 0: documents are not row after row, or too short
};

inline constexpr int kThreads = 1024;
/// Rows, and row blocks of them, at most.
inline constexpr int kMostRows = 1 << 18, kMost = 1 << 12;
/// Shared memory: a bit for each row, where documents begin, two numbers of each warp.
inline constexpr int kBytes = 4 * (kMostRows / 32 + kMost + 1 + 2 * kThreads / 32);

}  // namespace tilewise::documents
