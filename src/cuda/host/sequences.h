/// Packed sequences and paged keys on the host, as kernels take them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/tile/sequences_args.h"
#include "problem/problem.h"

namespace tilewise::cuda::host {

tile::Sequences query_sequences(const Problem& problem);
tile::Sequences key_sequences(const Problem& problem);
tile::Pages pages(const Problem& problem);
/// For any offsets and tables. Pages have at most 2^29 rows.
tile::Sequences sequences(const Tensor& offsets, std::int64_t count, std::int64_t rows);
tile::Pages pages(const Tensor& block_table, std::int64_t page_size);

/// Blocks of `rows` rows of a head's queries, or keys. Packed sequences are counted by their
/// totals: sequence b, which begins at row r, has the blocks from r / rows + b on, as many as it
/// needs and at most one more. The rows behind the last sequence count as a sequence. No length has
/// to be known for that.
std::int64_t query_blocks(const Problem& problem, std::int64_t rows);
std::int64_t key_blocks(const Problem& problem, std::int64_t rows);
/// How many of them are none on average.
double idle_blocks(const Problem& problem);

/// True when the forward follows the page table. Else pack_rows has, and what it left is dense.
bool reads_pages(const Problem& problem);
/// True when packed sequences have Q, K, V or dO (0 to 3) in the blocks of pack_rows.
bool is_chunked(const Problem& problem, std::size_t operand);

}  // namespace tilewise::cuda::host
