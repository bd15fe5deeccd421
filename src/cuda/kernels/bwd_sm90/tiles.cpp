#include "cuda/kernels/bwd_sm90/tiles.h"

#include <algorithm>

#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/expressions.h"
#include "cuda/host/options.h"
#include "cuda/host/shared_bias.h"
#include "cuda/host/sm90_mask.h"
#include "cuda/host/tile_order.h"
#include "cuda/kernels/bwd_sm80/diagonals.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/bwd_sm90/options.h"
#include "cuda/kernels/rows/score_strip.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "plan/accounting.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using bwd_sm90::Config;
using bwd_sm90::Mask;

/// Keys of a span at least.
constexpr std::int64_t kSpanRows = 8192;

/// A query row: Q, dO and the float32 sums of dQ.
std::int64_t query_bytes(const Problem& p, const Config& config) {
  return 2 * p.head_dim + 2 * p.head_dim_v + (config.large_dim() ? 0 : 4 * p.head_dim);
}

/// Tiles in waves of them. Under a mask the longest takes twice the mean time: two waves even out,
/// longest first, and two follow the first of a section before it has ended. Of grouped heads a
/// tile is a larger part of the whole, and three are taken.
constexpr std::int64_t kTwoWaves = 256, kThreeWaves = 384;

/// Full masks: with less than a wave between them a conversion waits for tiles that run. 32 x 16
/// heads of 577 rows, dim 64, sections of 80 tiles: two of them apart 0.351 ms, one 0.383 (an
/// H200).
constexpr std::int64_t kWave = 128;

/// Full masks with a few waves of long tiles: a conversion that is taken when as many tiles have
/// begun as there are multiprocessors waits for one of them. 4 x 24 heads of 4096 queries and 512
/// keys, dim 128: three waves apart 0.574 ms, one 0.613 (an H200).
constexpr int kLongWaves = 3;
bool waits_for_long_tiles(const Problem& p, const Config& config) {
  constexpr std::int64_t kMostWaves = 8, kLongQueries = 1536;
  const std::int64_t tiles = bwd_sm90_tiles(p, config);
  return !p.packed && !config.listed() && !config.sums.split && p.seq_q >= kLongQueries &&
         tiles > host::kTypicalMultiprocessors &&
         tiles <= kMostWaves * host::kTypicalMultiprocessors;
}

/// Spans have about 64 tiles, whose longest lasts as long as four waves of the mean: converted
/// that much later nobody waits.
constexpr int kSpanLead = 2, kSpanLag = 9;

/// Whether a head of packed sequences is divided into spans: where it does not stay in the L2
/// cache, and a span has long tiles of several sequences. Grouped heads keep theirs together.
bool takes_spans(const Problem& p, Config config) {
  if (!p.packed || config.large_dim() || config.listed()) return false;
  if (config.mask != Mask::right || p.group() > 1) return false;
  constexpr std::int64_t kMeanRows = 1024;
  if (p.total_q < 2 * kSpanRows || p.seq_q > kSpanRows || p.total_q < kMeanRows * p.batch)
    return false;
  // The offsets of all sequences lie in shared memory.
  config.spans = true;
  return 16 * (p.batch + 2) <= bwd_sm90::SharedPlan(config).kept;
}

/// Head dims 65 to 96 where rows see few keys and memory takes much of the time: dQ's sums of 96
/// columns, and products of 80 to head dim 80 (an H200: 0.88 to 0.93 of the time at 130 to 339
/// keys, but 1.02 of it at 7098 under a causal mask). The parts of a cut tile come by 32 columns.
/// Functions, lists and options were not timed with it.
void narrow_dims(const Problem& p, Config& config) {
  constexpr double kFewKeys = 640.0;
  if (config.head_dim != 96 || config.two_plane) return;
  if (config.listed() || config.options.any() || config.expressions.any()) return;
  if (visible_pairs(p) > kFewKeys * static_cast<double>(p.query_rows())) return;
  config.sums.narrow = true;
  if (config.sums.split) return;
  if (p.head_dim <= 80) config.head_dim = 80;
  if (config.head_dim_v == 96 && p.head_dim_v <= 80) config.head_dim_v = 80;
}

/// Whether chunks and stages were timed with what is asked for.
bool is_plain(const Config& config) {
  const bwd_sm90::Sums& sums = config.sums;
  return !config.logits.modified && !config.logits.alibi && !config.options.any() &&
         !config.expressions.any() && !config.listed() && !config.two_plane && !config.hides &&
         config.mask != Mask::both && !sums.deterministic && !sums.bias && !sums.diagonals;
}

