/// append_rows: constants and parameters. See rows/append.md.
#pragma once

#include "cuda/tile/sequences_args.h"
#include "cuda/tile/types.h"

namespace tilewise::append_rows {

enum class Type : int { bf16, fp16, float32 };

struct Config {
  Type type = Type::bf16;  ///< of all rows

  bool operator==(const Config&) const = default;
};

/// Rows of K, V or Q and where they go.
struct Rows {
  tile::View4 from, to;  ///< to: of K and V a pool, whose first stride is that of pages
  int heads = 0, dim = 0;
  int chunks = 0;        ///< of 16 bytes, of a row
  bool vectors = false;  ///< rows of both are 16-byte aligned with unit stride
};

struct Args {
  Rows k, v, q;                  ///< q without heads: nothing to turn
  tile::Sequences new_rows;      ///< packed; without offsets every entry has `rows` and `rows_q`
  int rows = 0, rows_q = 0;      ///< of an entry
  const int* lengths = nullptr;  ///< (B): keys before
  long long lengths_b = 0;
  int* new_lengths = nullptr;  ///< (B), may be null
  long long new_lengths_b = 0;
  unsigned char* skipped = nullptr;  ///< (B), may be null
  long long skipped_b = 0;
  tile::Pages pages;    ///< without a table entry b has page b
  int table_pages = 1;  ///< of an entry
  int pool_pages = 0;
  const void* cos = nullptr;  ///< (positions, rotary_dim / 2); null: nothing turns
  const void* sin = nullptr;
  long long cos_n = 0, cos_p = 0, sin_n = 0, sin_p = 0;
  bool float_tables = false;  ///< else of the rows' type
  bool interleaved = false;
  bool one_query_position = false;
  int rotary_dim = 0, positions = 0;
  const int* first_positions = nullptr;  ///< (B); null: the lengths
  long long first_positions_b = 0;
  int blocks = 1;  ///< of an entry
};

inline constexpr int kThreads = 256;
inline constexpr int kChunksPerThread = 4;

}  // namespace tilewise::append_rows
