#include "cuda/host/sequences.h"

#include <algorithm>
#include <bit>

#include "cuda/host/common.h"
#include "problem/blocks.h"

namespace tilewise::cuda::host {
namespace {

std::int64_t packed_blocks(const Problem& p, std::int64_t total, std::int64_t rows) {
  return total / rows + p.batch + 1;
}

}  // namespace

tile::Sequences sequences(const Tensor& offsets, std::int64_t count, std::int64_t rows) {
  return {.offsets = offsets.data,
          .stride = offsets.strides[0],
          .wide = offsets.dtype == DType::int64,
          .count = static_cast<int>(count),
          .rows = static_cast<int>(rows)};
}
tile::Sequences query_sequences(const Problem& p) {
  return sequences(p.cu_seqlens_q, p.batch, p.total_q);
}
tile::Sequences key_sequences(const Problem& p) {
  return sequences(p.cu_seqlens_k, p.batch, p.total_k);
}

tile::Pages pages(const Problem& p) { return pages(p.block_table, p.page_size); }
tile::Pages pages(const Tensor& block_table, std::int64_t page_size) {
  tile::Pages pages;
  pages.table = static_cast<const int*>(block_table.data);
  pages.table_b = block_table.strides[0];
  pages.table_p = block_table.strides[1];
  // Larger ones are of tables without a page, smaller ones of caches without a row.
  const auto size =
      std::clamp<std::uint64_t>(static_cast<std::uint64_t>(page_size), 1, std::uint64_t{1} << 29);
  pages.size = static_cast<int>(size);
  // Rounded up by less than 2^width >= size parts in 2^(29 + width): exact for keys below 2^29.
  const auto width = static_cast<int>(std::bit_width(size - 1));
  pages.shift = 29 + width;
  pages.multiplier = static_cast<unsigned>(((std::uint64_t{1} << pages.shift) + size - 1) / size);
  return pages;
}

std::int64_t query_blocks(const Problem& p, std::int64_t rows) {
  return p.packed ? packed_blocks(p, p.total_q, rows) : ceil_div(p.seq_q, rows);
}
std::int64_t key_blocks(const Problem& p, std::int64_t rows) {
  return p.packed_keys() ? packed_blocks(p, p.total_k, rows) : ceil_div(p.seq_k, rows);
}
double idle_blocks(const Problem& p) {
  return p.packed ? 0.5 * static_cast<double>(p.batch) + 1.0 : 0.0;
}

bool reads_pages(const Problem& p) {
  return p.paged && !form(p).scaled && has_vectors(p.k) && has_vectors(p.v);
}

bool is_chunked(const Problem& p, std::size_t operand) {
  const Tensor* tensors[] = {&p.q, &p.k, &p.v, &p.d_o};
  const bool packed = operand == 1 || operand == 2 ? p.packed_keys() : p.packed;
  return packed && (form(p).scaled || !has_vectors(*tensors[operand]));
}

}  // namespace tilewise::cuda::host
