/// bwd_sm90: boxes of rows of queries and of keys, by whichever maps a config has. Boxes of packed
/// sequences end where the sequence does; those of K and V, where its keys do.
#pragma once

#include "cuda/kernels/bwd_sm90/shared.cuh"
#include "cuda/tile/hopper/tma.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// Coordinates beside the column of row `row` of `rows` that begin at `begin`, in a map whose row
/// axis of N rows comes twice: see tile::Offsets.
__forceinline__ void ragged_row(int (&c)[4], int head, int n, int rows, int begin, int row,
                                int batch) {
  c[0] = head;
  c[1] = n - rows + row;
  c[2] = rows + begin;
  c[3] = batch;
}

/// Rows `row` on of Q, O or dO.
template <Config kConfig>
__forceinline__ void load_queries(const Args& args, const TensorMapBytes& map, u32 to, u32 full,
                                  int column, const Job& job, int head, int row) {
  if constexpr (kPacked<kConfig>) {
    int at[4];
    ragged_row(at, head, ragged<kConfig>(args).q_rows, job.seq_q, job.q_begin, row, 0);
    tma_load_5d(to, &map, full, column, at, kEvictLast);
  } else {
    tma_load(to, &map, full, column, head, row, job.batch, kEvictLast);
  }
}
/// Rows of the job's block of K or V.
template <Config kConfig>
__forceinline__ void load_keys(const Args& args, const TensorMapBytes& map, u32 to, u32 full,
                               int column, const Job& job) {
  const int row = job.block * kConfig.shape.block_n, head = key_head<kConfig>(args, job);
  if constexpr (kConfig.ragged()) {
    int at[4];
    ragged_row(at, head, ragged<kConfig>(args).k_rows, job.seq_k, job.k_begin, row,
               kPacked<kConfig> ? 0 : job.batch);
    tma_load_5d(to, &map, full, column, at, kEvictFirst);
  } else {
    tma_load(to, &map, full, column, head, row, job.batch, kEvictFirst);
  }
}
/// Rows `row` on of dQ, which are the sequence's.
template <Config kConfig>
__forceinline__ void store_queries(const Args& args, const TensorMapBytes& map, u32 from,
                                   int column, const Job& job, int row) {
  if constexpr (kPacked<kConfig>) {
    int at[4];
    ragged_row(at, job.head, ragged<kConfig>(args).q_rows, job.seq_q, job.q_begin, row, 0);
    tma_store_5d(&map, from, column, at);
  } else {
    tma_store(&map, from, column, job.head, row, job.batch);
  }
}
/// Rows `row` on of dK or dV: of a packed sequence those that it has, else also those behind a
/// length, which are 0.
template <Config kConfig>
__forceinline__ void store_keys(const Args& args, const TensorMapBytes& map, u32 from, int column,
                                const Job& job, int row) {
  if constexpr (kPacked<kConfig>) {
    if (row >= job.seq_k) return;
    int at[4];
    ragged_row(at, job.head, ragged<kConfig>(args).k_rows, job.seq_k, job.k_begin, row, 0);
    tma_store_5d(&map, from, column, at);
  } else {
    tma_store(&map, from, column, job.head, row, job.batch);
  }
}

}  // namespace tilewise::bwd_sm90
