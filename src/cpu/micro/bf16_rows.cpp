#include "cpu/micro/bf16_rows.h"

#include <algorithm>

#include "cpu/key_run.h"
#include "cpu/micro/elements.h"

namespace tilewise::cpu {

const Bf16Micro& bf16_micro(Isa isa) {
  if (isa < Isa::amx) return bf16_micro_avx512bf16();
  return emulate_amx() ? bf16_micro_emulated() : bf16_micro_amx();
}

void bf16_rows(const Tensor& t, std::int64_t b, std::int64_t h, const RowSpan& rows, Bf16* out,
               std::int64_t ld) {
  const auto* data = static_cast<const Bf16*>(t.data);
  const std::int64_t cols = t.sizes[3];
  const std::int64_t stride = t.strides[3];
  for (int r = 0; r < rows.count; ++r, out += ld) {
    const Bf16* row = data + offset_of(t, b, h, rows.first + r);
    if (stride == 1) {
      std::copy_n(row, cols, out);
    } else {
      for (std::int64_t c = 0; c < cols; ++c) out[c] = row[c * stride];
    }
    std::fill(out + cols, out + ld, Bf16{0});
  }
  std::fill_n(out, (rows.padded - rows.count) * ld, Bf16{0});
}

Bf16Rows bf16_view(const Tensor& t, std::int64_t b, std::int64_t h, const RowSpan& rows, Bf16* out,
                   std::int64_t ld) {
  if (t.strides[3] == 1 && t.sizes[3] == ld && rows.count == rows.padded) {
    return {static_cast<const Bf16*>(t.data) + offset_of(t, b, h, rows.first), t.strides[2]};
  }
  bf16_rows(t, b, h, rows, out, ld);
  return {out, ld};
}

Bf16Rows bf16_key_view(const Problem& p, const Tensor& pool, std::int64_t b, const Sequence& s,
                       std::int64_t h, const RowSpan& rows, Bf16* out, std::int64_t ld) {
  if (!p.paged) {
    return bf16_view(pool, b, h, {s.k_begin + rows.first, rows.count, rows.padded}, out, ld);
  }
  for (int r = 0; r < rows.count;) {
    const Problem::KeyRow at = p.key_row(b, s, rows.first + r);
    const int run = key_run(p, rows.first + r, rows.count - r);
    bf16_rows(pool, at.batch, h, {at.row, run, run}, out + r * ld, ld);
    r += run;
  }
  std::fill_n(out + rows.count * ld, (rows.padded - rows.count) * ld, Bf16{0});
  return {out, ld};
}

}  // namespace tilewise::cpu
