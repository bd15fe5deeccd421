#include "cpu/flash/decode_geometry.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "cpu/micro/bf16_micro.h"
#include "expression/block_map.h"
#include "plan/accounting.h"
#include "plan/batch_invariance.h"

namespace tilewise::cpu {
namespace {

constexpr int kRowsOfLongBlocks = 16;
constexpr int kFewRows = 16;      // query rows of a key head that are few whatever they are of
constexpr int kMostQueries = 32;  // of a head: more fill the tiles of flash_fwd
constexpr std::int64_t kCopiedBlockKeys = 128;  // copied first: float32 in the second-level cache
constexpr std::int64_t kPackedBlockKeys = 256;
constexpr std::int64_t kSharedBlockKeys = 32;  // of all heads: in the second-level cache
// Of bfloat16 products: K and V of a block, beside those of the next, in the second-level cache.
constexpr std::int64_t kBlockBytes = 128 << 10;
constexpr std::int64_t kMostTileRows = 128;  // of a strip
constexpr int kPairLanes = 32;               // bfloat16 of a vector
// Of a head: shorter rows are asked for with those of all heads.
constexpr std::int64_t kLongRowBytes = 256;

/// True when rows can be read as whole vectors where they lie.
bool whole_rows(const Tensor& t, const Micro& micro) {
  return t.strides[3] == 1 && t.sizes[3] % micro.lanes == 0;
}

/// Rows up to which reading K where it lies costs less than packing it first.
std::int64_t most_unpacked_rows(const Problem& p) { return 4 + p.head_dim / 16; }

/// True when K is packed where it lies, without a copy in float32 before.
bool packs_in_place(const Problem& p) { return p.dtype == DType::float32 && !p.paged; }

/// Query rows of a key head that read K where it lies.
std::int64_t reading_rows(const Problem& p, Isa isa) {
  // A register tile of AVX2 gains less.
  if (isa < Isa::avx512 || !packs_in_place(p)) return kReadingRows;
  // Heads beside each other are read in memory's order, and packed one by one.
  const std::int64_t more = interleaved(p, p.k) ? 4 : 0;
  return std::min<std::int64_t>(kReadingRows, most_unpacked_rows(p) + more);
}

/// Query rows of a head that tiles are full enough of, and keys that stay in cache when all of a
/// head are packed at once.
bool fills_tiles(const Problem& p) {
  constexpr std::int64_t kShortElems = 32 << 10;  // of a head's K
  return packs_in_place(p) && p.seq_q > most_unpacked_rows(p) &&
         p.seq_k * p.head_dim <= kShortElems;
}

/// Bytes of a key and a value of `heads` heads in bfloat16.
std::int64_t key_bytes(const Problem& p, std::int64_t heads) {
  return 2 * heads * (p.head_dim + p.head_dim_v);
}

/// Bytes of a key of one head.
std::int64_t row_bytes(const Problem& p) {
  return p.head_dim * static_cast<std::int64_t>(dtype_bytes(p.dtype));
}

/// Keys of a block of bfloat16 products, of `heads` heads: a power of two. Threads do not matter.
std::int64_t listed_block_keys(const Problem& p, std::int64_t heads) {
  std::int64_t keys = kMostListedKeys;
  while (keys > kSharedBlockKeys && keys * key_bytes(p, heads) > kBlockBytes) keys /= 2;
  return keys;
}

/// Floats of the parts of a worker's scratch, in their order, each in cache lines of its own.
std::array<std::int64_t, 11> scratch_parts(const DecodeGeometry& g) {
  constexpr std::int64_t kLine = 16;
  const std::int64_t rows = g.together * g.rows;
  const std::int64_t padded_rows = round_up(g.strip_rows, g.row_unit);
  const std::int64_t unpacked = g.row_unit > 1 ? padded_rows * g.ld_q : 0;
  const std::int64_t weights = g.bf16 ? padded_rows * g.block_keys : 0;
  std::array<std::int64_t, 11> parts{rows * g.ld_v,
                                     rows,
                                     rows,
                                     g.together * g.q_rows * g.ld_q,
                                     ceil_div(unpacked, 2),
                                     g.strip_rows * g.block_keys,
                                     g.strip_rows,
                                     ceil_div(weights, 2),
                                     g.packs ? g.block_keys * g.ld_q : 0,
                                     g.k_in_place ? 0 : g.block_keys * g.ld_q,
                                     g.v_in_place ? 0 : g.block_keys * g.ld_v};
  for (std::int64_t& part : parts) part = round_up(part, kLine);
  return parts;
}

/// True when heads may have lists of their own: the problem's, or those that its mask becomes.
bool listed_by_head(const Problem& p) {
  return p.block_list.defined() ||
         (p.mask_function.defined() && expression::differs_by_head(p.mask_function));
}

}  // namespace

bool interleaved(const Problem& p, const Tensor& t) {
  const std::int64_t key = p.paged && p.page_size == 1 ? t.strides[0] : t.strides[2];
  return t.sizes[1] > 1 && std::abs(t.strides[1]) * t.sizes[1] <= std::abs(key);
}

DecodeGeometry::DecodeGeometry(const Problem& p, Isa isa, int threads)
    : bf16(isa >= Isa::avx512bf16),
      rows(p.group() * p.seq_q),
      pairs(p.batch * p.heads_k),
      splits(std::max<std::int64_t>(1, ceil_div(p.seq_k, kSplitKeys))),
      packs(!bf16 && rows > reading_rows(p, isa)),
      strip_heads(p.group()),
      strip_rows(rows),
      chunk_heads(p.group()),
      chunks(1),
      asks_by_head(best_isa() >= Isa::amx && row_bytes(p) >= kLongRowBytes),
      workers(threads) {
  const Micro& m = micro(isa);
  row_unit = bf16 ? bf16_micro(isa).reading_rows : 1;
  lanes = bf16 ? kPairLanes : m.lanes;
  ld_q = round_up(p.head_dim, lanes);
  ld_v = round_up(p.head_dim_v, lanes);
  const bool unpacked = !packs || packs_in_place(p);
  k_in_place = bf16 || (whole_rows(p.k, m) && unpacked);
  v_in_place = bf16 || (whole_rows(p.v, m) && unpacked);
  const bool shared_k = interleaved(p, p.k), shared_v = interleaved(p, p.v);
  lists_k = bf16 || (k_in_place && !packs && (p.paged || shared_k));
  lists_v = bf16 || (v_in_place && !packs && (p.paged || shared_v));
  const bool in_place = k_in_place && v_in_place, few = !packs && rows <= kReadingRows;
  block_keys = !in_place                   ? kCopiedBlockKeys
               : bf16                      ? listed_block_keys(p, 1)
               : rows <= kRowsOfLongBlocks ? kMostBlockKeys
                                           : kPackedBlockKeys;
  if (in_place && few && shared_k && shared_v && !listed_by_head(p)) {
    block_keys = bf16 ? listed_block_keys(p, p.heads_k) : kSharedBlockKeys;
    // As many as leave threads their tasks. No result depends on it.
    for (std::int64_t heads = p.heads_k; heads > 1 && together == 1; --heads) {
      const bool enough = pairs / heads * splits >= std::int64_t{2} * threads;
      const bool fits = !bf16 || block_keys * key_bytes(p, heads) <= kBlockBytes;
      if (p.heads_k % heads == 0 && enough && fits) together = heads;
    }
  }
  partials = splits > 1 ? pairs * splits : 0;
  q_rows = rows;
  if (few) {
    q_rows = round_up(rows, row_unit);
    return;
  }
  if (packs) block_keys = kPackedBlockKeys;
  const std::int64_t tasks = std::max<std::int64_t>(pairs * splits, 1);
  strip_heads = std::max<std::int64_t>(1, kStripRows / p.seq_q);
  strip_rows = std::min<std::int64_t>(kStripRows, strip_heads * p.seq_q);
  if (row_unit > 1) {
    // Values are packed once a strip, and O is read once a block.
    block_keys = kMostListedKeys;
    std::int64_t most = kMostTileRows;
    while (most > row_unit && tasks * ceil_div(rows, most) < threads) most /= 2;
    // NOTE: softmax_step() takes four rows together, and which ones must not depend on threads.
    constexpr std::int64_t kRowsAtOnce = 4;
    strip_heads = std::max(kRowsAtOnce, most / p.seq_q / kRowsAtOnce * kRowsAtOnce);
    strip_heads = std::min(strip_heads, p.group());
    strip_rows = strip_heads * p.seq_q;
  }
  // K is packed for every chunk: there are more only where threads would find no task.
  const std::int64_t strips = ceil_div(p.group(), strip_heads);
  const std::int64_t wanted = std::clamp<std::int64_t>(ceil_div(threads, tasks), 1, strips);
  chunk_heads = ceil_div(strips, wanted) * strip_heads;
  chunks = ceil_div(p.group(), chunk_heads);
  // Strips of whole heads have whole units; those of parts of a head have a unit of one row.
  if (row_unit > 1) q_rows = ceil_div(p.group(), strip_heads) * round_up(strip_rows, row_unit);
}

bool few_query_rows(const Problem& p) {
  if (takes_first_kernel(p)) return false;
  if (p.group() > 1) return p.group() * p.seq_q <= kFewRows || p.seq_q <= kMostQueries;
  return p.group() * p.seq_q <= kFewRows && !fills_tiles(p);
}

bool beats_tiles(const Problem& p) {
  // Tiles of bfloat16 are of one head: of six queries and less, most of a tile is empty.
  constexpr int kFewQueries = 6;
  const bool few = p.seq_q <= kFewQueries || p.group() * p.seq_q <= kReadingRows;
  return few && few_query_rows(p);
}

bool reads_bf16(const Problem& p, Isa isa) {
  if (p.dtype != DType::bfloat16 || !beats_tiles(p) || p.dropout.p != 0.0) return false;
  // Of one or two short rows, most of a tile of products is empty.
  constexpr std::int64_t kFilled = 256;
  if (isa >= Isa::amx && p.group() * p.seq_q * p.head_dim < kFilled) return false;
  // One row waits for memory, and a head's keys in one run come faster without being asked for.
  constexpr int kLongRow = 128;
  const bool alone = p.group() * p.seq_q == 1;
  const bool run = !p.paged && !interleaved(p, p.k);
  if (alone && (run || p.head_dim >= kLongRow)) return false;
  return p.k.strides[3] == 1 && p.v.strides[3] == 1;
}

CpuForm flash_form(const Problem& p, Isa isa) {
  const bool reads = isa <= Isa::avx512 ? p.group() * p.seq_q <= kReadingRows && few_query_rows(p)
                                        : reads_bf16(p, isa);
  return reads && p.pass == Pass::forward ? CpuForm::decode : CpuForm::flash;
}

DecodeScratch::DecodeScratch(const DecodeGeometry& g, float* base, int slot) {
  float* at = base + slot * elems(g);
  std::size_t part = 0;
  const auto next = [&, parts = scratch_parts(g)] { return std::exchange(at, at + parts[part++]); };
  const auto next_half = [&] { return reinterpret_cast<Bf16*>(next()); };
  o = next();
  m = next();
  l = next();
  q = next();
  unpacked_q = next_half();
  s = next();
  alpha = next();
  p = next_half();
  panels = next();
  k = next();
  v = next();
}

std::int64_t DecodeScratch::elems(const DecodeGeometry& g) {
  const auto parts = scratch_parts(g);
  return own_pages(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}));
}

