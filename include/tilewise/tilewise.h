/* Tilewise's C API: the functions of attention.h for C and other languages.
 *
 * Every struct starts with its size in bytes. TW_INIT(type) sets it and zeroes the rest. Zero means
 * "default" or "not given" for every field. Fields of a newer header must be zero for an older
 * library. Functions return TW_OK or an error code. tw_last_error() returns the message of the
 * calling thread. attention.h, spec.h and plan.h document shapes, rules, defaults and fields.
 */
#ifndef TILEWISE_TILEWISE_H
#define TILEWISE_TILEWISE_H

#include <stddef.h>
#include <stdint.h>

#include "tilewise/version.h"

#ifdef __cplusplus
template <class T>
inline T tw_init() {
  T t{};
  t.struct_size = sizeof(T);
  return t;
}
#define TW_INIT(type) tw_init<type>()
extern "C" {
#else
#define TW_INIT(type) \
  (type) { .struct_size = sizeof(type) }
#endif

#define TW_EXPORT __attribute__((visibility("default")))

typedef enum tw_status {
  TW_OK = 0,
  TW_INVALID_ARGUMENT = 1,
  TW_UNSUPPORTED = 2,
  TW_OUT_OF_MEMORY = 3,
  TW_DEVICE_ERROR = 4,
  TW_COMPILE_ERROR = 5,
  TW_INTERNAL_ERROR = 6
} tw_status;

/* Values of tw_tensor.dtype. */
typedef enum tw_dtype {
  TW_FLOAT64 = 0,
  TW_FLOAT32 = 1,
  TW_BFLOAT16 = 2,
  TW_FLOAT16 = 3,
  TW_BOOL = 4,
  TW_UINT8 = 5,
  TW_INT32 = 6,
  TW_INT64 = 7
} tw_dtype;

typedef enum tw_device_type { TW_CPU = 0, TW_CUDA = 1 } tw_device_type;
typedef enum tw_causal {
  TW_CAUSAL_NONE = 0,
  TW_CAUSAL_BOTTOM_RIGHT = 1,
  TW_CAUSAL_TOP_LEFT = 2
} tw_causal;
typedef enum tw_precision { TW_EXACT = 0, TW_TF32 = 1, TW_REFINED = 2 } tw_precision;

/* A view of the caller's memory. rank = 0 means not given. Strides are in elements. Other structs
 * contain it, so its layout is fixed and struct_size is ignored. */
typedef struct tw_tensor {
  size_t struct_size;
  void* data;
  int32_t dtype;       /* tw_dtype */
  int32_t device_type; /* tw_device_type */
  int32_t device_index;
  int32_t rank;
  int64_t sizes[4];
  int64_t strides[4];
} tw_tensor;

typedef struct tw_score_tile {
  size_t struct_size; /* set by the library */
  float* scores;      /* element (r, c) is scores[r * row_stride + c] */
  int64_t row_stride, rows, cols;
  int64_t b, h, i0, j0;
} tw_score_tile;

/* A custom score function on the CPU: see ScoreMod in spec.h. */
typedef struct tw_score_mod {
  size_t struct_size;
  void* context;
  void (*apply)(void* context, const tw_score_tile* x);
  void (*derivative)(void* context, const tw_score_tile* x, float* grad); /* backward only */
} tw_score_mod;

/* A formula (docs/expressions.md) and the tensors that it captures, by name. The formula must read
 * every tensor. A tensor without axes has shape (1) here. */
typedef struct tw_expression {
  size_t struct_size;
  const char* text;
  const char* const* names;
  const tw_tensor* tensors;
  int64_t count; /* number of names and of tensors */
} tw_expression;

typedef struct tw_spec {
  size_t struct_size;
  int32_t has_scale;
  int32_t causal; /* tw_causal */
  double scale;
  int32_t has_window_left, has_window_right;
  int64_t window_left, window_right;
  double softcap;
  double dropout_p;
  uint64_t dropout_seed, dropout_offset;
  tw_tensor mask, bias, alibi_slopes, sinks;
  tw_tensor key_lengths, cu_seqlens_q, cu_seqlens_k, block_table;
  int64_t max_seqlen_q, max_seqlen_k; /* 0: not given; -1: no sequence has a row */
  tw_tensor block_row_offsets, block_index, block_full;
  int64_t block_q, block_k;
  const tw_score_mod* score_mod;
  int32_t deterministic;
  int32_t precision;                     /* tw_precision */
  const tw_expression* score_expression; /* NULL: not given */
  const tw_expression* mask_expression;
  tw_tensor dropout_counter;
} tw_spec;

typedef struct tw_allocator {
  size_t struct_size;
  void* context;
  /* Returns device memory aligned to 256 bytes, or NULL if it is out of memory. */
  void* (*allocate)(void* context, int64_t bytes, int32_t device_type, int32_t device_index,
                    void* stream);
  void (*release)(void* context, void* data, int64_t bytes, int32_t device_type,
                  int32_t device_index, void* stream);
} tw_allocator;

typedef void (*tw_body)(void* body_context, int64_t task, int32_t worker);
typedef struct tw_executor {
  size_t struct_size;
  void* context;
  int32_t concurrency; /* at least 1; `worker` is less than this */
  /* Calls body(body_context, task, worker) once for every task in [0, tasks), then returns. */
  void (*parallel_for)(void* context, int64_t tasks, tw_body body, void* body_context);
} tw_executor;

typedef struct tw_launch {
  size_t struct_size;
  void* stream;
  const tw_allocator* allocator;
  const tw_executor* executor;
  void* workspace;
  int64_t workspace_bytes;
  const char* implementation; /* "flash", "eager", ...; NULL = the planner chooses */
  /* A kernel's name, or one per pass: "FORWARD+BACKWARD"; NULL = the planner chooses. */
  const char* kernel;
} tw_launch;

typedef struct tw_forward_args {
  size_t struct_size;
  tw_tensor q, k, v, o, lse;
  void* saved;
  int64_t saved_bytes;
} tw_forward_args;

typedef struct tw_backward_args {
  size_t struct_size;
  tw_tensor q, k, v, o, lse, d_o, d_lse, dq, dk, dv, dbias, dsinks;
  void* saved;
  int64_t saved_bytes;
  const tw_tensor* dcaptures; /* one per tensor of score_expression; rank 0 = not requested */
  int64_t dcaptures_count;    /* 0 or the count of score_expression */
} tw_backward_args;

/* Appends to a KV cache: kv_cache.h documents the fields. rank 0 = not given.
 */
typedef struct tw_append_args {
  size_t struct_size;
  tw_tensor k, v, k_cache, v_cache, lengths, new_lengths, skipped, q, rotated_q;
  tw_tensor block_table, cu_seqlens;
  int64_t max_seqlen;
  tw_tensor rotary_cos, rotary_sin, rotary_positions;
  int32_t rotary_interleaved, rotary_one_query_position;
} tw_append_args;

/* Attention over a shared prefix and each sequence's own keys: see kv_cache.h. */
typedef struct tw_prefix_args {
  size_t struct_size;
  tw_tensor q, k_prefix, v_prefix, k, v, o, lse;
} tw_prefix_args;

/* Selects key blocks by scores of blocks: see BlockSelection in selection.h. scale applies if
 * has_scale is not 0. keep_diagonal and keep_first are on, unless drop_diagonal or drop_first is
 * not 0. */
typedef enum tw_block_rule {
  TW_BLOCKS_TOP_K = 0,
  TW_BLOCKS_MASS = 1,
  TW_BLOCKS_ABOVE = 2
} tw_block_rule;

/* Where scores of blocks come from: BlockScorer of selection.h. */
typedef enum tw_block_scorer {
  TW_SCORES_POOLED = 0,
  TW_SCORES_ANTIDIAGONAL = 1,
  TW_SCORES_VERTICAL_SLASH = 2
} tw_block_scorer;

typedef struct tw_select_args {
  size_t struct_size;
  tw_tensor q, k, key_lengths; /* key_lengths is optional */
  tw_tensor block_row_offsets, block_index;
  int64_t block_q, block_k;
  double weight_mean, weight_maximum, weight_minimum, weight_variance;
  int32_t has_scale, causal;
  double scale;
  int32_t rule; /* tw_block_rule; it reads count, mass or threshold */
  int32_t drop_diagonal, drop_first;
  int64_t count;
  double mass, threshold;
  int32_t scorer; /* tw_block_scorer */
  int64_t stride; /* TW_SCORES_ANTIDIAGONAL; 0: 8 */
} tw_select_args;

typedef struct tw_plan {
  size_t struct_size;
  char kernel[64];
  char implementation[32];
  int32_t block_m, block_n, splits, threads;
  int64_t workspace_bytes, saved_bytes, live_bytes, peak_bytes;
  double flops, bytes_moved, predicted_ms;
} tw_plan;

/* spec, launch and plan may be NULL. `plan` receives the plan that ran. */
TW_EXPORT tw_status tw_forward(const tw_forward_args* args, const tw_spec* spec,
                               const tw_launch* launch, tw_plan* plan);
TW_EXPORT tw_status tw_backward(const tw_backward_args* args, const tw_spec* spec,
                                const tw_launch* launch, tw_plan* plan);

/* launch may be NULL. Only its stream and executor are used. */
TW_EXPORT tw_status tw_append(const tw_append_args* args, const tw_launch* launch);

/* spec, launch and plan may be NULL. implementation and kernel of launch are ignored. `plan`
 * receives the workspace, flops, bytes and time of the whole call, and "PREFIX+OWN" as kernel.
 */
TW_EXPORT tw_status tw_forward_prefix(const tw_prefix_args* args, const tw_spec* spec,
                                      const tw_launch* launch, tw_plan* plan);

/* launch may be NULL. Only its stream, allocator and executor are used. */
TW_EXPORT tw_status tw_select_blocks(const tw_select_args* args, const tw_launch* launch);
/* Number of entries that block_index needs. Data pointers may be NULL. */
TW_EXPORT tw_status tw_selected_blocks_bound(const tw_select_args* args, int64_t* entries);

/* Plans only: data pointers may be NULL. */
TW_EXPORT tw_status tw_plan_forward_prefix(const tw_prefix_args* args, const tw_spec* spec,
                                           const tw_launch* launch, tw_plan* plan);
TW_EXPORT tw_status tw_plan_forward(const tw_forward_args* args, const tw_spec* spec,
                                    const tw_launch* launch, tw_plan* plan);
TW_EXPORT tw_status tw_plan_backward(const tw_backward_args* args, const tw_spec* spec,
                                     const tw_launch* launch, tw_plan* plan);

/* The plan as text, as from explain(). Free it with tw_free_string, which accepts NULL. */
TW_EXPORT tw_status tw_explain_forward(const tw_forward_args* args, const tw_spec* spec,
                                       const tw_launch* launch, char** text);
TW_EXPORT tw_status tw_explain_backward(const tw_backward_args* args, const tw_spec* spec,
                                        const tw_launch* launch, char** text);
TW_EXPORT void tw_free_string(char* text);

/* Message of this thread's last call that did not return TW_OK, or "". Valid until the next call.
 */
TW_EXPORT const char* tw_last_error(void);
/* Version of the loaded library, "MAJOR.MINOR.PATCH". version.h has the headers' version. */
TW_EXPORT const char* tw_version(void);

#ifdef __cplusplus
}
#endif
#endif
