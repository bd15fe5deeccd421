/// fwd_sm90: O = softmax(Q K^T) V on Hopper. FlashAttention-2, Dao 2023, Algorithm 1, on TMA,
/// mbarriers and wgmma.
///
///   S = scale * Q K^T; m = rowmax; P = 2^(S - m); l = rowsum(P); O = P V / l; LSE = m + log l
///   (docs/math.md F1-F12)
///
/// A block, one or several of a multiprocessor, takes tile after tile. Roles:
///
/// - Producer: one thread copies. A warp does where rows list different tiles, a warpgroup where K
///   and V lie in pages. With boxes_apart a thread of a second warp copies a bias.
/// - Consumer: every other warpgroup computes 64 query rows of the tile. It computes the scores of
///   one block of keys while the tensor cores still multiply P of the block before with V.
///
/// Keys go from right to left: the blocks that the right edge cuts, those that nothing cuts, those
/// that a window's left edge cuts. Schedule, budgets, measurements: fwd_sm90/README.md.
#pragma once

#include "cuda/kernels/fwd_sm90/document_producer.cuh"
#include "cuda/kernels/fwd_sm90/list_consumer.cuh"
#include "cuda/kernels/fwd_sm90/list_producer.cuh"
#include "cuda/kernels/fwd_sm90/paged_producer.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// Registers of a thread that produces, and of one that computes, where they differ. Lists and rows
/// of pages need more than boxes do; three warpgroups leave none. Together no more than the kernel
/// starts with, 504 with two warpgroups and 512 with three, or those who take wait for ever.
struct Registers {
  int producer, consumer;
};
template <Config kConfig>
inline constexpr bool kGivesRegisters = kConfig.shape.warpgroups > 1 && kConfig.shape.alone();
/// Behind the consumers where it is a warp, else before them.
template <Config kConfig>
inline constexpr int kProducerRole = kConfig.shape.alone() ? 0 : kConfig.shape.computing();
template <Config kConfig>
constexpr Registers registers() {
  if (Scores<kConfig>::kMasksListed && kConfig.shape.computing() == 3) return {32, 160};
  if (kListed<kConfig>)
    return kConfig.shape.computing() == 3 ? Registers{56, 152} : Registers{56, 224};
  if (kConfig.shape.warpgroups > 2) return {32, 160};
  return kConfig.pages == PageCopies::rows ? Registers{56, 224} : Registers{40, 232};
}

/// Whether there is nothing to do: documents are left to kernels behind this one, or one before it
/// has taken them.
template <Config kConfig>
__forceinline__ bool leaves(const Args& args) {
  if constexpr (kConfig.documents) {
    wait_for_previous();  // for the row blocks
    let_next_start();
    return *document_args(args).count == 0;
  }
  if constexpr (kListed<kConfig> && kConfig.expressions.mask != 0) {
    const int* const taken = lists<kConfig>(args).taken;
    return taken != nullptr && *taken != 0;
  }
  return false;
}

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& any) {
  const Args& args = plain_args(any);
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<kConfig> shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  if constexpr (kConfig.split) let_next_start();  // the merge, where blocks of this kernel end
  if constexpr (kListed<kConfig>) wait_for_previous();  // for the lists
  if (leaves<kConfig>(args)) return;
  // A warp-uniform role: what depends on it stays in uniform registers.
  const int role = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == kProducerRole<kConfig>) {
    if constexpr (kGivesRegisters<kConfig>) give_registers<registers<kConfig>().producer>();
    const u32 thread = threadIdx.x - 128 * kProducerRole<kConfig>;
    if (kConfig.paged() || thread < (kConfig.lists == Lists::parts ? 32 : 1)) {
      if constexpr (kConfig.paged()) {
        PagedProducer<kConfig> producer{{args, shared}};
        producer.run();
      } else if constexpr (kListed<kConfig>) {
        ListProducer<kConfig, typename WalkOf<kConfig>::Type> producer{{args, shared}};
        producer.run();
      } else if constexpr (kConfig.documents) {
        DocumentProducer<kConfig> producer{{args, shared}};
        producer.run();
      } else {
        Producer<kConfig> producer{args, shared};
        if constexpr (kConfig.boxes_bias() && !kConfig.schedule.boxes_apart)
          producer.copied.options = options_of(any);
        producer.run();
      }
    }
    if constexpr (kConfig.schedule.boxes_apart) {
      if (thread == 32) {
        Producer<kConfig> producer{args, shared};
        producer.copied.options = options_of(any);
        producer.run_boxes();
      }
    }
  } else {
    if constexpr (kGivesRegisters<kConfig>) take_registers<registers<kConfig>().consumer>();
    ConsumerOf<kConfig> consumer(args, shared.base, kProducerRole<kConfig> == 0 ? role - 1 : role);
    consumer.hold(any);
    consumer.run();
  }
}

}  // namespace tilewise::fwd_sm90
