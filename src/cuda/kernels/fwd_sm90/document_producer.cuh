/// fwd_sm90: the producer of a sequence of documents, which are as packed sequences. Where the row
/// blocks of all documents are, and how many there are, a kernel before has found out (documents,
/// rows/README.md).
#pragma once

#include "cuda/kernels/fwd_sm90/producer.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

__forceinline__ const DocumentArgs& document_args(const Args& args) {
  return static_cast<const DocumentArgs&>(args);
}

template <Config kConfig>
struct DocumentProducer {
  static_assert(kConfig.lengths == Lengths::packed && kConfig.schedule.dynamic && !kConfig.split);
  Producer<kConfig> base;

  /// Tile `index` and the lengths of its document.
  __forceinline__ void find(const SectionOrder& order, int index) {
    const OrderedTile at = ordered_tile(order, index);
    const Bytes16 of = load_global_16(document_args(base.args).blocks + 4 * at.block);
    base.tile.block = static_cast<int>(of.x);
    base.tile.batch = static_cast<int>(of.w);
    base.tile.head = at.bh;
    base.tile.q_begin = base.k_begin = static_cast<int>(of.y);
    base.tile.seq_q = base.tile.seq_k = static_cast<int>(of.z - of.y);
  }
  __forceinline__ void run() {
    base.begin();
    SectionOrder order = base.args.order;
    order.blocks = *document_args(base.args).count;
    const int tiles = order.blocks * order.heads;
    Ring<2> slots;
    int index = static_cast<int>(blockIdx.x);
    while (index < tiles) {
      find(order, index);
      base.announce(slots);
      base.copy_tile(index);
      index = answer(base.args.counter, base.asked, tiles);
    }
    base.tile.block = -1;
    base.announce(slots);
  }
};

}  // namespace tilewise::fwd_sm90