/// Rows of a sequence: of packed ones the mean.
std::int64_t typical_rows(const Problem& p) {
  return p.packed ? p.total_q / std::max<std::int64_t>(1, p.batch) : p.seq_q;
}

/// Rows from which on chunks have 512 rows, where these come in three waves at least.
constexpr std::int64_t kLongRows = 1792;
bool fill_waves(const Problem& p, std::int64_t chunk_rows) {
  const std::int64_t rows = p.packed ? p.total_q : p.batch * p.seq_q;
  constexpr std::int64_t kWaves = 3;
  return p.heads_q * rows >= kWaves * host::kTypicalMultiprocessors * chunk_rows;
}

/// Chunks of more rows are fewer jobs (an H200, bwd-sm90-chunks.csv). Of 512: dim 64, 0.986 to
/// 1.003 of the time, 0.96 for packed sequences of 200 to 8000 rows. Of 256: above, 0.98 to 1. One
/// for all of few rows: dim 80, 130 rows 0.88, 253 rows 0.98; but two of 192 took 1.00 to 1.04.
void take_chunks(const Problem& p, Config& config) {
  constexpr std::int64_t kManyRows = 1024;
  if (!is_plain(config) || config.large_dim() || (config.ragged() && !p.packed)) return;
  const std::int64_t rows = typical_rows(p);
  if (config.shape.block_m == 128) {
    const bool timed = config.mask == Mask::right || p.packed;
    if (timed && rows >= kLongRows && fill_waves(p, 512)) config.shape.chunk_rows = 512;
    return;
  }
  if (rows >= kManyRows && fill_waves(p, 256)) config.shape.chunk_rows = 256;
  const bool few = config.sums.narrow && config.mask == Mask::right && !p.packed;
  if (few && rows > 128 && rows <= 256) config.shape.chunk_rows = rows <= 192 ? 192 : 256;
}

/// Long rows to head dim 96: more stages of Q, which is held for two steps, let the two who compute
/// drift apart. At dim 96 those of dO too take the place of K's second. An H200: dim 64, 4096 full
/// and 16384 causal 0.984 and 0.988 of the time, but 577 rows 1.016; dim 96, 4096 full and 7098
/// causal 0.975 and 0.990. Dim 128 gained nothing. Packed sequences need room for their offsets,
/// which K's second stage gives: 0.953. A chunk of 192 rows fills three stages: 0.91.
void take_stages(const Problem& p, Config& config) {
  constexpr std::int64_t kManyRows = 4096;
  if (!is_plain(config) || config.sums.split) return;
  const int dim = std::max(config.head_dim, config.head_dim_v);
  bwd_sm90::Shape& shape = config.shape;
  if (shape.chunk_rows == 192) shape.q_stages = shape.do_stages = 3, shape.k_stages = 1;
  if (p.packed && dim == 64 && config.mask == Mask::none && typical_rows(p) >= kLongRows)
    shape.q_stages = 3, shape.k_stages = 1;
  if (config.ragged() || config.sums.narrow || std::min(p.seq_q, p.seq_k) < kManyRows) return;
  if (dim > 96) return;
  shape.q_stages = 3;
  if (dim == 96) shape.do_stages = 3, shape.k_stages = 1;
}

/// Whether tiles that a diagonal makes unequal end earlier when they are cut: what the longest has
/// more than its share, against more starts and ends and the additions of dK and dV. 4 x 32:8 heads
/// of 512 rows, dim 128, took 0.107 ms whole and 0.140 in four parts (an H200).
bool cut_pays(const Problem& p, const Config& config, std::int64_t tiles, std::int64_t parts) {
  constexpr double kChainUs = 10.0, kAddedBytesPerUs = 2.2e6;
  constexpr double kSms = host::kTypicalMultiprocessors;
  const bool narrow = config.shape.block_m == 128;
  const double step_us = narrow ? 2.15 : 3.8;
  const double key_rows = static_cast<double>(tiles) * config.shape.block_n;
  const double mean = visible_pairs(p) / key_rows;
  const double longest = std::min(2.0 * mean, static_cast<double>(p.seq_q * p.group()));
  const double saved_us = step_us / 128.0 * (longest - mean * static_cast<double>(tiles) / kSms);
  // NOTE: the problem's dims: a config's are narrowed where its tiles are whole (narrow_dims).
  const int dims = bwd_sm90_padded(p.head_dim) + bwd_sm90_padded(p.head_dim_v);
  const double bytes = 4.0 * dims * config.shape.block_n;
  const double part_us = (narrow ? 2.0 : 4.0) / kSms + bytes / kAddedBytesPerUs;
  return saved_us > kChainUs + static_cast<double>(parts * tiles) * part_us;
}

}  // namespace