std::vector<MemoryPart> workspace_items(const DecodeGeometry& g) {
  using Role = MemoryItem::Role;
  const auto item = [](const char* name, std::initializer_list<std::int64_t> shape) {
    return memory_part(name, Role::workspace, DType::float32, shape);
  };
  return {item("O of splits", {g.partials, g.rows, g.ld_v}),
          item("m, l of splits", {2, g.partials, g.rows}),
          item("workers' scratch", {g.workers, DecodeScratch::elems(g)})};
}

Prepared flash_decode_prepared(const KernelRow& row, const Problem& problem,
                               const Hardware& machine) {
  const Isa isa = *static_cast<const Isa*>(row.config);
  const auto of_threads = [&](int threads) {
    const DecodeGeometry g(problem, isa, threads);
    return Form{static_cast<int>(g.strip_rows), static_cast<int>(g.block_keys),
                static_cast<int>(g.splits), threads};
  };
  std::vector<Form> others;
  for (const int threads : thread_counts(machine)) others.push_back(of_threads(threads));
  const Form taken = form_of(problem, of_threads(threads_with_work(problem, machine)), others);
  const DecodeGeometry g(problem, isa, taken.threads);
  Cost cost;
  set_form(cost, taken);
  cost.memory = workspace_items(g);
  predict_flash_time(problem, machine, isa, cost);
  return {std::move(cost), remember(g)};
}

}  // namespace tilewise::cpu
