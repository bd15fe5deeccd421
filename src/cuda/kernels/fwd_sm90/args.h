/// fwd_sm90: constants and parameters. See fwd_sm90/README.md.
#pragma once

#include "cuda/tile/expression_args.h"
#include "cuda/tile/hopper/offsets_args.h"
#include "cuda/tile/hopper/tensor_map.h"
#include "cuda/tile/hopper/tile_counter_args.h"
#include "cuda/tile/lists_args.h"
#include "cuda/tile/mask_args.h"
#include "cuda/tile/options_args.h"
#include "cuda/tile/order_args.h"
#include "cuda/tile/sequences_args.h"
#include "cuda/tile/types.h"

namespace tilewise::fwd_sm90 {

using tile::Lengths;
using tile::Lists;
using tile::Mask;
using tile::TileCounter;

/// What happens to a score between the product and the mask, beside a positive scale. `alibi`:
/// ALiBi, or a score function of the form of tile::Slant. `general`: any of it, for scales that are
/// not positive and for softcap together with ALiBi. `leaning`: `alibi` where no row sees a key
/// right of the diagonal: what it adds to two rows differs alike in every block.
enum class Modification : int { none, softcap, alibi, general, leaning };

/// How K and V come where they lie in pages: not in pages, in boxes of the copy engine that are of
/// one page each, row by row.
enum class PageCopies : int { none, boxes, rows };
/// Warps that copy them.
inline constexpr int kProducerWarps = 4;

/// What shared memory and registers hold: literals of the tile.
struct Shape {
  int warpgroups = 2;    ///< 64 query rows each: B_r = 64 * warpgroups; see held
  int block_n = 128;     ///< B_c, multiple of 16
  int stages = 2;        ///< of K in shared memory
  int value_stages = 2;  ///< of V, at most as many
  int q_buffers = 1;
  /// Lists::parts: a warpgroup has the rows of so many, one after the other.
  int held = 1;
  bool own_o = true;  ///< O is staged in shared memory of its own, not in Q's place
  /// Blocks of the kernel on a multiprocessor. Of several each has a producer of one warp, behind
  /// the consumers, and all threads have equally many registers.
  int resident = 1;

  /// Of a bias that the copy engine brings, in boxes of 64 queries x 64 keys. 0: warps copy it.
  int bias_stages = 0;

  constexpr bool alone() const { return resident == 1; }
  constexpr int computing() const { return warpgroups / held; }  ///< warpgroups there are
  constexpr int threads() const { return 128 * computing() + (alone() ? 128 : 32); }
  bool operator==(const Shape&) const = default;
};

/// What a tile's warpgroups do when: found good by measurement (lab/fwd_sm90.md).
struct Schedule {
  bool ping_pong = true;     ///< warpgroups take turns at issuing products
  bool skip_blocks = true;   ///< a warpgroup passes over blocks that its own 64 rows do not see
  bool lazy_rescale = true;  ///< a row maximum moves only when it grew by 2^8
  /// A block's scores are issued behind the values of the block before, not ahead of them, and both
  /// waited for: P is packed beside the exponentials, its place being free.
  bool values_first = false;
  bool halve_cut = false;  ///< of a cut block whose one half is hidden the other alone is taken
  bool q_by_need = false;  ///< Q of a warpgroup is copied just before the first block that it sees
  /// The next tile's first scores are computed under this tile's epilogue.
  bool chain_tiles = false;
  bool dynamic = false;  ///< tiles are handed out by a counter, not in turn
  /// The blocks left of the tile's last row first, that one ahead, then those right of it: where
  /// scores fall off with the distance, maxima are found at once. Nothing is masked.
  bool from_diagonal = false;
  /// Dropout: a warpgroup makes a block's bits between the products that it issues. A warp waits
  /// for the tensor cores at each of them; behind them all, it would have nothing to wait for.
  bool bits_between = false;
  /// A bias in boxes: a warp of its own brings them, and each warpgroup gives its own back. Else
  /// the warp of keys and values does, when all have.
  bool boxes_apart = false;

  bool operator==(const Schedule&) const = default;
};

struct Config {
  tile::Element element = tile::Element::bf16;
  int head_dim = 128;    ///< padded D, multiple of 16
  int head_dim_v = 128;  ///< padded Dv, multiple of 16
  Shape shape;
  Schedule schedule;
  Mask mask = Mask::none;
  Modification modification = Modification::none;
  Lengths lengths = Lengths::dense;
  bool pack_heads = false;              ///< the query heads of a key head are rows of one tile
  bool split = false;                   ///< keys in parts: O and LSE of each to float32 workspace
  Lists lists = Lists::none;            ///< of tiles of keys: then Args are ListArgs
  PageCopies pages = PageCopies::none;  ///< of any other kind Args are PagedArgs
  /// Packed sequences are documents, whose row blocks are found on the device: Args are
  /// DocumentArgs.
  bool documents = false;
  tile::Expressions expressions;  ///< with any, Args are Expressed
  tile::OptionKinds options;      ///< with any, Args are Optioned