int bwd_sm90_padded(std::int64_t dim) {
  for (const int padded : {64, 96, 128, 192}) {
    if (dim <= padded) return padded;
  }
  return 256;
}

bool bwd_sm90_hides_rows(const Problem& p) {
  const Sm90Mask mask = sm90_mask(p);
  if (sm90_lengths(p) != bwd_sm90::Lengths::dense || mask.mask == Mask::none) return false;
  return mask.high <= 0 || (mask.mask == Mask::both && p.seq_q - 1 + mask.low >= p.seq_k);
}

bool bwd_sm90_may_hide_rows(const Problem& p) {
  if (sm90_lengths(p) == bwd_sm90::Lengths::dense) return bwd_sm90_hides_rows(p);
  if (sm90_mask(p).mask == Mask::none) return false;
  // Where queries and keys are of the same sequences a row sees itself.
  const Tensor &q = p.cu_seqlens_q, &k = p.cu_seqlens_k;
  const bool same = p.packed && q.data == k.data && q.strides[0] == k.strides[0] &&
                    q.dtype == k.dtype && p.total_q == p.total_k;
  return !same || p.left < 0 || p.right < 0;
}

Config bwd_sm90_config(const Problem& p) {
  Config config;
  config.element = p.dtype == DType::bfloat16 ? tile::Element::bf16 : tile::Element::fp16;
  config.head_dim = bwd_sm90_padded(p.head_dim);
  config.head_dim_v = bwd_sm90_padded(p.head_dim_v);
  config.mask = sm90_mask(p).mask;
  config.expressions = expressions_of(p);
  config.options = options_of(p);
  config.logits.gated = is_gated(p);
  const bool biased = p.bias.defined();
  if (biased) config.options.pairs.staged = p.bias.strides[2] != 0 && p.seq_q > 1;
  // ALiBi, and functions like it, from the start of the products on: raw scores are divided by the
  // scale. Above head dim 128 distances are subtracted from logits.
  const bool affine = std::max(p.head_dim, p.head_dim_v) <= 128 && p.softcap == 0.0 &&
                      p.scale > 1e-30F && !biased && !moves_rows_far(p) &&
                      (p.alibi_slopes.defined() != (p.score_affine != nullptr)) &&
                      (p.score_affine != nullptr || !p.score_function.defined());
  config.logits.modified =
      !affine && (host::is_modified(p) || config.expressions.score != 0 || biased);
  config.logits.softcap = p.softcap != 0.0;
  config.logits.alibi = affine || p.alibi_slopes.defined();
  config.expressions.strip = !affine && strips_score(p);
  // NOTE: packed sequences with what captured tensors add are taken at LSE's own accuracy.
  config.expressions.shifts = config.expressions.shifts && !affine && !p.packed;
  config.sums.deterministic = p.deterministic;
  config.two_plane = bwd_tiles::is_small(p);
  config.lengths = sm90_lengths(p);
  config.hides = bwd_sm90_hides_rows(p);
  const bool is_narrow = std::max(config.head_dim, config.head_dim_v) <= 64;
  // A step of 128 queries would take what two blocks of 64 list.
  const bool short_blocks = p.block_list.defined() && p.block_list.block_q < 128;
  const bool spills = config.options.dropout || biased;
  // Slopes of 128 queries and low parts of LSE together do not fit into shared memory.
  const bool full = config.gates() && config.shifts();
  const bool tall = is_narrow && !config.two_plane && !short_blocks && !spills && !full;
  config.shape.block_m = tall ? 128 : 64;
  if (std::max(config.head_dim, config.head_dim_v) > 128) {
    config.shape.block_n = 64;
    config.sums.deterministic = false;  // it is so by itself: nothing is added in memory
    return bwd_sm90::with_stages(config);
  }
  config.sums.bias = bwd_sm90_sums_bias(p, config);
  const std::vector<bool> diagonal = diagonal_captures(p);
  config.sums.diagonals = std::find(diagonal.begin(), diagonal.end(), true) != diagonal.end();
  // What registers allow: bwd_sm90/README.md.
  const bool narrow = config.shape.block_m == 128;
  if (!config.gates()) config.shape.k_stages = 2;
  if (config.shifts() && bwd_sm90::SharedPlan(config).bytes > bwd_sm90::SharedPlan::kRoom)
    config.shape.k_stages = 1;
  // Fewer jobs, where the last chunk does not stand half empty: of packed sequences that of the
  // mean one.
  const std::int64_t chunks = ceil_div(typical_rows(p), config.shape.chunk_rows);
  if (narrow && (chunks >= 8 || (chunks % 2 == 0 && !p.packed))) config.shape.chunk_rows = 256;
  // Blocks as large as tiles too: at dim 64 the unit that also looks at bits of blocks took 5 %
  // less time where there was nothing to look at.
  if (p.block_list.defined()) config.lists = tile::Lists::parts;
  if (maps_mask(p) && !config.two_plane) config.lists = tile::Lists::whole;
  // Tiles of a list are not cut into parts, nor are the heads of a group.
  if (prefers_map(p) && !p.packed && !config.two_plane && bwd_sm90_parts(p, config) == 1 &&
      bwd_sm90_sharers(p, config) == 1)
    config.lists = tile::Lists::whole;
  config.sums.split = bwd_sm90_parts(p, config) > 1 || bwd_sm90_sharers(p, config) > 1;
  config.spans = takes_spans(p, config);
  narrow_dims(p, config);
  take_chunks(p, config);
  take_stages(p, config);
  return config;
}

