/// bwd_dbias_sm80: the gradient of a bias by tiles, without a matrix of all pairs. sm_80 and newer.
///
///   P = exp(S - LSE); dP = dO V^T; dbias = P (dP - delta) (B1, B4 to B6), summed over the axes
///   that the bias broadcasts over
///
/// One block owns block_m x block_n elements of the bias and walks over the batch entries, heads,
/// rows and keys that share them, with the tiles and the score steps of bwd_dq_sm80; or several
/// blocks do, each a part of them, whose sums bwd_convert adds. Every sum has one writer and a
/// fixed order of additions: repeatable. See bwd_sm80/bias.md.
#pragma once

#include "cuda/kernels/bwd_sm80/bias_args.h"
#include "cuda/kernels/bwd_sm80/queries.cuh"

namespace tilewise::bwd_dbias_sm80 {

using namespace tile;

/// What a block walks over along one axis: its own index, or all of them where the bias
/// broadcasts.
struct Walk {
  int begin, count;
  __forceinline__ Walk(i64 stride, int index, int all)
      : begin(stride == 0 ? 0 : index), count(stride == 0 ? all : 1) {}
  /// The index of step `n`, which becomes the step of the axes outside.
  __forceinline__ int take(i64& n) const {
    const int at = begin + static_cast<int>(n % count);
    n /= count;
    return at;
  }
};

/// sum += the products of kSteps steps of 16 columns from `first` on: with a low plane where the
/// tiles have two, else of the planes that they have.
template <Element kElement, int kSteps, int kM, int kN, int kRowsA, int kRowsB, int kCols,
          int kPlanes>
__forceinline__ void add_steps(Acc (&sum)[kM][kN], const SharedTile<kRowsA, kCols, kPlanes>& a,
                               int a_row, const SharedTile<kRowsB, kCols, kPlanes>& b, int first,
                               int lane) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    FragmentA<kPlanes> rA[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) a.load_a(rA[m], a_row + 16 * m, first + step, lane);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      FragmentB<kPlanes> rB;
      b.load_b(rB, 8 * n, first + step, lane);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (kPlanes == 2) {
            mma_low<kElement>(sum[m][n + half], rA[m], rB, half);
          } else {
            mma_high<kElement>(sum[m][n + half], rA[m], rB, half);
          }
        }
      }
    }
  }
}

template <int kM, int kN>
__forceinline__ void add(Acc (&sum)[kM][kN], const Acc (&x)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[m][n][e] += x[m][n][e];
    }
  }
}

/// product = A B^T. Two planes of wide rows: by 64 columns, each sum from zero and added in
/// float32, because tensor cores truncate when they add, always towards zero, and a sum over many
/// rows shows it.
template <Element kElement, int kM, int kN, int kRowsA, int kRowsB, int kCols, int kPlanes>
__forceinline__ void multiply(Acc (&product)[kM][kN], const SharedTile<kRowsA, kCols, kPlanes>& a,
                              int a_row, const SharedTile<kRowsB, kCols, kPlanes>& b, int lane) {
  clear(product);
  if constexpr (kPlanes == 1 || kCols <= 128) {
    product_rows<kElement>(product, a, a_row, b, 0, lane);
  } else {
    constexpr int kSteps = 4;
    static_assert(kCols % (16 * kSteps) == 0);
#pragma unroll 1
    for (int first = 0; first < kCols / 16; first += kSteps) {
      Acc fresh[kM][kN];
      clear(fresh);
      add_steps<kElement, kSteps>(fresh, a, a_row, b, first, lane);
      add_steps<kElement, kSteps>(fresh, high_plane(a), a_row, high_plane(b), first, lane);
      add(product, fresh);
    }
  }
}

template <Config kConfig>
struct BiasGradient {
  using Tiles = bwd_dq_sm80::QueryGradient<kConfig>;
  static constexpr int kBlockM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr int kM = Tiles::kM, kN = Tiles::kN;
  static_assert(kConfig.pairs.bias != BiasType::none && !kConfig.split);

  const Args& args;
  const u32 shared;
  const int thread;
  const Captures* captures;
  Acc sum[kM][kN];

