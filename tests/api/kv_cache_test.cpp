// append() on the CPU: what it writes, what it leaves, what it names when there is no room.
#include "tilewise/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cpu/micro/elements.h"
#include "expect_parts.h"
#include "tilewise/tilewise.h"

namespace tilewise {
namespace {

constexpr std::int64_t kHeads = 2, kHeadsQ = 4, kDim = 12, kDimV = 6;
constexpr float kOld = 0.25F;

/// Elements of any type, written and read as float32.
struct Values {
  DType dtype;
  std::vector<std::byte> bytes;
  explicit Values(DType type, std::int64_t count)
      : dtype(type), bytes(static_cast<std::size_t>(count * dtype_bytes(type))) {}
  Tensor row() {
    const auto count = static_cast<std::int64_t>(bytes.size()) / dtype_bytes(dtype);
    return Tensor::contiguous(bytes.data(), dtype, {count});
  }
  void fill(const std::vector<float>& x) {
    cpu::store_row(row(), 0, 1, static_cast<std::int64_t>(x.size()), x.data());
  }
  std::vector<float> floats() {
    std::vector<float> x(bytes.size() / static_cast<std::size_t>(dtype_bytes(dtype)));
    cpu::load_row(row(), 0, 1, static_cast<std::int64_t>(x.size()), x.data());
    return x;
  }
};

std::vector<float> wave(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

/// Three entries over pools of 9 pages of 4 rows, new rows packed.
struct Call {
  std::vector<std::int32_t> lengths{3, 0, 9}, offsets{0, 9, 9, 10}, after{-1, -1, -1};
  std::vector<std::int32_t> table{8, 2, 5, -1, 1 << 30, -1, 0, 7, 3};
  std::vector<std::uint8_t> skipped{9, 9, 9};
  std::vector<float> cos, sin;
  DType dtype;
  Values k, v, q, rotated, k_pool, v_pool;
  AppendTensors t;
  AppendSpec spec;

  explicit Call(DType type = DType::float32, std::int64_t rotary_dim = 0)
      : dtype(type),
        k(type, 10 * kHeads * kDim),
        v(type, 10 * kHeads * kDimV),
        q(type, 10 * kHeadsQ * kDim),
        rotated(type, 10 * kHeadsQ * kDim),
        k_pool(type, 36 * kHeads * kDim),
        v_pool(type, 36 * kHeads * kDimV) {
    k.fill(wave(10 * kHeads * kDim, 1)), v.fill(wave(10 * kHeads * kDimV, 2));
    q.fill(wave(10 * kHeadsQ * kDim, 3));
    k_pool.fill(std::vector<float>(36 * kHeads * kDim, kOld));
    v_pool.fill(std::vector<float>(36 * kHeads * kDimV, kOld));
    t.k = Tensor::packed(k.bytes.data(), type, 10, kHeads, kDim);
    t.v = Tensor::packed(v.bytes.data(), type, 10, kHeads, kDimV);
    t.q = Tensor::packed(q.bytes.data(), type, 10, kHeadsQ, kDim);
    t.rotated_q = Tensor::packed(rotated.bytes.data(), type, 10, kHeadsQ, kDim);
    t.k_cache = Tensor::bshd(k_pool.bytes.data(), type, 9, 4, kHeads, kDim);
    t.v_cache = Tensor::bshd(v_pool.bytes.data(), type, 9, 4, kHeads, kDimV);
    t.lengths = Tensor::contiguous(lengths.data(), DType::int32, {3});
    t.new_lengths = Tensor::contiguous(after.data(), DType::int32, {3});
    t.skipped = Tensor::contiguous(skipped.data(), DType::uint8, {3});
    spec.block_table = Tensor::contiguous(table.data(), DType::int32, {3, 3});
    spec.cu_seqlens = Tensor::contiguous(offsets.data(), DType::int32, {4});
    if (rotary_dim == 0) return;
    for (std::int64_t n = 0; n < 12; ++n) {
      for (std::int64_t p = 0; p < rotary_dim / 2; ++p) {
        const float angle = static_cast<float>(n) / (1.0F + static_cast<float>(p));
        cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
      }
    }
    spec.rotary.cos = Tensor::contiguous(cos.data(), DType::float32, {12, rotary_dim / 2});
    spec.rotary.sin = Tensor::contiguous(sin.data(), DType::float32, {12, rotary_dim / 2});
  }

  /// Row of kDim elements at a position, by the formula.
  std::vector<float> turned(const float* x, std::int64_t position) const {
    std::vector<float> y(x, x + kDim);
    const std::int64_t half = spec.rotary.cos.defined() ? spec.rotary.cos.sizes[1] : 0;
    for (std::int64_t p = 0; p < half; ++p) {
      const auto at = static_cast<std::size_t>(position * half + p);
      const auto i = static_cast<std::size_t>(spec.rotary.interleaved ? 2 * p : p);
      const auto j = static_cast<std::size_t>(spec.rotary.interleaved ? 2 * p + 1 : p + half);
      y[i] = x[i] * cos[at] - x[j] * sin[at];
      y[j] = x[i] * sin[at] + x[j] * cos[at];
    }
    return y;
  }
};

void expect_row(const std::vector<float>& truth, const float* got, float bound,
                const std::string& what) {
  for (std::size_t d = 0; d < truth.size(); ++d) {
    EXPECT_NEAR(truth[d], got[d], bound * std::max(1.0F, std::fabs(truth[d]))) << what << ' ' << d;
  }
}

void check(Call& c) {
  append(c.t, c.spec);
  EXPECT_EQ(c.after, (std::vector<std::int32_t>{12, 0, 10}));
  EXPECT_EQ(c.skipped, (std::vector<std::uint8_t>{0, 0, 0}));
  const float bound = c.dtype == DType::float32    ? 1e-6F
                      : c.dtype == DType::bfloat16 ? 0x1p-8F
                                                   : 0x1p-11F;
  const std::vector<float> k = c.k.floats(), v = c.v.floats(), q = c.q.floats();
  std::vector<float> keys = c.k_pool.floats(), values = c.v_pool.floats();
  const std::vector<float> rotated = c.rotated.floats();
  for (std::size_t b = 0; b < 3; ++b) {
    for (std::int32_t row = c.offsets[b]; row < c.offsets[b + 1]; ++row) {
      const std::int32_t j = c.lengths[b] + row - c.offsets[b];
      const std::int64_t position =
          c.spec.rotary.positions.defined()
              ? static_cast<const std::int32_t*>(c.spec.rotary.positions.data)[b] + row -
                    c.offsets[b]
              : j;
      const std::int64_t slot =
          std::int64_t{c.table[b * 3 + static_cast<std::size_t>(j / 4)]} * 4 + j % 4;
      for (std::int64_t h = 0; h < kHeads; ++h) {
        float* key = &keys[static_cast<std::size_t>((slot * kHeads + h) * kDim)];
        float* value = &values[static_cast<std::size_t>((slot * kHeads + h) * kDimV)];
        const auto from = static_cast<std::size_t>(row * kHeads + h);
        expect_row(c.turned(&k[from * kDim], position), key, bound, "K");
        expect_row({&v[from * kDimV], &v[from * kDimV] + kDimV}, value, 0.0F, "V");
        std::fill_n(key, kDim, kOld), std::fill_n(value, kDimV, kOld);
      }
      for (std::int64_t h = 0; h < kHeadsQ; ++h) {
        const auto from = static_cast<std::size_t>((row * kHeadsQ + h) * kDim);
        const std::int64_t at =
            position - (c.spec.rotary.one_query_position ? row - c.offsets[b] : 0);
        expect_row(c.turned(&q[from], at), &rotated[from], bound, "Q");
      }
    }
  }
  // Whatever is not a new row is as before.
  EXPECT_EQ(keys, std::vector<float>(keys.size(), kOld));
  EXPECT_EQ(values, std::vector<float>(values.size(), kOld));
}

TEST(Append, WritesIntoPagesAndTurnsToPositions) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const std::int64_t rotary_dim : {0, 4, 12}) {
      for (const bool interleaved : {false, true}) {
        Call c(dtype, rotary_dim);
        c.spec.rotary.interleaved = interleaved;
        check(c);
      }
    }
  }
}

