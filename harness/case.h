/// Case: one attention problem as a line of text, `b2 h8/2 q128 k256 d64 bf16 causal window=64,0`.
/// The grammar is written down in cases/README.md; tests, `tilewise check` and `tilewise bench` all
/// read it through here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/spec.h"

namespace tilewise {

/// The content of a tensor: value = scale * kind + shift.
struct Fill {
  enum class Kind : std::uint8_t {
    randn,   ///< N(0, 1)
    rand,    ///< uniform in [0, 1)
    sign,    ///< -1 or 1
    zeros,   ///< 0, so that the fill is the constant `shift`
    iota,    ///< index along S
    heads,   ///< index along H
    arange,  ///< position in the row-major order (B, S, H, D)
    eye,     ///< 1 where the index along D equals the index along S, else 0
  };
  Kind kind = Kind::randn;
  double scale = 1.0;
  double shift = 0.0;
  bool operator==(const Fill&) const = default;
};

/// A set of (b, i, j) of a mask or bias.
struct Region {
  enum class Kind : std::uint8_t {
    all,
    rows,    ///< begin <= i <= end
    keys,    ///< begin <= j <= end
    upper,   ///< j > i
    beyond,  ///< i >= begin or j >= begin
    some,    ///< a random `fraction` of all elements
  };
  Kind kind = Kind::all;
  std::int64_t begin = 0, end = 0;
  double fraction = 0.0;
  std::int64_t batch = -1;  ///< only this batch entry; -1 = every one
  bool operator==(const Region&) const = default;
};

/// The memory layout of a tensor. Gaps hold NaN (true in masks) and must not change.
enum class Layout : std::uint8_t {
  bhsd,        ///< contiguous (B, H, S, D); packed: (H, total, D)
  bshd,        ///< contiguous (B, S, H, D); packed: (total, H, D)
  sbhd,        ///< contiguous (S, B, H, D)
  qkv,         ///< views of one (B, S, Hq + 2 Hk, D) tensor; needs Sq = Sk and D = Dv
  transposed,  ///< memory (B, H, D, S): the innermost stride is S
  step2,       ///< every second element of a last axis of twice the size
  padded,      ///< rows of D + 3 elements
  reversed,    ///< negative stride along S
  expanded,    ///< inputs only: stride 0 along B and H (of dO: along every axis)
  latent,      ///< inputs only: as bshd, and V is the first columns of K
};

/// Views of mask and bias: as is, or one of Layout's step2, padded, expanded.
using View = Layout;

/// Which axes of (B, Hq, Sq, Sk) a mask or bias has; the others broadcast. Packed: axis 0 is not
/// written.
using Axes = std::array<bool, 4>;

struct MaskCase {
  Axes axes{};
  std::vector<Region> hide;
  View view = Layout::bhsd;  ///< bhsd, step2, padded, expanded
  bool operator==(const MaskCase&) const = default;
};

struct BiasCase {
  struct Override {
    double value = 0.0;
    bool lowest = false;  ///< value is the most negative finite one of the type
    Region region;
    bool operator==(const Override&) const = default;
  };
  Axes axes{};
  DType dtype = DType::float32;
  Fill fill;
  std::vector<Override> overrides;
  View view = Layout::bhsd;
  bool operator==(const BiasCase&) const = default;
};

/// A random block list; every row of blocks may be empty.
struct BlocksCase {
  std::int64_t block_q = 0, block_k = 0;
  bool per_batch = false, per_head = false;
  double density = 1.0;
  bool full_flags = false;      ///< flag the blocks that no other mask touches
  std::int64_t dense_row = -1;  ///< a row of blocks that lists every key block; -1: none
  bool operator==(const BlocksCase&) const = default;
};

struct PackedCase {
  std::vector<std::int64_t> q_lengths, k_lengths;
  std::int64_t tail_q = 0, tail_k = 0;  ///< rows past the last offset
  bool wide_offsets = false;            ///< int64 instead of int32
  bool give_max = false;                ///< pass max_seqlen_q and max_seqlen_k
  bool operator==(const PackedCase&) const = default;
};

/// Sets some elements of an input after filling: an inclusive range on each of the axes (B, H, S,
/// D).
struct Poke {
  char tensor = 'q';                           ///< q, k, v, or o for dO
  std::array<std::int64_t, 4> begin{}, end{};  ///< end -1 = to the last
  double value = 0.0;
  bool operator==(const Poke&) const = default;
};

/// Captured tensors that a case may have.
constexpr std::size_t kMaxCaptures = 8;

/// A tensor that the case's expressions capture.
struct CaptureCase {
  std::string name;
  DType dtype = DType::float32;
  std::vector<std::string> sizes;  ///< formulas of B, Hq, Hk, Sq, Sk
  std::string content;  ///< a fill, or a formula of the element's index; empty = the default
  bool operator==(const CaptureCase&) const = default;
};

// The order is the reader's. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct Case {
  std::string id;  ///< "C001"; may be empty
  int line = 0;    ///< of the file it came from; 0 = none