WantedLists bwd_sm90_wanted_lists(const Config& config) {
  return {.tile_q = config.shape.block_m,
          .tile_k = config.shape.block_n,
          .kind = config.lists,
          .by_keys = true,
          .by_both = config.sums.deterministic,
          .tells_placed = config.tells_placed(),
          .narrowed = true};
}

Config bwd_sm90_passing_config(const Problem& p) {
  Config config = bwd_sm90_config(p);
  config.passes = true;
  // Stages let the two who compute drift apart. The next tile's K ahead gains less.
  config.shape.k_stages = 1;
  for (const int stages : {4, 3, 2}) {
    config.shape.q_stages = config.shape.do_stages = stages;
    if (bwd_sm90::SharedPlan(config).bytes <= bwd_sm90::SharedPlan::kRoom) break;
  }
  return config;
}

std::string bwd_sm90_passing_refusal(const Problem& p) {
  const BlockList& list = p.block_list;
  if (!list.defined() || list.block_k != 64 || list.block_q < 64)
    return "problems without a list of blocks of 64 keys and at least 64 queries are not supported "
           "by this kernel";
  if (p.packed || p.mask.defined() || p.mask_function.defined() || p.score_function.defined())
    return "packed sequences, masks and functions are not supported by this kernel";
  if (p.dropout.p > 0.0 || bwd_tiles::is_small(p))
    return "small problems and dropout are not supported by this kernel";
  return {};
}

std::int64_t bwd_sm90_chunks(const Problem& p, const Config& config) {
  return host::query_blocks(p, config.shape.chunk_rows);
}
std::int64_t bwd_sm90_key_blocks(const Problem& p, const Config& config) {
  return host::key_blocks(p, config.shape.block_n);
}

std::int64_t bwd_sm90_tiles(const Problem& p, const Config& config) {
  return p.stored_batch() * p.heads_k * bwd_sm90_key_blocks(p, config);
}

int bwd_sm90_span_blocks(const Config& config) {
  return config.spans ? static_cast<int>(kSpanRows / config.shape.block_n) : 1;
}

int bwd_sm90_parts(const Problem& p, const Config& config) {
  // In a fixed order of additions parts would wait for one another.
  if (config.large_dim() || config.sums.deterministic || config.two_plane || p.packed ||
      config.listed())
    return 1;
  const std::int64_t tiles = bwd_sm90_tiles(p, config);
  const std::int64_t blocks = ceil_div(p.seq_q, config.shape.block_m);
  // Tiles of a diagonal differ in length: as many of them as even out.
  const std::int64_t wanted =
      std::int64_t{host::kTypicalMultiprocessors} * (p.has_positional_mask() ? 4 : 2);
  if (tiles > host::kTypicalMultiprocessors) return 1;
  constexpr std::int64_t kLeastSteps = 8;
  const std::int64_t most = std::min(blocks, p.group() * blocks / kLeastSteps);
  const std::int64_t parts =
      std::clamp<std::int64_t>(wanted / tiles, 1, std::max<std::int64_t>(1, most));
  // Parts of one length that come in as many waves as there are parts end no earlier.
  const bool even = !p.has_positional_mask() && !p.block_list.defined();
  const bool gains = ceil_div(parts * tiles, std::int64_t{host::kTypicalMultiprocessors}) < parts;
  const bool pays = even ? gains : parts == 1 || cut_pays(p, config, tiles, parts);
  return pays ? static_cast<int>(parts) : 1;
}