TEST(Append, PositionsMayBeOthersThanTheLengths) {
  Call c(DType::float32, 8);
  std::int32_t positions[] = {1, 0, 4};
  c.spec.rotary.positions = Tensor::contiguous(positions, DType::int32, {3});
  c.spec.rotary.one_query_position = true;
  check(c);
}

TEST(Append, AContiguousCacheNeedsNoTable) {
  std::vector<float> k = wave(2 * 3 * kHeads * kDim, 4), v = wave(2 * 3 * kHeads * kDimV, 5);
  std::vector<float> k_cache(2 * 8 * kHeads * kDim, kOld), v_cache(2 * 8 * kHeads * kDimV, kOld);
  std::int32_t lengths[] = {5, 0};
  const auto rows = [](std::vector<float>& x, std::int64_t n, std::int64_t dim) {
    return Tensor::bshd(x.data(), DType::float32, 2, n, kHeads, dim);
  };
  append({.k = rows(k, 3, kDim),
          .v = rows(v, 3, kDimV),
          .k_cache = rows(k_cache, 8, kDim),
          .v_cache = rows(v_cache, 8, kDimV),
          .lengths = Tensor::contiguous(lengths, DType::int32, {2})});
  for (std::size_t b = 0; b < 2; ++b) {
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t row = kHeads * kDim, first = b == 0 ? 5 : 0;
      const bool is_new = i >= first && i < first + 3;
      for (std::size_t d = 0; d < row; ++d) {
        EXPECT_EQ(k_cache[(b * 8 + i) * row + d], is_new ? k[(b * 3 + i - first) * row + d] : kOld);
      }
    }
  }
}

