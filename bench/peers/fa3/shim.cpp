// FlashAttention-3's own kernels behind two C functions, without a framework: what bench/peers
// calls by ctypes. Built by build.sh against a checkout of their repository; fills their parameter
// structs as their Python interface does for dense bf16 tensors, one split, no packed heads.
#include <cuda_runtime.h>
#include <cutlass/numeric_types.h>

#include <cstdint>

#include "flash.h"

extern "C" {

/// One call. Every tensor is contiguous (batch, heads, seq, dim), bf16; lse is float32 (batch,
/// heads, seq_q). The gradients are read by fa3_backward alone.
struct Fa3Args {
  std::int64_t batch, heads, kv_heads, seq_q, seq_k, dim, causal;
  double scale;
  void *q, *k, *v, *o, *lse, *d_o, *dq, *dk, *dv;
  void* workspace;
  /// Keys left and right of the diagonal that ends at the last key; -1: all. Forward alone.
  std::int64_t window_left, window_right;
};
}

namespace {

using Bf16 = cutlass::bfloat16_t;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Rows of the backward's query and key tiles, which the layout of its workspace follows.
std::int64_t block_m(const Fa3Args& a) {
  if (a.dim == 64) return 128;
  return a.dim == 128 && a.causal == 0 ? 80 : 64;
}
std::int64_t block_n(const Fa3Args& a) { return a.dim == 256 ? 80 : 128; }

/// Cuts the workspace into 256-byte aligned parts; with a null base it only counts.
class Cutter {
 public:
  explicit Cutter(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    T* at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), 256);
    return at;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  std::int64_t bytes_ = 0;
};

struct Workspace {
  int* tile_counter;
  int* dq_semaphore;
  float *delta, *lse_log2, *dq_accum, *dk_accum, *dv_accum;
  std::int64_t kv_accum_bytes, bytes;

  Workspace(const Fa3Args& a, bool backward) : Workspace(a, backward, a.workspace) {}
  Workspace(const Fa3Args& a, bool backward, void* base) {
    Cutter cut(base);
    tile_counter = cut.take<int>(1);
    const std::int64_t rows = a.batch * a.heads * round_up(a.seq_q, block_m(a));
    const std::int64_t keys = a.batch * a.kv_heads * round_up(a.seq_k, block_n(a));
    const bool grouped = a.heads != a.kv_heads;
    kv_accum_bytes = grouped ? keys * a.dim * 4 : 0;
    if (backward) {
      delta = cut.take<float>(rows);
      lse_log2 = cut.take<float>(rows);
      dq_accum = cut.take<float>(rows * a.dim);
      dq_semaphore = cut.take<int>(a.batch * a.heads * (a.seq_q / block_m(a) + 1));
      dk_accum = cut.take<float>(grouped ? keys * a.dim : 0);
      dv_accum = cut.take<float>(grouped ? keys * a.dim : 0);
    }
    bytes = cut.bytes();
  }
};

void set_forward(Flash_fwd_params& p, const Fa3Args& a) {
  p.is_bf16 = true;
  p.q_ptr = a.q;
  p.k_ptr = a.k;
  p.v_ptr = a.v;
  p.o_ptr = a.o;
  p.softmax_lse_ptr = a.lse;
  p.q_row_stride = p.k_row_stride = p.v_row_stride = p.o_row_stride = a.dim;
  p.v_dim_stride = 1;
  p.q_head_stride = p.o_head_stride = a.seq_q * a.dim;
  p.k_head_stride = p.v_head_stride = a.seq_k * a.dim;
  p.q_batch_stride = p.o_batch_stride = a.heads * a.seq_q * a.dim;
  p.k_batch_stride = p.v_batch_stride = a.kv_heads * a.seq_k * a.dim;
  p.b = static_cast<int>(a.batch);
  p.h = static_cast<int>(a.heads);
  p.h_k = static_cast<int>(a.kv_heads);
  p.seqlen_q = static_cast<int>(a.seq_q);
  p.seqlen_k = static_cast<int>(a.seq_k);
  p.seqlen_q_rounded = static_cast<int>(round_up(a.seq_q, 128));
  p.seqlen_k_rounded = static_cast<int>(round_up(a.seq_k, 128));
  p.total_q = static_cast<int>(a.batch * a.seq_q);
  p.total_k = static_cast<int>(a.batch * a.seq_k);
  p.b_k = p.b;
  p.d = p.d_rounded = p.dv = p.dv_rounded = static_cast<int>(a.dim);
  p.scale_softmax = static_cast<float>(a.scale);
  p.p_dropout = p.rp_dropout = 1.0F;
  p.p_dropout_in_uint8_t = 255;
  // As their interface does: a bound that hides nothing is none.
  const std::int64_t left = a.window_left >= a.seq_k - 1 ? -1 : a.window_left;
  const std::int64_t right = a.causal != 0                   ? 0
                             : a.window_right >= a.seq_q - 1 ? -1
                                                             : a.window_right;
  p.is_causal = left < 0 && right == 0;
  p.is_local = (left >= 0 || right >= 0) && !p.is_causal;
  p.window_size_left = left < 0 ? p.seqlen_k - 1 : static_cast<int>(left);
  p.window_size_right = right < 0 ? p.seqlen_q - 1 : static_cast<int>(right);
  p.num_splits = 1;
  p.page_size = 1;
  p.arch = 90;
  int device = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&p.num_sm, cudaDevAttrMultiProcessorCount, device);
}

