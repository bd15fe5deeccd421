/* Tilewise's C API: the verbs of attention.h for C and for other languages.
 *
 * Every struct begins with its size in bytes; TW_INIT(type) sets it and zeroes the rest, which
 * means "default" or "not given" everywhere. What a newer header adds to a struct must be zero for
 * an older library. Functions return TW_OK or an error code;
 * tw_last_error() has the message, one per thread. Shapes, rules and defaults are those of
 * attention.h and spec.h, where each field is documented.
 */
#ifndef TILEWISE_TILEWISE_H
#define TILEWISE_TILEWISE_H

#include <stddef.h>
#include <stdint.h>

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

/* A view of memory that the caller holds. rank = 0: not given. Strides in elements. It lies inside
 * other structs, so its layout is fixed; its struct_size is not looked at. */
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

/* A score function of the caller's own (CPU): see ScoreMod in spec.h. */
typedef struct tw_score_mod {
  size_t struct_size;
  void* context;
  void (*apply)(void* context, const tw_score_tile* x);
  void (*derivative)(void* context, const tw_score_tile* x, float* grad); /* backward only */
} tw_score_mod;

/* A formula (docs/expressions.md) and the tensors that it captures, by name; it reads each of them.
 * A tensor without axes comes as one of shape (1). */
typedef struct tw_expression {
  size_t struct_size;
  const char* text;
  const char* const* names;
  const tw_tensor* tensors;
  int64_t count; /* of names and tensors */
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
  int64_t max_seqlen_q, max_seqlen_k;
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
  /* 256-byte aligned memory of the device, or NULL when there is none left. */
  void* (*allocate)(void* context, int64_t bytes, int32_t device_type, int32_t device_index,
                    void* stream);
  void (*release)(void* context, void* data, int64_t bytes, int32_t device_type,
                  int32_t device_index, void* stream);
} tw_allocator;

typedef void (*tw_body)(void* body_context, int64_t task, int32_t worker);
typedef struct tw_executor {
  size_t struct_size;
  void* context;
  int32_t concurrency; /* at least 1; `worker` is below it */
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
  const char* implementation; /* force one: "flash", "eager", ...; NULL = free */
  /* Force a row of the kernel table, or one for each pass: "FORWARD+BACKWARD"; NULL = free. */
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
  const tw_tensor* dcaptures; /* one for each tensor of score_expression; rank 0: not wanted */
  int64_t dcaptures_count;    /* 0, or score_expression's count */
} tw_backward_args;

/* New keys and values into a cache: kv_cache.h, where each field is documented. rank 0: not given.
 */
typedef struct tw_append_args {
  size_t struct_size;
  tw_tensor k, v, k_cache, v_cache, lengths, new_lengths, skipped, q, rotated_q;
  tw_tensor block_table, cu_seqlens;
  int64_t max_seqlen;
  tw_tensor rotary_cos, rotary_sin, rotary_positions;
  int32_t rotary_interleaved, rotary_one_query_position;
} tw_append_args;

/* Attention over keys that all sequences share, then over each one's own: kv_cache.h. */
typedef struct tw_prefix_args {
  size_t struct_size;
  tw_tensor q, k_prefix, v_prefix, k, v, o, lse;
} tw_prefix_args;

/* Blocks of keys chosen by scores of blocks: see BlockSelection of selection.h. scale counts where
 * has_scale is not 0. keep_diagonal and keep_first are on unless their drop_ is not 0. */
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
  tw_tensor q, k, key_lengths; /* key_lengths may be left out */
  tw_tensor block_row_offsets, block_index;
  int64_t block_q, block_k;
  double weight_mean, weight_maximum, weight_minimum, weight_variance;
  int32_t has_scale, causal;
  double scale;
  int32_t rule; /* tw_block_rule; what counts is count, mass or threshold */
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

/* launch may be NULL; of it the stream and the executor count. */
TW_EXPORT tw_status tw_append(const tw_append_args* args, const tw_launch* launch);

/* spec, launch and plan may be NULL; of launch all but implementation and kernel counts. `plan`
 * receives the workspace of the whole call, its flops, bytes and time, and "PREFIX+OWN" as kernel.
 */
TW_EXPORT tw_status tw_forward_prefix(const tw_prefix_args* args, const tw_spec* spec,
                                      const tw_launch* launch, tw_plan* plan);

/* launch may be NULL; of it the stream, the allocator and the executor count. */
TW_EXPORT tw_status tw_select_blocks(const tw_select_args* args, const tw_launch* launch);
/* Entries that block_index needs room for; data pointers may be NULL. */
TW_EXPORT tw_status tw_selected_blocks_bound(const tw_select_args* args, int64_t* entries);

/* Plans only: data pointers may be NULL. */
TW_EXPORT tw_status tw_plan_forward_prefix(const tw_prefix_args* args, const tw_spec* spec,
                                           const tw_launch* launch, tw_plan* plan);
TW_EXPORT tw_status tw_plan_forward(const tw_forward_args* args, const tw_spec* spec,
                                    const tw_launch* launch, tw_plan* plan);
TW_EXPORT tw_status tw_plan_backward(const tw_backward_args* args, const tw_spec* spec,
                                     const tw_launch* launch, tw_plan* plan);

/* The plan in words, as explain() gives it; free it with tw_free_string. */
TW_EXPORT tw_status tw_explain_forward(const tw_forward_args* args, const tw_spec* spec,
                                       const tw_launch* launch, char** text);
TW_EXPORT tw_status tw_explain_backward(const tw_backward_args* args, const tw_spec* spec,
                                        const tw_launch* launch, char** text);
TW_EXPORT void tw_free_string(char* text);

/* Message of this thread's last call that did not return TW_OK; "" before the first. Valid until
 * the next call. */
TW_EXPORT const char* tw_last_error(void);
TW_EXPORT const char* tw_version(void);

#ifdef __cplusplus
}
#endif
#endif