/// The message of the InvalidArgument, after which nothing has been written.
std::string message(const std::function<void(Call&)>& spoil) {
  Call c(DType::float32, 8);
  spoil(c);
  const std::vector<std::byte> before = c.k_pool.bytes;
  try {
    append(c.t, c.spec);
  } catch (const InvalidArgument& e) {
    EXPECT_EQ(c.k_pool.bytes, before);
    EXPECT_EQ(c.after, (std::vector<std::int32_t>{-1, -1, -1}));
    return e.what();
  }
  return "accepted";
}

TEST(Append, NothingIsLostWhereThereIsNoRoom) {
  expect_parts(message([](Call& c) { c.lengths[2] = 12; }),
               {"lengths is", "sequence 2 has 12 keys and gets 1 more", "pages hold 12"});
  expect_parts(message([](Call& c) { c.lengths[1] = -2; }), {"sequence 1 has -2 keys"});
  expect_parts(message([](Call& c) { c.table[2] = 9; }),
               {"block_table is", "sequence 0 has 3 keys", "entry (0, 2) is 9", "pages 0 to 8"});
  expect_parts(
      message([](Call& c) { c.spec.rotary.cos.sizes[0] = c.spec.rotary.sin.sizes[0] = 11; }),
      {"rotary.cos is", "sequence 0", "its last position is 11"});
}

