#include "cuda/kernels/rows/documents.h"

#include <algorithm>
#include <optional>

#include "cuda/host/common.h"
#include "cuda/host/options.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "expression/recognize.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using expression::DocumentIds;

std::optional<DocumentIds> ids_of(const Problem& p) {
  if (!p.mask_function.defined()) return std::nullopt;
  return expression::documents_of(*p.mask_function.program);
}

KernelUnit unit(const documents::Config& config) {
  return {.stem = "documents",
          .file = "rows/documents",
          .config = ".rows = " + std::to_string(config.rows) + flag_text("wide", config.wide),
          .threads = documents::kThreads,
          .shared_bytes = documents::kBytes};
}

}  // namespace

bool compares_documents(const Problem& p) {
  const bool alone = p.pass == Pass::forward && !p.deterministic && !p.packed &&
                     p.seq_q == p.seq_k && p.batch * p.seq_q <= documents::kMostRows &&
                     !p.key_lengths.defined();
  if (!alone || !maps_mask(p) || p.score_function.defined() || options_of(p).any()) return false;
  // What the documents of one entry are must not decide another's tiles (CONTRACT 14).
  const std::optional<DocumentIds> ids = ids_of(p);
  return ids.has_value() && (p.batch == 1 || ids->axis == 0);
}

Problem by_documents(const Problem& p) {
  Problem packed = p;
  packed.mask_function = {};
  packed.packed = true;
  return packed;
}

DocumentBlocks::DocumentBlocks(const Problem& p, int rows) : problem_(p) {
  const DocumentIds of = *ids_of(p);
  const Tensor& ids = p.mask_function.captures[static_cast<std::size_t>(of.capture)];
  config_ = {.rows = rows, .wide = ids.dtype == DType::int64};
  args_.ids = ids.data;
  args_.stride_b = of.axis == 0 ? 0 : ids.strides[0];
  args_.stride_s = ids.strides[static_cast<std::size_t>(of.axis)];
  args_.length = static_cast<int>(p.seq_q);
  args_.rows = static_cast<int>(p.batch * p.seq_q);
  // With more, tiles of the whole sequence have fewer rows of no document.
  const std::int64_t most = 2 * p.batch * ceil_div(p.seq_q, rows);
  args_.most = static_cast<int>(std::min<std::int64_t>(most, documents::kMost));
}

void DocumentBlocks::add_memory(std::vector<MemoryPart>& items) const {
  items.push_back(memory_part("row blocks of documents", MemoryItem::Role::workspace, DType::int32,
                              {args_.most + 1, 4}));
}

void DocumentBlocks::take(WorkspaceCutter& workspace) {
  args_.blocks = workspace.take<int>(std::int64_t{4} * (args_.most + 1));
  args_.count = args_.blocks + std::int64_t{4} * args_.most;
}

void DocumentBlocks::make(void* stream) const {
  const int device = problem_.device.index;
  launch(host::load_config(config_, device, unit), host::following(1, device), stream, args_);
}

}  // namespace tilewise::cuda