  constexpr bool leans() const { return modification == Modification::leaning; }
  constexpr bool paged() const { return pages != PageCopies::none; }
  constexpr bool boxes_bias() const { return options.bias() && shape.bias_stages > 0; }
  /// Barriers of a stage of boxes.
  constexpr int box_barriers() const { return schedule.boxes_apart ? shape.warpgroups : 1; }
  /// Where maxima are trusted such a bias is added to raw scores, an instruction an element less.
  constexpr bool adds_raw_bias() const {
    return boxes_bias() && modification == Modification::none && !expressions.any();
  }
  /// P of a block is taken against the maxima so far. Where it outgrew them, which its sums show,
  /// the block's scores are computed again. Not where scores are logits, but for a bias. Under a
  /// mask function without a list, rows may have seen nothing before a block that they see.
  constexpr bool trusts_maxima() const {
    return (modification != Modification::general || options.bias()) &&
           (expressions.mask == 0 || lists != Lists::none) &&
           !(options.mask && modification == Modification::softcap);
  }
  /// A mask function's map may have the pairs of cut tiles as bits, made once for all heads.
  constexpr bool shows_cut() const {
    return lists == Lists::whole && expressions.mask != 0 && shape.block_n == 128 && !options.mask;
  }
  bool operator==(const Config&) const = default;
};

/// What a consumer can do at once.
constexpr bool goes_together(const Config& c) {
  const Schedule& s = c.schedule;
  const bool listed = c.lists != Lists::none;
  const bool chains = c.mask != Mask::both && c.shape.own_o && !c.split;
  const bool halves = c.modification == Modification::none ||
                      (c.modification == Modification::softcap && c.mask == Mask::right);
  const bool hides = c.options.mask || c.options.dropout || c.options.tree || c.expressions.any();
  if (s.chain_tiles && (!chains || listed)) return false;
  if (s.ping_pong && c.shape.warpgroups < 2) return false;
  if (s.halve_cut && (!halves || hides || listed || !c.trusts_maxima())) return false;
  if (s.bits_between && (!c.options.dropout || !s.ping_pong)) return false;
  if (c.pack_heads && (c.expressions.any() || c.options.dropout)) return false;
  if (c.pack_heads && c.lists == Lists::parts) return false;
  // The producer of several blocks on a multiprocessor is one warp.
  if (!c.shape.alone() && (c.paged() || s.boxes_apart)) return false;
  return !(listed && (s.skip_blocks || c.split));
}

/// What lies where in shared memory, in bytes from its 1024-byte aligned start.
struct SharedPlan {
  static constexpr int kPanel = 64 * 128;                    ///< 64 rows x 64 columns
  static constexpr int kSlot = 32;                           ///< an announced tile
  static constexpr int kListed = 16;                         ///< which tile of a list K is of
  int q_warpgroup, q_buffer, k_stage, v_stage, o_warpgroup;  ///< sizes
  int bias_stage;                                            ///< of all warpgroups
  int q, k, v, o, boxes, barriers, slots, listed, bias, dropout, bytes;