TEST(Append, NamesTheArgument) {
  expect_parts(message([](Call& c) { c.t.v.dtype = DType::float16; }), {"v is", "that of k"});
  expect_parts(message([](Call& c) { c.t.k_cache.sizes[3] = 8; }), {"k_cache is", "(9, 2, 4, 12)"});
  expect_parts(message([](Call& c) { c.t.rotated_q = {}; }), {"rotated_q is not given"});
  expect_parts(message([](Call& c) { c.t.rotated_q = c.t.q; }), {"rotated_q", "memory with q"});
  // Rows would be read after others were written over them.
  expect_parts(message([](Call& c) { c.t.k.data = c.k_pool.bytes.data(); }),
               {"k_cache", "memory with k;"});
  expect_parts(message([](Call& c) { c.t.v.data = c.v_pool.bytes.data(); }),
               {"v_cache", "memory with v;"});
  expect_parts(message([](Call& c) { c.t.new_lengths = c.t.lengths; }), {"new_lengths", "memory"});
  expect_parts(message([](Call& c) { c.t.new_lengths.data = c.lengths.data() + 1; }),
               {"new_lengths", "memory with lengths"});
  expect_parts(message([](Call& c) { c.t.skipped.data = c.lengths.data(); }),
               {"skipped", "memory with lengths"});
  expect_parts(message([](Call& c) { c.spec.block_table.data = c.k_pool.bytes.data(); }),
               {"k_cache", "memory with block_table"});
  expect_parts(message([](Call& c) { c.t.rotated_q.data = c.v_pool.bytes.data(); }),
               {"v_cache", "memory with rotated_q"});
  expect_parts(message([](Call& c) {
                 c.spec.cu_seqlens.data = nullptr;
                 c.spec.max_seqlen = 9;
               }),
               {"cu_seqlens is", "its data pointer is null"});
  expect_parts(message([](Call& c) { c.spec.rotary.sin = {}; }), {"rotary.sin is not given"});
  expect_parts(
      message([](Call& c) { c.spec.rotary.cos.sizes[1] = c.spec.rotary.sin.sizes[1] = 7; }),
      {"rotary.cos", "at most 6"});
  expect_parts(message([](Call& c) { c.spec.max_seqlen = 5; }), {"max_seqlen is 5", "9 rows"});
  expect_parts(message([](Call& c) { c.t.lengths.dtype = DType::int64; }), {"lengths is int64"});
  expect_parts(message([](Call& c) { c.spec.block_table.sizes[0] = 2; }), {"block_table", "B = 3"});
  expect_parts(message([](Call& c) { c.t.k.dtype = c.t.v.dtype = DType::float64; }),
               {"k is float64", "float32, bfloat16 or float16"});
}

TEST(Append, IsInTheCApi) {
  Call c(DType::float32, 8);
  tw_append_args args = TW_INIT(tw_append_args);
  const auto give = [](tw_tensor& to, const Tensor& from) {
    to = TW_INIT(tw_tensor);
    to.data = from.data;
    to.dtype = static_cast<std::int32_t>(from.dtype);
    to.rank = from.rank;
    for (std::size_t n = 0; n < 4; ++n)
      to.sizes[n] = from.sizes[n], to.strides[n] = from.strides[n];
  };
  give(args.k, c.t.k), give(args.v, c.t.v), give(args.q, c.t.q),
      give(args.rotated_q, c.t.rotated_q);
  give(args.k_cache, c.t.k_cache), give(args.v_cache, c.t.v_cache);
  give(args.lengths, c.t.lengths), give(args.new_lengths, c.t.new_lengths);
  give(args.block_table, c.spec.block_table), give(args.cu_seqlens, c.spec.cu_seqlens);
  give(args.rotary_cos, c.spec.rotary.cos), give(args.rotary_sin, c.spec.rotary.sin);
  ASSERT_EQ(tw_append(&args, nullptr), TW_OK) << tw_last_error();
  Call cpp(DType::float32, 8);
  append(cpp.t, cpp.spec);
  EXPECT_EQ(c.k_pool.bytes, cpp.k_pool.bytes);
  EXPECT_EQ(c.rotated.bytes, cpp.rotated.bytes);
  EXPECT_EQ(c.after, cpp.after);
  c.lengths[0] = 30;
  EXPECT_EQ(tw_append(&args, nullptr), TW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tw_last_error()).find("sequence 0 has 30 keys"), std::string::npos);
}

}  // namespace
}  // namespace tilewise