  __forceinline__ BiasGradient(const Args& a, u32 shared_base, const Captures* t)
      : args(a), shared(shared_base), thread(static_cast<int>(threadIdx.x)), captures(t) {
    clear(sum);
  }

  /// Adds the block of rows and the block of keys of one batch entry and head.
  __forceinline__ void add(int batch, int head, int row_block, int key_block) {
    bwd_dq_sm80::Work<kConfig> work(args.pass, shared,
                                    {row_block, 0, batch * args.pass.heads_q + head}, captures);
    if (key_block < work.range.begin || key_block >= work.range.end) return;
    Tiles& tiles = work.block;
    if constexpr (kConfig.listed()) {
      if (!is_listed(args.pass.lists, tiles.list(), row_block, key_block)) return;
    }
    __syncthreads();  // all warps are done with the operands before
    tiles.load_queries();
    tiles.load_keys(key_block, 0);
    tiles.pairs().load_async(tiles.corner(key_block * kBlockN));
    copy_async_commit();
    tiles.read_low();
    copy_async_wait<0>();
    __syncthreads();  // the operands have landed, for all threads
    const int key = key_block * kBlockN;
    const typename Tiles::Pairs::Shown shown = tiles.pairs().shown(tiles.corner(key));
    if (!shown.some) return;
    Acc dX[kM][kN];
    logit_gradients(dX, tiles, key, shown);
    bwd_dbias_sm80::add(sum, dX);
  }
  /// (B6) Gradients of the logits of the keys in stage 0, from `key` on, whole: nothing is known of
  /// a mask.
  __forceinline__ void logit_gradients(Acc (&dX)[kM][kN], const Tiles& t, int key,
                                       const typename Tiles::Pairs::Shown& shown) const {
    constexpr Element kElement = kConfig.form.element;
    float k_scale = 1.0F, v_scale = 1.0F;
    if constexpr (kConfig.form.scaled) {
      k_scale = args.pass.k_scale[t.key_scale_index(key)];
      v_scale = args.pass.v_scale[t.key_scale_index(key)];
    }
    const typename Tiles::Kept kept = t.kept_pairs(key);
    const int row = t.warp * Tiles::kRows;
    Acc S[kM][kN], unused[kM][kN];
    multiply<kElement>(S, t.sQ(), row, t.sK(0), t.lane);   // (F1)
    multiply<kElement>(dX, t.sO(), row, t.sV(0), t.lane);  // (B4)
    kept.drop(dX, args.pass.dropout.scale);
    t.logits(S, unused, k_scale * t.q_scale, key, shown, true);
    t.mask(S, key);
    t.score_gradients(S, dX, 1.0F, v_scale * t.do_scale, true);  // (B5)
  }

  // ---- epilogue