  static constexpr int panels(int columns) { return (columns + 63) / 64; }
  constexpr explicit SharedPlan(const Config& c)
      : q_warpgroup((c.shape.own_o || c.head_dim > c.head_dim_v ? panels(c.head_dim)
                                                                : panels(c.head_dim_v)) *
                    kPanel),
        q_buffer(q_warpgroup * c.shape.warpgroups),
        k_stage(panels(c.head_dim) * c.shape.block_n * 128),
        v_stage(panels(c.head_dim_v) * c.shape.block_n * 128),
        o_warpgroup(panels(c.head_dim_v) * kPanel),
        bias_stage(c.boxes_bias() ? c.shape.warpgroups * (c.shape.block_n / 64) * kPanel : 0),
        q(0),
        k(q + q_buffer * c.shape.q_buffers),
        v(k + k_stage * c.shape.stages),
        o(c.shape.own_o ? v + v_stage * c.shape.value_stages : q),
        boxes(v + v_stage * c.shape.value_stages +
              (c.shape.own_o ? o_warpgroup * c.shape.warpgroups : 0)),
        barriers(boxes + bias_stage * c.shape.bias_stages),
        slots(barriers + 8 * (4 * c.shape.stages + 2 * c.shape.warpgroups * c.shape.q_buffers + 4 +
                              2 * c.shape.bias_stages * c.box_barriers())),
        listed(slots + 2 * kSlot),
        bias((listed + (c.lists == Lists::none ? 0 : kListed * c.shape.stages) + 15) / 16 * 16),
        dropout(bias +
                (c.options.bias() && !c.boxes_bias() ? 4 * c.shape.warpgroups * bias_warp(c) : 0)),
        bytes(c.options.dropout ? dropout + 4 * c.shape.warpgroups * dropout_warp(c)
              : c.options.bias()
                  ? dropout
                  : listed + (c.lists == Lists::none ? 0 : kListed * c.shape.stages)) {}
  /// Dropout's words of a block of keys, for a warp: 16 bytes for four keys.
  static constexpr int dropout_warp(const Config& c) { return c.shape.block_n / 4 * 16; }
  /// Elements of a bias of a warp's rows and a block of keys.
  static constexpr int bias_warp(const Config& c) {
    return tile::PairRoom(c.options.pairs, false, 16, c.shape.block_n).bytes;
  }
};

using tile::Offsets;
using tile::SectionOrder;

/// NOTE: maps of rows that end where a sequence does have their row axis twice: see tile::Offsets.
struct Args {
  tile::TensorMapBytes q, k, v, o;
  int heads_q = 1, group = 1, seq_q = 0, seq_k = 0;  ///< lengths: the longest
  int tile_heads = 1;                                ///< heads of a batch entry, as tiles see them
  int tiles = 0;
  float scale_log2 = 0.0F;       ///< scale * log2 e
  const float* alibi = nullptr;  ///< (B, Hq), may be null
  long long alibi_b = 0, alibi_h = 0;
  float* lse = nullptr;  ///< may be null
  long long lse_b = 0, lse_h = 0, lse_s = 0;
  /// Row i sees the keys j with i + low <= j < min(i + high, seq_k). With lengths from the device
  /// without Sk - Sq, which it adds; then high is at most `top`.
  int low = 0, high = 0, top = 0;
  SectionOrder order;
  TileCounter counter;  ///< dynamic only
  // split
  int splits = 1;
  long long part_rows = 0;  ///< rows of all heads
  float* o_part = nullptr;  ///< (split, row of all heads, padded Dv)
  float* m_part = nullptr;  ///< (split, row), and l behind it: (2, split, row)
  // pack_heads: row r of a warpgroup is query r >> pack_shift of head r % 2^pack_shift of the group
  int pack_shift = 0;
  // lengths
  const int* key_lengths = nullptr;  ///< (B)
  long long key_lengths_b = 0;
  Offsets cu_q, cu_k;  ///< packed
  int sequences = 0;   ///< packed; the rows behind the last one count as one more, without keys
  int q_rows = 0, k_rows = 0;  ///< N of the maps (packed: all rows)
  // modification
  float scale_inverse = 0.0F;               ///< 1 / scale_log2
  float scale_cap = 0.0F, cap_log2 = 0.0F;  ///< scale / softcap; softcap * log2 e, 0 = off
  float cap_raw = 0.0F, cap_slope = 0.0F;   ///< tile/softcap.cuh, on raw scores
  float cap_narrow = 0.0F, cap_1 = 0.0F, cap_2 = 0.0F;
  float cap_cubic = 0.0F, cubic_0 = 0.0F, cubic_1 = 0.0F;
};

/// With documents: their row blocks (rows/documents_args.h).
struct DocumentArgs : Args {
  alignas(64) const int* blocks = nullptr;  ///< (most, 4)
  const int* count = nullptr;               ///< 0: there is nothing to do
};

/// With a block list: the tiles of keys of each row block of 64 * warpgroups queries.
struct ListArgs : Args {
  // NOTE: aligned, or it might begin where Args has its last padding.
  alignas(64) tile::TileLists lists;
};

/// With K and V in pages. Their maps have a page's rows twice, as those of sequences have: of a
/// page with n keys row i is x = size - n + i, y = n. A box is of one page.
struct PagedArgs : ListArgs {
  alignas(64) tile::Pages pages;
  int box_rows = 1;  ///< divides the size of a page and block_n
  // PageCopies::rows: an entry of these views is a page.
  tile::View k_pages, v_pages;
  int columns_k = 0, columns_v = 0;
};

}  // namespace tilewise::fwd_sm90