void set_backward(Flash_bwd_params& p, const Fa3Args& a, const Workspace& w) {
  set_forward(p, a);
  p.seqlen_q_rounded = static_cast<int>(round_up(a.seq_q, block_m(a)));
  p.seqlen_k_rounded = static_cast<int>(round_up(a.seq_k, block_n(a)));
  p.do_ptr = a.d_o;
  p.dq_ptr = a.dq;
  p.dk_ptr = a.dk;
  p.dv_ptr = a.dv;
  p.do_row_stride = p.dq_row_stride = p.dk_row_stride = p.dv_row_stride = a.dim;
  p.do_head_stride = p.dq_head_stride = p.q_head_stride;
  p.dk_head_stride = p.dv_head_stride = p.k_head_stride;
  p.do_batch_stride = p.dq_batch_stride = p.q_batch_stride;
  p.dk_batch_stride = p.dv_batch_stride = p.k_batch_stride;
  p.dq_accum_ptr = w.dq_accum;
  p.dk_accum_ptr = w.kv_accum_bytes > 0 ? w.dk_accum : nullptr;
  p.dv_accum_ptr = w.kv_accum_bytes > 0 ? w.dv_accum : nullptr;
  p.dsoftmax_sum = w.delta;
  p.softmax_lse_log2_ptr = w.lse_log2;
  p.dq_semaphore = w.dq_semaphore;
}

template <int kDim>
void forward(Flash_fwd_params& p, cudaStream_t stream) {
  run_mha_fwd_<90, Bf16, kDim, kDim, false, false, false, false>(p, stream);
}

template <int kDim>
void backward(Flash_bwd_params& p, cudaStream_t stream) {
  run_mha_bwd_<90, Bf16, kDim, false>(p, stream);
}

}  // namespace

extern "C" {

/// 1 when this build has kernels of the head dim.
int fa3_has(std::int64_t dim) {
#ifdef FA3_HAS_64
  if (dim == 64) return 1;
#endif
#ifdef FA3_HAS_128
  if (dim == 128) return 1;
#endif
#ifdef FA3_HAS_256
  if (dim == 256) return 1;
#endif
  return 0;
}

/// There where the forward takes windows.
int fa3_has_windows() { return 1; }

std::int64_t fa3_workspace_bytes(const Fa3Args* a, int backward_pass) {
  return Workspace(*a, backward_pass != 0, nullptr).bytes;
}

/// The last CUDA error, 0 when the launch went well; -1 for a head dim that is not built.
int fa3_forward(const Fa3Args* a, void* stream_handle) {
  if (fa3_has(a->dim) == 0) return -1;
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const Workspace w(*a, false);
  Flash_fwd_params p = {};
  set_forward(p, *a);
  p.tile_count_semaphore = w.tile_counter;
  // Their masked forward hands out tiles by this counter.
  if (p.is_causal || p.is_local) cudaMemsetAsync(w.tile_counter, 0, sizeof(int), stream);
#ifdef FA3_HAS_64
  if (a->dim == 64) forward<64>(p, stream);
#endif
#ifdef FA3_HAS_128
  if (a->dim == 128) forward<128>(p, stream);
#endif
#ifdef FA3_HAS_256
  if (a->dim == 256) forward<256>(p, stream);
#endif
  return static_cast<int>(cudaGetLastError());
}

int fa3_backward(const Fa3Args* a, void* stream_handle) {
  if (fa3_has(a->dim) == 0) return -1;
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const Workspace w(*a, true);
  Flash_bwd_params p = {};
  set_backward(p, *a, w);
  if (p.is_local) return -1;
  if (w.kv_accum_bytes > 0) {
    cudaMemsetAsync(w.dk_accum, 0, static_cast<std::size_t>(w.kv_accum_bytes), stream);
    cudaMemsetAsync(w.dv_accum, 0, static_cast<std::size_t>(w.kv_accum_bytes), stream);
  }
#ifdef FA3_HAS_64
  if (a->dim == 64) backward<64>(p, stream);
#endif
#ifdef FA3_HAS_128
  if (a->dim == 128) backward<128>(p, stream);
#endif
#ifdef FA3_HAS_256
  if (a->dim == 256) backward<256>(p, stream);
#endif
  return static_cast<int>(cudaGetLastError());
}
}