int bwd_sm90_sharers(const Problem& p, const Config& config) {
  if (config.large_dim() || config.two_plane || config.listed() || p.packed) return 1;
  if (config.mask != Mask::right) return 1;
  if (p.group() <= 2 || bwd_sm90_tiles(p, config) <= host::kTypicalMultiprocessors) return 1;
  // Between the first and the last of a job's tiles lie, for each of its query heads, about as many
  // rows as there are keys at work.
  const std::int64_t head_bytes =
      std::int64_t{host::kTypicalMultiprocessors} * config.shape.block_n * query_bytes(p, config);
  constexpr std::int64_t kStays = 24 * kMiB;
  std::int64_t heads = std::clamp<std::int64_t>(kStays / head_bytes, 1, p.group());
  heads = std::min(heads, p.group());
  while (p.group() % heads != 0) --heads;
  return static_cast<int>(p.group() / heads);
}

std::int64_t bwd_sm90_rows(const Problem& p, const Config& config) {
  return bwd_sm90_chunks(p, config) * config.shape.chunk_rows;
}

std::int64_t bwd_sm90_jobs(const Problem& p, const Config& config) {
  return (config.large_dim() ? 1 : 2) * p.stored_batch() * p.heads_q * bwd_sm90_chunks(p, config) +
         bwd_sm90_tiles(p, config) * (bwd_sm90_parts(p, config) * bwd_sm90_sharers(p, config) +
                                      (config.sums.split ? 1 : 0));
}

bwd_sm90::SectionOrder bwd_sm90_order(const Problem& p, const Config& config) {
  OrderProblem order;
  order.blocks = bwd_sm90_key_blocks(p, config);
  const std::int64_t sharers = bwd_sm90_sharers(p, config), group = p.group() / sharers;
  order.heads = p.stored_batch() * p.heads_k * sharers;
  order.kv_bytes = group * (p.packed ? p.total_q : p.seq_q) * query_bytes(p, config);
  order.section_bytes = (config.large_dim() ? 16 : 8) * kMiB;
  // Long tiles that a diagonal cuts take more of them to even out (measured at dims 64 and 128).
  const bool is_long = config.mask == Mask::right && !config.large_dim() && order.blocks >= 64;
  order.last_bytes = (config.mask == Mask::none ? 8 : is_long ? 64 : 32) * kMiB;
  if (config.mask != Mask::none) {
    // The last of packed sequences decides how a head ends: the blocks of the longest count.
    const std::int64_t longest = p.packed ? ceil_div(p.seq_k, config.shape.block_n) : order.blocks;
    order.last_tiles = (group > 1 ? kThreeWaves : kTwoWaves) *
                       std::max<std::int64_t>(1, order.blocks / std::max<std::int64_t>(1, longest));
  }
  if (heads_share_bias(p)) {
    // Each section reads the whole bias, and adds to the whole of its gradient.
    order.section_bytes = std::max(order.section_bytes, kSharedBiasSection);
    order.last_bytes = std::max(order.last_bytes, kSharedBiasSection);
  }
  return section_order(order);
}

int bwd_sm90_lag(const Problem& p, const bwd_sm90::SectionOrder& order, const Config& config) {
  if (config.spans) return kSpanLag;
  const int lead = bwd_sm90_sections_apart(order, config);
  const std::int64_t tiles = std::max(1, order.section_heads * order.blocks);
  if (config.mask == Mask::none) {
    const std::int64_t apart = waits_for_long_tiles(p, config)
                                   ? std::int64_t{kLongWaves} * host::kTypicalMultiprocessors
                                   : kWave;
    return std::max(lead, static_cast<int>(ceil_div(apart, tiles)));
  }
  // Packed sequences differ in length too. The section itself lies between as well.
  const std::int64_t apart = p.packed ? kThreeWaves : kTwoWaves;
  return std::max(lead, static_cast<int>(ceil_div(apart, tiles)) - 1);
}

int bwd_sm90_sections_apart(const bwd_sm90::SectionOrder& order, const Config& config) {
  if (config.spans) return kSpanLead;
  const int tiles = std::max(1, order.section_heads * order.blocks);
  // Short tiles: what lies farther apart is less often still in the L2 cache (measured at dim 64).
  const bool is_short = config.shape.block_m == 128 && order.blocks <= 8;
  const int apart = host::kTypicalMultiprocessors * (is_short ? 6 : 10) / 10;
  return static_cast<int>(ceil_div(apart, tiles));
}

}  // namespace tilewise::cuda
