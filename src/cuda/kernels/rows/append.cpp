#include "cuda/kernels/rows/append.h"

#include <algorithm>
#include <string>

#include "cuda/host/common.h"
#include "cuda/kernels/rows/append_args.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using append_rows::Args;
using append_rows::Config;
using append_rows::Type;

KernelUnit unit(const Config& config) {
  const char* const type = config.type == Type::bf16   ? "bf16"
                           : config.type == Type::fp16 ? "fp16"
                                                       : "float32";
  return {.stem = "append_rows",
          .file = "rows/append",
          .config = std::string(".type = Type::") + type,
          .threads = append_rows::kThreads};
}

Config config_of(DType dtype) {
  return {.type = dtype == DType::bfloat16  ? Type::bf16
                  : dtype == DType::float16 ? Type::fp16
                                            : Type::float32};
}

append_rows::Rows rows(const Tensor& from, const Tensor& to) {
  const std::int64_t chunk = 16 / dtype_bytes(from.dtype);
  return {.from = host::view4(from),
          .to = host::view4(to),
          .heads = static_cast<int>(from.sizes[1]),
          .dim = static_cast<int>(from.sizes[3]),
          .chunks = static_cast<int>(ceil_div(from.sizes[3], chunk)),
          .vectors = host::has_vectors(from) && host::has_vectors(to)};
}

/// 16-byte chunks of an entry: positions and their counts are 32-bit on the device.
std::int64_t chunks(const append_rows::Rows& r, std::int64_t of_entry) {
  return of_entry * r.heads * r.chunks;
}

void fill_rotary(Args& args, const Append& call) {
  const Rotary& r = call.rotary;
  if (call.rotary_dim == 0) return;
  args.cos = r.cos.data;
  args.sin = r.sin.data;
  args.cos_n = r.cos.strides[0], args.cos_p = r.cos.strides[1];
  args.sin_n = r.sin.strides[0], args.sin_p = r.sin.strides[1];
  args.float_tables = r.cos.dtype == DType::float32;
  args.interleaved = r.interleaved;
  args.one_query_position = r.one_query_position;
  args.rotary_dim = static_cast<int>(call.rotary_dim);
  args.positions = static_cast<int>(std::min<std::int64_t>(call.positions, 1 << 30));
  if (r.positions.defined()) {
    args.first_positions = static_cast<const int*>(r.positions.data);
    args.first_positions_b = r.positions.strides[0];
  }
}

Args make_args(const Append& call) {
  Args args;
  args.k = rows(call.k, call.k_cache);
  args.v = rows(call.v, call.v_cache);
  if (call.has_queries()) args.q = rows(call.q, call.rotated_q);
  if (call.packed) args.new_rows = host::sequences(call.cu_seqlens, call.batch, call.k.sizes[2]);
  args.rows = static_cast<int>(call.rows);
  args.rows_q = static_cast<int>(call.rows_q);
  args.lengths = static_cast<const int*>(call.lengths.data);
  args.lengths_b = call.lengths.strides[0];
  if (call.new_lengths.defined()) {
    args.new_lengths = static_cast<int*>(call.new_lengths.data);
    args.new_lengths_b = call.new_lengths.strides[0];
  }
  if (call.skipped.defined()) {
    args.skipped = static_cast<unsigned char*>(call.skipped.data);
    args.skipped_b = call.skipped.strides[0];
  }
  args.pages = host::pages(call.block_table, call.page_size);
  args.table_pages = call.page_size > 0 ? static_cast<int>(call.table_pages) : 0;
  args.pool_pages = static_cast<int>(call.pages);
  fill_rotary(args, call);
  return args;
}

void require_countable(const Append& call, std::int64_t most_chunks, std::int64_t blocks) {
  constexpr std::int64_t kMost = std::int64_t{1} << 29;
  if (call.capacity() > kMost || call.page_size > kMost || call.pages > (kMost << 1)) {
    throw Unsupported("append: caches of more than 2^29 keys an entry are not supported on a GPU");
  }
  if (most_chunks > kMost || call.batch * blocks >= (std::int64_t{1} << 31) ||
      call.k.sizes[2] > kMost) {
    throw Unsupported("append: more than 2^29 new rows or vectors are not supported on a GPU");
  }
}

}  // namespace

void append(const Append& call, void* stream) {
  Args args = make_args(call);
  const std::int64_t most =
      std::max({chunks(args.k, call.rows), chunks(args.v, call.rows), chunks(args.q, call.rows_q)});
  const std::int64_t of_block = std::int64_t{append_rows::kThreads} * append_rows::kChunksPerThread;
  const std::int64_t blocks = std::max<std::int64_t>(1, ceil_div(most, of_block));
  require_countable(call, most, blocks);
  args.blocks = static_cast<int>(blocks);
  launch(host::load_config(config_of(call.dtype), call.device.index, unit),
         {.x = call.batch * blocks}, stream, args);
}

void add_append_units(std::vector<PackUnit>& units) {
  for (const Type type : {Type::bf16, Type::fp16}) {
    units.push_back({.unit = unit({.type = type}), .row = "append", .instruction = ""});
  }
}

}  // namespace tilewise::cuda
