#include "cuda/kernels/rows/pack.h"

#include <algorithm>

#include "cuda/host/sequences.h"
#include "cuda/jit/config_text.h"
#include "plan/accounting.h"

namespace tilewise::cuda {
namespace {

using Role = MemoryItem::Role;

/// What the plan calls the copies of an operand.
struct Names {
  const char *packed, *planes, *scales;
};
constexpr std::array<Names, 4> kNames = {{{"Q packed", "Q planes", "Q scales"},
                                          {"K packed", "K planes", "K scales"},
                                          {"V packed", "V planes", "V scales"},
                                          {"dO packed", "dO planes", "dO scales"}}};

KernelUnit pack_unit(const pack_rows::Config& c) {
  return {.stem = "pack_rows",
          .file = "rows/pack",
          .config = element_text(c.element) + flag_text("from_float", c.from_float) +
                    number_text("planes", c.planes) + (c.ragged ? flag_text("ragged", true) : ""),
          .threads = pack_rows::kThreads,
          .min_blocks = 4,
          .args = c.ragged ? "RaggedArgs" : "Args"};
}

}  // namespace

void add_pack_rows_units(std::vector<PackUnit>& units) {
  units.push_back({.unit = pack_unit({}), .row = "flash_fwd_sm80", .instruction = ""});
}

Operands::Operands(const Problem& p) : form_(host::form(p)), device_(p.device.index) {
  const bool gathers = p.paged && !host::reads_pages(p);
  if (gathers) {
    ragged_.pages = host::pages(p);
    host::fill_key_lengths(ragged_, p);
  }
  const std::array<const Tensor*, 4> tensors = {&p.q, &p.k, &p.v, &p.d_o};
  const std::size_t count = p.pass == Pass::forward ? 3 : 4;
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& t = *tensors[i];
    const bool keys = i == 1 || i == 2, gathered = gathers && keys;
    if (!form_.scaled && host::has_vectors(t) && !gathered) {
      operands_[i].view = {t.data, t.strides[0], t.strides[1], t.strides[2]};
      operands_[i].cols = static_cast<int>(t.sizes[3]);
      continue;
    }
    const std::int64_t width = std::int64_t{form_.planes} * host::padded(t.sizes[3]);
    const std::int64_t blocks =
        keys ? host::key_blocks(p, tile::kScaleRows) : host::query_blocks(p, tile::kScaleRows);
    const std::int64_t length = keys ? p.seq_k : p.seq_q;
    const bool packed = keys ? p.packed_keys() : p.packed;
    const std::int64_t rows = packed ? blocks * tile::kScaleRows : length;
    Source source = {i, &t, {packed ? 1 : p.batch, t.sizes[1], rows, width}, blocks};
    if (packed) source.sequences = keys ? host::key_sequences(p) : host::query_sequences(p);
    source.paged = gathered;
    sources_.push_back(source);
    operands_[i].cols = host::padded(t.sizes[3]);
    operands_[i].blocks = static_cast<int>(blocks);
  }
}

void Operands::add_memory(std::vector<MemoryPart>& items) const {
  for (const Source& s : sources_) {
    const DType dtype = form_.element == tile::Element::bf16 ? DType::bfloat16 : DType::float16;
    const Names& names = kNames[s.index];
    items.push_back(
        memory_part(form_.scaled ? names.planes : names.packed, Role::workspace, dtype, s.packed));
    if (form_.scaled) {
      items.push_back(memory_part(names.scales, Role::workspace, DType::float32,
                                  {s.packed[0], s.packed[1], s.blocks}));
    }
  }
}

double Operands::bytes() const {
  double bytes = 0.0;
  for (const Source& s : sources_) {
    const auto rows = static_cast<double>(s.packed[0] * s.packed[1] * s.packed[2]);
    bytes += rows * static_cast<double>(s.tensor->sizes[3] * dtype_bytes(s.tensor->dtype));
    bytes += 2.0 * rows * static_cast<double>(s.packed[3]);
  }
  return bytes;
}

void Operands::prepare(WorkspaceCutter& workspace, void* stream) {
  if (sources_.empty()) return;
  pack_rows::RaggedArgs ragged = ragged_;
  pack_rows::Args& args = ragged.args;
  std::int64_t blocks = 0;
  for (const Source& s : sources_) {
    const auto& [batch, heads, rows, width] = s.packed;
    ragged.sequences[args.count] = s.sequences;
    ragged.paged[args.count] = s.paged;
    pack_rows::Source& source = args.sources[args.count++];
    source.from = host::view4(*s.tensor);
    source.to = workspace.take<unsigned short>(batch * heads * rows * width);
    if (form_.scaled) source.scale = workspace.take<float>(batch * heads * s.blocks);
    source.vectors = host::has_vectors(*s.tensor);
    source.heads = static_cast<int>(heads);
    source.rows = static_cast<int>(rows);
    source.cols = static_cast<int>(s.tensor->sizes[3]);
    source.padded = static_cast<int>(width / form_.planes);
    source.blocks = static_cast<int>(s.blocks);
    source.first_block = blocks;
    blocks += batch * heads * s.blocks;
    Operand& operand = operands_[s.index];
    const bool packed = s.sequences.offsets != nullptr;  // one entry of a batch
    operand.view = {source.to, packed ? 0 : heads * rows * width, rows * width, width};
    operand.scale = source.scale;
  }
  const pack_rows::Config config = {
      .element = form_.element,
      .from_float = form_.scaled,
      .planes = form_.planes,
      .ragged = std::any_of(sources_.begin(), sources_.end(), [](const Source& s) {
        return s.paged || s.sequences.offsets != nullptr;
      })};
  const Kernel kernel = host::load_config(config, device_, pack_unit);
  if (config.ragged) {
    launch(kernel, {.x = blocks}, stream, ragged);
  } else {
    launch(kernel, {.x = blocks}, stream, args);
  }
}

}  // namespace tilewise::cuda