  static __forceinline__ u32 place(int row, int col) {
    return static_cast<u32>((row * kBlockN + col) * 4);
  }
  __forceinline__ void stage(int warp, int lane) const {
    __syncthreads();  // all warps are done with the operands
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = warp * Tiles::kRows + 16 * m + lane / 4 + 8 * (e / 2);
          store_shared_4(shared + place(row, 8 * n + 2 * (lane % 4) + e % 2),
                         static_cast<u32>(__float_as_int(sum[m][n][e])));
        }
      }
    }
    __syncthreads();  // the sums of all warps are there
  }
  __forceinline__ void write(i64 at, float x) const {
    if (kConfig.pairs.bias == BiasType::float32) {
      static_cast<float*>(args.dbias.data)[at] = x;
    } else {
      static_cast<unsigned short*>(args.dbias.data)[at] = static_cast<unsigned short>(
          kConfig.pairs.bias == BiasType::bf16 ? pack<Element::bf16>(x, 0.0F)
                                               : pack<Element::fp16>(x, 0.0F));
    }
  }
  /// The sum of each row of the tile, to its first column.
  __forceinline__ void sum_columns() const {
    for (int row = thread; row < kBlockM; row += Tiles::kThreads) {
      float total = 0.0F;
      for (int c = 0; c < kBlockN; ++c) total += load_shared_f32(shared + place(row, c));
      store_shared_4(shared + place(row, 0), static_cast<u32>(__float_as_int(total)));
    }
    __syncthreads();  // the sums of all rows are there
  }
  /// Calls put(row, key, sum) for the elements of the bias that the tile from (row, key) has.
  template <class Put>
  __forceinline__ void for_each_sum(int row, int key, Put put) const {
    const bool all_rows = args.dbias.stride_s == 0, all_keys = args.dbias.stride_d == 0;
    if (all_keys) sum_columns();
    const int rows = all_rows ? 1 : min(kBlockM, args.pass.seq_q - row);
    const int keys = all_keys ? 1 : min(kBlockN, args.pass.seq_k - key);
    const int more_rows = all_rows ? kBlockM : 1;
    for (int index = thread; index < rows * keys; index += Tiles::kThreads) {
      const int i = index / keys, j = index % keys;
      float total = 0.0F;
      for (int r = 0; r < more_rows; ++r) total += load_shared_f32(shared + place(i + r, j));
      put(row + i, key + j, total);
    }
  }
  /// The tile's elements from (row, key), of a batch entry and a head of the bias.
  __forceinline__ void store(int batch, int head, int row, int key) const {
    const View4& to = args.dbias;
    const i64 base = batch * to.stride_b + head * to.stride_h;
    for_each_sum(row, key, [&](int i, int j, float total) {
      write(base + i * to.stride_s + j * to.stride_d, total);
    });
  }
  __forceinline__ void store_part(int part, int batch, int head, int row, int key) const {
    const i64 bh = static_cast<i64>(batch) * args.axes.heads + head;
    const i64 pairs = static_cast<i64>(args.axes.batch) * args.axes.heads;
    float* to = args.sums + (part * pairs + bh) * args.padded_rows * args.padded_keys;
    for_each_sum(row, key, [&](int i, int j, float total) {
      const i64 fragment = static_cast<i64>(i / 16) * (args.padded_keys / 8) + j / 8;
      to[fragment * 128 + (i % 8 * 4 + j % 8 / 2) * 4 + i % 16 / 8 * 2 + j % 2] = total;
    });
  }
};

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& any) {
  const Args& args = plain_args(any);
  extern __shared__ __align__(1024) unsigned char shared[];
  using Block = BiasGradient<kConfig>;
  int index = static_cast<int>(blockIdx.x);
  const int part = index % args.parts;
  index /= args.parts;
  const int key = index % args.axes.keys;
  index /= args.axes.keys;
  const int row = index % args.axes.rows;
  index /= args.axes.rows;
  const int head = index % args.axes.heads, batch = index / args.axes.heads;
  wait_for_previous();  // for packed operands, lse2 and delta
  const View4& to = args.dbias;
  const Walk batches(to.stride_b, batch, args.batch), heads(to.stride_h, head, args.pass.heads_q);
  const int row_blocks = (args.pass.seq_q + Block::kBlockM - 1) / Block::kBlockM;
  const int key_blocks = (args.pass.seq_k + Block::kBlockN - 1) / Block::kBlockN;
  const Walk rows(to.stride_s, row, row_blocks), keys(to.stride_d, key, key_blocks);
  Block block(args, shared_address(shared), captures_of(any));
  const i64 steps = static_cast<i64>(batches.count) * heads.count * rows.count * keys.count;
  // Not in one piece each: a causal mask would give the last parts more to do.
#pragma unroll 1
  for (i64 step = part; step < steps; step += args.parts) {
    i64 rest = step;
    const int j = keys.take(rest), i = rows.take(rest), h = heads.take(rest);
    block.add(batches.take(rest), h, i, j);
  }
  const int warp = __shfl_sync(~0U, block.thread / 32, 0);
  block.stage(warp, block.thread % 32);
  const int first_row = row * Block::kBlockM, first_key = key * Block::kBlockN;
  if (args.parts > 1) {
    block.store_part(part, batch, head, first_row, first_key);
  } else {
    block.store(batch, head, first_row, first_key);
  }
}

}  // namespace tilewise::bwd_dbias_sm80
