#include "cuda/host/common.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda/driver/device.h"
#include "cuda/host/refusal.h"
#include "cuda/jit/config_text.h"
#include "plan/accounting.h"
#include "plan/gpu_facts.h"
#include "problem/blocks.h"
#include "problem/philox.h"

namespace tilewise::cuda::host {
namespace {

using Role = MemoryItem::Role;

/// Lengths up to this leave room for sums of positions in 32 bits.
constexpr std::int64_t kLongest = std::int64_t{1} << 29;
/// Milliseconds of a pair on the H200 that they were measured on (option-costs-sm80.csv): an
/// element of a mask and of a bias by way of shared memory, where the bias lies in the L2 cache, or
/// in memory beyond it; an element of either that is read alone; dropout's bits.
constexpr double kMaskMs = 4.5e-10, kBiasMs = 6.5e-10, kReadBiasMs = 1.05e-9, kAloneMs = 3.0e-9;
constexpr double kDropPairMs = 1.05e-9;
/// What a backward's launches take of that: they have fewer warps.
constexpr double kBackwardPairs = 1.3;
/// Share of the L2 cache that a section of heads may fill.
constexpr double kSectionBytes = 32.0 * 1024 * 1024;

bool rows_are_aligned(const Tensor& t, std::int64_t vector) {
  if (t.sizes[3] % vector != 0 || (t.strides[3] != 1 && t.sizes[3] > 1)) return false;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (t.sizes[axis] > 1 && t.strides[axis] % vector != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

/// Clocks of all multiprocessors, of those of the H100 that the tables were measured on.
double clocks(const Hardware& machine) {
  constexpr double kFloat32 = kSustainedFloat32 * 66.9;  // TFLOP/s
  if (machine.float32_tflops <= 0.0) return 1.0;
  return machine.float32_tflops / float32_fma_per_clock(machine.arch) /
         (kFloat32 / float32_fma_per_clock(90));
}

/// Bytes of a tensor in memory, which broadcasts along axes of stride 0.
double stored_bytes(const Tensor& t) {
  if (!t.defined()) return 0.0;
  auto bytes = static_cast<double>(dtype_bytes(t.dtype));
  for (int axis = 0; axis < t.rank; ++axis) {
    if (t.strides[axis] != 0) bytes *= static_cast<double>(t.sizes[axis]);
  }
  return bytes;
}

}  // namespace

std::string refusal(const Problem& p, const Hardware& machine, const Takes& takes) {
  if (machine.arch < 80) {
    return "the device has compute capability " + std::to_string(machine.arch / 10) + "." +
           std::to_string(machine.arch % 10) + ": expected 8.0 or newer";
  }
  std::string reason = option_refusal(p, takes);
  if (!reason.empty()) return reason;
  if (std::max(p.head_dim, p.head_dim_v) > takes.most_head_dim) {
    return "head dims above " + std::to_string(takes.most_head_dim) +
           " are not supported by this kernel";
  }
  if (p.seq_q > kLongest || p.seq_k > kLongest) {
    return "lengths above " + std::to_string(kLongest) + " are not supported by this kernel";
  }
  if (p.packed && std::max({p.total_q, p.total_k, p.batch}) > kLongest) {
    return "packed tensors of more than " + std::to_string(kLongest) +
           " rows are not supported by this kernel";
  }
  // Statistics and packed operands have whole blocks of rows a sequence, counted by an int.
  if (p.packed && std::max(query_blocks(p, tile::kScaleRows), key_blocks(p, tile::kScaleRows)) >=
                      (std::int64_t{1} << 31) / tile::kScaleRows) {
    return "more than 2^25 packed sequences are not supported by this kernel";
  }
  // Tiles have at least 16 rows: a grid of one dimension holds 2^31 - 1 of them.
  const std::int64_t heads = p.stored_batch() * p.heads_q;
  const std::int64_t blocks = std::max(query_blocks(p, 16), key_blocks(p, 16));
  if (heads > 0 && heads > (std::int64_t{1} << 31) / (blocks + 1)) {
    return "more than 2^31 tiles are not supported by this kernel";
  }
  return "";
}

int padded(std::int64_t dim) {
  for (const int size : {16, 32, 64, 96, 128, 192, 256, 384}) {
    if (dim <= size) return size;
  }
  return 512;
}

int slices(std::int64_t dim) { return padded(dim) > 256 ? 2 : 1; }

tile::Form form(const Problem& p) {
  if (p.dtype == DType::bfloat16) return {};
  if (p.dtype == DType::float16) return {.element = tile::Element::fp16};
  return {.element = tile::Element::fp16,
          .planes = p.precision == Precision::tf32 ? 1 : 2,
          .scaled = true};
}

double products(const Problem& p) { return form(p).planes == 2 ? 3.0 : 1.0; }

std::string form_text(const tile::Form& f) {
  return ".form = {" + element_text(f.element) + number_text("planes", f.planes) +
         flag_text("scaled", f.scaled) + "}";
}

bool has_vectors(const Tensor& t) { return rows_are_aligned(t, 16 / dtype_bytes(t.dtype)); }

tile::Positions positions(const Problem& p) {
  constexpr std::int64_t kFar = tile::Positions::kFar;
  tile::Positions positions;
  positions.left = static_cast<int>(std::clamp(p.left, -kFar, kFar));
  positions.right = static_cast<int>(std::clamp(p.right, -kFar, kFar));
  positions.top_left = p.causal == Causal::top_left;
  return positions;
}

tile::View4 view4(const Tensor& t) {
  return {t.data, t.strides[0], t.strides[1], t.strides[2], t.strides[3]};
}

tile::DropoutBits dropout_bits(const Problem& p) {
  const DropoutMask mask(p.dropout);
  return {.key = {mask.key()[0], mask.key()[1]},
          .offset = mask.offset(),
          // The low half of its only element.
          .counter = static_cast<const unsigned*>(p.dropout_counter.data),
          .limit = static_cast<unsigned>(mask.threshold() - 1),
          .scale = static_cast<float>(mask.scale())};
}

bool is_modified(const Problem& p) {
  // A hidden score is -inf times the scale: that must stay -inf, so the scale must be positive and
  // not tiny.
  return p.softcap != 0.0 || p.alibi_slopes.defined() || !(p.scale > 1e-30F);
}

tile::PairKind pair_kind(const Problem& p) {
  const auto side_by_side = [](const Tensor& t) { return !t.defined() || t.strides[3] == 1; };
  return {.bias = pair_tensors(p).type,
          .mask = p.mask.defined(),
          .staged = (p.bias.defined() || p.mask.defined()) && side_by_side(p.bias) &&
                    side_by_side(p.mask)};
}

std::string pair_text(const tile::PairKind& kind) {
  if (!kind.any()) return "";
  constexpr std::array<const char*, 4> kTypes = {"none", "bf16", "fp16", "float32"};
  return std::string(", .pairs = {tilewise::tile::BiasType::") +
         kTypes[static_cast<std::size_t>(kind.bias)] + ", " + bool_text(kind.mask) + ", " +
         bool_text(kind.staged) + "}";
}

int shared_kib(int arch) { return arch == 80 ? 163 : arch >= 90 && arch < 120 ? 227 : 99; }

tile::PairTensors pair_tensors(const Problem& p) {
  tile::PairTensors pairs;
  if (p.mask.defined()) pairs.mask = view4(p.mask);
  if (!p.bias.defined()) return pairs;
  pairs.bias = view4(p.bias);
  pairs.type = p.bias.dtype == DType::float32    ? tile::BiasType::float32
               : p.bias.dtype == DType::bfloat16 ? tile::BiasType::bf16
                                                 : tile::BiasType::fp16;
  return pairs;
}

double pair_bytes(const Problem& p) {
  return stored_bytes(p.bias) + stored_bytes(p.mask) + stored_bytes(p.dbias);
}

unsigned section(bool positional, std::int64_t heads, std::int64_t blocks, double head_bytes,
                 int multiprocessors) {
  if (!positional || heads <= 1) return 1;
  const auto fit = static_cast<std::int64_t>(kSectionBytes / std::max(1.0, head_bytes));
  // The last section must keep every multiprocessor busy to its end.
  const std::int64_t busy =
      ceil_div(std::int64_t{4} * multiprocessors, std::max<std::int64_t>(1, blocks));
  const std::int64_t wanted = std::clamp<std::int64_t>(std::max(fit, busy), 1, heads);
  const std::int64_t sections = ceil_div(heads, wanted);
  return static_cast<unsigned>(ceil_div(heads, sections));
}

Grid following(std::int64_t blocks, int device) {
  return {.x = blocks, .overlap_previous = device_arch(device) >= 90};
}

double options_ms(const Problem& p, int passes, const Hardware& machine) {
  double pair_ms = drops(p) ? kDropPairMs : 0.0;
  const bool staged = pair_kind(p).staged;
  const bool cached = stored_bytes(p.bias) <= static_cast<double>(machine.l2_bytes);
  if (p.mask.defined()) pair_ms += staged ? kMaskMs : kAloneMs;
  if (p.bias.defined()) pair_ms += !staged ? kAloneMs : cached ? kBiasMs : kReadBiasMs;
  if (pair_ms == 0.0) return 0.0;
  const double times = p.pass == Pass::backward ? kBackwardPairs : 1.0;
  return times * passes * visible_pairs(p) * pair_ms / clocks(machine);
}

double full_tflops(const Load& load, const Hardware& machine) {
  // The H100 that the tables were measured on: what the plan counts on of its tensor cores,
  // TFLOP/s, and its peak by mma.sync, 0.6 of that by wgmma (measured 646).
  constexpr double kMatrix = kSustainedMatrix * 1070.5;
  constexpr double kMmaPeak = 646.0, kMmaShare = 0.6;
  if (machine.matrix_tflops <= 0.0 || machine.float32_tflops <= 0.0) return load.tflops;
  // Architectures before and after sm_90 have nothing faster than mma.sync.
  const bool hopper = machine.arch >= 90 && machine.arch < 100;
  const double matrix = machine.matrix_tflops / kMatrix / (hopper ? 1.0 : kMmaShare);
  const double products = load.products / kMmaPeak;  // of a microsecond, for a MFLOP
  const double rest = std::max(0.0, 1.0 / load.tflops - products);
  return 1.0 / (products / matrix + rest / clocks(machine));
}

bool fills(double tiles, int blocks_per_sm, const Hardware& machine) {
  return tiles > 3.0 * blocks_per_sm * std::max(1, machine.multiprocessors);
}

double time_ms(const Load& load, const Hardware& machine) {
  if (load.tiles <= 0.0 || load.flops <= 0.0) return 0.0;
  const double sms = std::max(1, machine.multiprocessors), per_sm = load.blocks_per_sm;
  const double full = full_tflops(load, machine);
  const double slots = sms * per_sm, waves = load.tiles / slots;
  // A multiprocessor with few blocks reaches less, and each of them gets more, than with all that
  // fit.
  constexpr double kFewBlocks = 0.82;
  if (waves <= 1.0) {
    const double blocks = std::max(1.0, load.tiles / sms);
    const double rate = full / sms * std::pow(blocks / per_sm, kFewBlocks) / blocks;
    return 1e-9 * load.largest / rate + load.tile_ms * blocks;
  }
  // A tile's first loads are hidden in part behind the blocks beside it; where few tiles start at
  // once they are seen, and wait for each other.
  constexpr double kHidden = 0.63, kSeen = 1.7;
  if (waves <= 4.0) {
    const double average = load.flops / load.tiles;
    // Whole rows under a causal mask: of every size down to nothing.
    const bool all_sizes = load.largest > 1.6 * average;
    const double first =
        (all_sizes && waves > 2.0 ? kHidden : kSeen) * load.tile_ms * std::ceil(waves);
    if (load.largest <= 1.25 * average) {  // about one size: whole waves
      return 1e-9 * load.flops / full * std::ceil(waves) / waves + first;
    }
    // Longest first: the short ones fill what the long ones leave.
    const double tail = all_sizes ? 0.15 : 0.6;
    const double longest = load.flops / (slots * load.largest);
    return 1e-9 * load.largest * slots / full * (longest <= 1.0 ? 1.0 : longest + tail) + first;
  }
  // Many tiles, longest first, leave half a wave of tail.
  const double whole = waves + 0.5;
  return 1e-9 * load.flops / full * whole / waves + kHidden * load.tile_ms * whole;
}

}  // namespace tilewise::cuda::host
