#include "cpu/flash/mapped_mask.h"

namespace tilewise::cpu {
namespace {

bool needs_map(const Problem& p) { return p.mask_function.defined(); }

}  // namespace

Problem with_map_sizes(const Problem& p) {
  Problem sized = p;
  if (needs_map(p) && !p.block_list.defined()) {
    sized.block_list.block_q = sized.block_list.block_k = expression::kMapBlock;
  }
  return sized;
}

MappedMask::MappedMask(const Problem& problem) : given_(problem) {
  if (!needs_map(problem)) return;
  const BlockList sizes = with_map_sizes(problem).block_list;
  map_ = expression::make_block_map(problem, problem.mask_function, sizes.block_q, sizes.block_k);
  mapped_ = problem;
  mapped_->block_list = map_.list();
}

}  // namespace tilewise::cpu
