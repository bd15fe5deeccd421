/// The decisions of flash_decode: what is read where it lies, the blocks, the splits, and the
/// workspace.
#pragma once

#include <vector>

#include "cpu/flash/flash.h"
#include "cpu/flash/tiles.h"
#include "cpu/micro/bf16_micro.h"

namespace tilewise::cpu {

inline constexpr int kReadingRows = 24;  // query rows of a key head: more are worth packed keys
inline constexpr int kStripRows = 24;    // whose strip of scores stays in the first-level cache
inline constexpr int kMostBlockKeys = 1024;
inline constexpr int kMostListedKeys = 128;  // of a block of bfloat16 products; tiles take more
inline constexpr int kSplitKeys = 2048;  // fixed: results depend neither on threads nor the batch

/// True when the heads of a key of `t`, K or V, lie beside each other: on its address page.
bool interleaved(const Problem& p, const Tensor& t);

/// Padded sizes and the layout of the workspace.
struct DecodeGeometry {
  bool bf16;                ///< products of bfloat16 factors, of rows where they lie
  std::int64_t ld_q, ld_v;  ///< padded head dims
  std::int64_t rows;        ///< query rows of a key head
  std::int64_t pairs;       ///< (sequence, key head)
  std::int64_t splits;
  std::int64_t partials;  ///< O, m and l of a key head, of all splits; 0 where there is one
  bool packs;             ///< K into panels
  bool k_in_place, v_in_place;
  bool lists_k, lists_v;  ///< rows are found by a list
  int lanes;              ///< that the columns of a strip of scores are a multiple of
  std::int64_t block_keys;
  std::int64_t strip_heads, strip_rows;  ///< that a strip of scores is of
  std::int64_t chunk_heads, chunks;      ///< query heads of a task, tasks of a pair and split
  std::int64_t row_unit;                 ///< products take whole units of a strip's rows
  std::int64_t q_rows;                   ///< of a key head, strips in whole units
  std::int64_t together = 1;             ///< key heads of a task, block by block
  bool asks_by_head;  ///< for the next head's rows while one's are read, not for a block's of all
  int workers;

  DecodeGeometry(const Problem& p, Isa isa, int threads);
};

/// Scratch of one worker.
struct DecodeScratch {
  float *o, *m, *l;  ///< of a task's key heads, `rows` each
  float* q;          ///< of a task's key heads, q_rows each: float32 or bfloat16
  Bf16* unpacked_q;  ///< a strip's rows before they are packed
  float *s, *alpha;  ///< of a strip's rows
  Bf16* p;           ///< of a strip's rows, in whole units
  float* panels;     ///< packed K
  float *k, *v;      ///< rows of a block that are not read where they lie

  DecodeScratch(const DecodeGeometry& g, float* base, int slot);
  /// In floats.
  static std::int64_t elems(const DecodeGeometry& g);
};

std::vector<MemoryPart> workspace_items(const DecodeGeometry& g);

}  // namespace tilewise::cpu
