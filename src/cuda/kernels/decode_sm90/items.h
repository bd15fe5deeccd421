/// Items on the host, for decode_sm90 and mla_sm90: parts of the keys, the parameters that follow
/// from them, the workspace, the launch. decode_sm90/item.cuh says what an item is.
#pragma once

#include <string>

#include "cuda/driver/launch.h"
#include "cuda/kernels/decode_sm90/args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// Items of a problem.
struct ItemParts {
  int row_tiles = 1;   ///< of a key head
  int keys = 0;        ///< of a part
  int most_parts = 1;  ///< of an entry
};

/// What a launch goes by.
template <class Config>
struct ItemChoice {
  Config config;
  ItemParts items;
  double ms = 0.0;  ///< predicted
};

/// Why items of a problem cannot be found; empty if they can.
std::string items_refusal(const Problem& problem);

/// The counter of items counts to 2^24.
inline constexpr double kMostItems = 0x1p23;
double item_count(const Problem& problem, const ItemParts& items);

/// Parts of at most `keys` keys, rounded up to whole blocks of decode_sm90::kBlockN.
ItemParts item_parts(const Problem& problem, int row_tiles, std::int64_t keys);

/// Bytes of K (and V) that the queries read; of pools those that the tables may name. `columns`:
/// of a key.
double key_bytes(const Problem& problem, std::int64_t columns);

/// Everything of Args but tensor maps, the counter and what parts leave.
void fill_items(decode_sm90::Args& args, const Problem& problem, const ItemParts& items);

/// Workspace of the counter and of what parts leave.
void add_items_memory(std::vector<MemoryPart>& memory, const Problem& problem,
                      const ItemParts& items);

/// Launches the kernel with at most `blocks` blocks, and behind it `combine` where entries may have
/// several parts. Cuts the workspace.
void launch_items(const Kernel& kernel, decode_sm90::Args& args, const Problem& problem,
                  const ItemParts& items, std::int64_t blocks, const Context& context);

}  // namespace tilewise::cuda