  std::int64_t batch = 1, heads_q = 1, heads_k = 1;
  std::int64_t seq_q = 0, seq_k = 0;  ///< packed: the total rows, tails included
  std::int64_t head_dim = 64, head_dim_v = 64;
  DType dtype = DType::float32;
  bool rank3 = false;  ///< tensors of rank 3 (B, S, D) with one head

  std::optional<double> scale;
  Causal causal = Causal::none;
  Window window;
  std::optional<MaskCase> mask;
  std::optional<BiasCase> bias;
  std::optional<BlocksCase> blocks;
  double softcap = 0.0;
  enum class Alibi : std::uint8_t {
    none,
    per_head,
    per_batch,
    negative,  ///< a head's own: far keys count more
  };
  Alibi alibi = Alibi::none;
  std::optional<Fill> sinks;
  enum class ScoreModKind : std::uint8_t {
    none,
    distance,  ///< x - 0.1 |i - j|
    wave,      ///< x + sin(x) / 2
  };
  ScoreModKind score_mod = ScoreModKind::none;
  std::string score_expression, mask_expression;  ///< formulas; empty = none
  std::vector<CaptureCase> captures;
  Dropout dropout;
  std::vector<std::int64_t> key_lengths;
  std::optional<PackedCase> packed;
  std::int64_t page_size = 0;  ///< > 0: paged KV with shuffled pages; beside packed, of its keys
  bool deterministic = false;
  Precision precision = Precision::exact;

  Layout layout = Layout::bhsd;
  Fill q, k, v;
  Fill d_o;
  Layout d_o_layout = Layout::bhsd;
  bool lse = true;     ///< forward writes LSE
  bool d_lse = false;  ///< backward gets a gradient of LSE
  Fill beyond{Fill::Kind::zeros, 0.0,
              0.0};  ///< what lies past key_lengths and packed totals; see beyond_nan
  bool beyond_nan = true;
  std::vector<Poke> pokes;

  bool forward = true, backward = true;
  bool invalid = false;      ///< the call must throw InvalidArgument
  bool finite_only = false;  ///< gradients need only be finite: logits too large for a float32 LSE

  bool operator==(const Case&) const = default;
};

/// Sets the keys of each sequence for packed queries over pages, and seq_k to the capacity of the
/// pages. The tail of packed keys is not used.
void give_pages(Case& c);

/// Reads one line. Throws InvalidArgument that names the word at fault and what is accepted.
Case parse_case(std::string_view line);

/// The shortest line that parse_case() reads back as the same case (file position aside).
std::string format_case(const Case& c);

/// All cases of a text file: one a line, '#' begins a comment, empty lines are skipped. Throws
/// InvalidArgument with path and line number.
std::vector<Case> read_case_file(const std::string& path);

/// The index-th random small problem of a seed: sizes up to 300 rows and 256 columns, every type
/// but float64, masks, score options, strides. The same on every machine. `variants` problems one
/// after another have the same kinds of everything and differ in sizes and values: on a GPU they
/// share kernels.
Case random_case(std::uint64_t seed, std::int64_t index, std::int64_t variants = 1);
/// The same problem with a random block list: blocks of 1 to 320 rows and keys, the same in all
/// variants.
Case random_list_case(std::uint64_t seed, std::int64_t index, std::int64_t variants = 1);
/// Thousands of rows or keys, or more heads than a GPU has multiprocessors, but at most about
/// 2^17 pairs: bands, block lists, short lengths in long tensors, few queries, few keys, many short
/// heads, many documents.
Case random_sparse_case(std::uint64_t seed, std::int64_t index, std::int64_t variants = 1);
/// Few queries on many keys, half of them in pages.
Case random_served_case(std::uint64_t seed, std::int64_t index, std::int64_t variants = 1);
/// Lists with blocks of 64 keys.
Case random_half_block_case(std::uint64_t seed, std::int64_t index, std::int64_t variants = 1);
/// Multi-head latent attention, absorbed: 576 columns of K, of which V is the first 512.
Case random_latent_case(std::uint64_t seed, std::int64_t index, std::int64_t variants = 1);

/// The folder of the case files: TILEWISE_CASES_DIR in the environment, else `fallback`.
std::string cases_dir(std::string_view fallback);

/// The field `mask` of a report's row: every word of the case that changes the work and has no
/// field of its own, joined by '+' ("causal+window=3,0+softcap=20"), or "none".
std::string mask_field(const Case& c);
/// Those words again, as a case line has them.
std::string words_of_mask_field(std::string_view field);
/// "bhsd", "bshd", ...
std::string_view layout_name(Layout layout);

}  // namespace tilewise
