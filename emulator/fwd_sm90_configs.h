/// fwd_sm90's configs of the emulated cases, and a launch of one.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cuda/host/options.h"
#include "cuda/kernels/fwd_sm90/kernel.cuh"
#include "cuda/kernels/fwd_sm90/unit.h"
#include "cuda/tile/expression_ranges.cuh"
#include "expression_texts.h"
#include "interpreted.h"
#include "wgmma.h"

namespace tilewise::fwd_sm90 {
alignas(1024) unsigned char memory[256 * 1024];
}

namespace {

using namespace tilewise;
using fwd_sm90::Args;
using fwd_sm90::Config;
using fwd_sm90::DocumentArgs;
using fwd_sm90::Lengths;
using fwd_sm90::Lists;
using fwd_sm90::Mask;
using fwd_sm90::Modification;
using fwd_sm90::PagedArgs;

int failures = 0;

// What configs of cases are made of: the kernel is a template.
constexpr Config tile64(int warpgroups, Mask mask) {
  Config c;
  c.head_dim = c.head_dim_v = 64;
  c.shape.warpgroups = warpgroups;
  c.shape.block_n = 128;
  c.shape.stages = c.shape.value_stages = warpgroups < 3 ? 4 : 3;
  c.schedule.ping_pong = c.schedule.skip_blocks = warpgroups > 1;
  c.schedule.dynamic = true;
  c.mask = mask;
  c.schedule.chain_tiles = warpgroups > 1 && mask != Mask::both;
  c.shape.q_buffers = c.schedule.chain_tiles ? 2 : 1;
  c.schedule.values_first = warpgroups > 1;
  return c;
}
constexpr Config modified(Config c, Modification modification) {
  c.modification = modification;
  c.schedule.values_first = c.schedule.values_first && modification == Modification::alibi;
  c.schedule.from_diagonal =
      modification == Modification::alibi && c.mask == Mask::none && c.lists == Lists::none;
  return c;
}
constexpr Config with(Config c, Lengths lengths, bool pack_heads, bool split) {
  c.lengths = lengths;
  c.pack_heads = pack_heads;
  c.split = split;
  c.schedule.chain_tiles = c.schedule.values_first = false;
  c.schedule.from_diagonal = c.schedule.from_diagonal && !split;
  c.shape.q_buffers = 1;
  return c;
}
/// Packed sequences that are documents.
constexpr Config of_documents(Config c) {
  c.documents = true;
  return c;
}
constexpr Config tile128(Mask mask, int head_dim) {
  Config c;
  c.head_dim = head_dim;
  c.shape.warpgroups = 3;
  c.shape.block_n = 80;
  c.schedule.ping_pong = mask == Mask::none;
  c.schedule.dynamic = mask != Mask::none;
  c.mask = mask;
  return c;
}
constexpr Config tile192x64() {
  Config c = tile128(Mask::both, 128);
  c.shape.block_n = 64;
  c.shape.stages = c.shape.value_stages = 4;
  c.schedule.q_by_need = true;
  return c;
}
constexpr Config tile128x128(Mask mask) {
  Config c;
  c.schedule.lazy_rescale = c.schedule.skip_blocks = false;
  c.schedule.dynamic = mask != Mask::none;
  c.mask = mask;
  return c;
}
constexpr Config tile256(Mask mask) {
  Config c;
  c.head_dim = c.head_dim_v = 256;
  c.shape.block_n = 80;
  c.shape.own_o = false;
  c.schedule.dynamic = mask != Mask::none;
  c.mask = mask;
  return c;
}
/// Short rows of Q, and O in their place.
constexpr Config tile16x256() {
  Config c = tile256(Mask::none);
  c.head_dim = 16;
  c.head_dim_v = 256;
  c.schedule.dynamic = true;  // of packed sequences
  return c;
}
constexpr Config tile128x64() {
  Config c = tile256(Mask::both);
  c.shape.block_n = 64;
  c.shape.stages = 3;
  c.schedule.ping_pong = false;
  c.schedule.q_by_need = true;
  return c;
}
/// At dim 64, not modified.
constexpr Config halved(Config c) {
  c.schedule.halve_cut = true;
  if (c.mask == Mask::both) c.shape.q_buffers = 2;
  return c;
}
/// ALiBi at dim 128 where no row sees a key right of the diagonal.
constexpr Config leaning(Config c) { return modified(c, Modification::leaning); }
constexpr Config with_sample(Config c, int sample) {
  c.expressions = samples::expressions_of(sample, false);
  const bool masked = c.mask != Mask::none, listed = c.lists != Lists::none;
  c.schedule.values_first = c.schedule.values_first && !masked && c.expressions.mask == 0;
  c.schedule.from_diagonal = c.expressions.score != 0 && !masked && !listed && !c.split;
  return c;
}

constexpr Config optioned(Config c, bool sinks, bool mask) {
  c.options = {.sinks = sinks, .mask = mask};
  c.schedule.values_first =
      c.schedule.values_first && c.modification == Modification::none && !c.expressions.any();
  c.schedule.from_diagonal = c.schedule.from_diagonal && !mask;
  return c;
}

constexpr Config with_tree(Config c) {
  c.options.tree = true;
  c.schedule.halve_cut = false;
  return c;
}
constexpr Config dropping(Config c) {
  c.options.dropout = true;
  c.schedule.bits_between =
      c.schedule.ping_pong && c.shape.warpgroups == 2 && c.shape.block_n == 128;
  return c;
}
constexpr Config biased(Config c, tile::BiasType type, bool staged) {
  c.options.pairs = {.bias = type, .staged = staged};
  if (c.expressions.score != 0) c.modification = Modification::general;
  c.schedule.values_first = false;
  return c;
}

/// Runs the one of kConfigs that `config` is.
template <const auto& kConfigs, std::size_t kIndex = 0>
void run_kernel(const Config& config, const PagedArgs& args, const tile::Captures& captures,
                const tile::Options& options, const DocumentArgs& of_documents) {
  if constexpr (kIndex == std::size(kConfigs)) {
    std::printf("no config {%s}\n", cuda::fwd_sm90_unit(config).config.c_str());
    ++failures;
  } else if (!(config == kConfigs[kIndex])) {
    run_kernel<kConfigs, kIndex + 1>(config, args, captures, options, of_documents);
  } else {
    constexpr Config kConfig = kConfigs[kIndex];
    const tile::Expressed<PagedArgs> expressed{args, captures};
    const tile::Optioned<PagedArgs> optioned{args, captures, options};
    emulator::run_grid(fwd_sm90::memory, std::min(args.tiles, 3), config.shape.threads(), [&] {
      if constexpr (kConfig.documents) {
        fwd_sm90::kernel<kConfig>(of_documents);
      } else if constexpr (kConfig.options.any()) {
        fwd_sm90::kernel<kConfig>(optioned);
      } else if constexpr (kConfig.expressions.any()) {
        fwd_sm90::kernel<kConfig>(expressed);
      } else {
        fwd_sm90::kernel<kConfig>(args);
      }
    });
  }
}

/// The same over pages.
constexpr Config paged(Config c, fwd_sm90::PageCopies copies = fwd_sm90::PageCopies::boxes) {
  c.pages = copies;
  return c;
}

/// A list's tile at dim 64, 128 or 256, of 128 queries. parts: by 64 keys; where scores are not
/// modified two on a multiprocessor at dim 64, with two row blocks a warpgroup at dim 128.
constexpr Config listed(int dim, int block_n, Lists lists, Mask mask, bool plain = true) {
  const bool apart = lists == Lists::parts;
  Config c;
  c.head_dim = c.head_dim_v = dim;
  c.shape.block_n = block_n;
  c.shape.stages = dim > 128 ? 3 : dim > 64 ? 256 / block_n : block_n > 64 ? 4 : 6;
  if (apart && dim <= 128) c.shape.stages = dim > 64 ? 6 : 8;
  c.shape.own_o = dim <= 64 || (dim <= 128 && !apart);
  c.schedule.lazy_rescale = dim != 128;
  if (apart && dim <= 128 && plain) {
    c.shape.own_o = false;
    c.shape.resident = dim > 64 ? 1 : 2;
    c.shape.stages = dim > 64 ? 5 : 6;
    if (dim > 64) c.shape.warpgroups = 4, c.shape.held = 2;
    c.schedule.lazy_rescale = true;
  }
  c.shape.value_stages = dim > 128 ? 2 : c.shape.stages;
  c.schedule.ping_pong = !apart;
  c.schedule.dynamic = true;
  c.schedule.skip_blocks = false;
  c.mask = mask;
  c.lists = lists;
  return c;
}
/// For blocks of 64: tiles of 64 queries, several on a multiprocessor.
constexpr Config listed_alone(int dim, Mask mask) {
  Config c = listed(dim, 64, Lists::whole, mask);
  c.shape.warpgroups = 1;
  c.shape.resident = dim > 64 ? 2 : 3;
  c.shape.stages = c.shape.value_stages = dim > 64 ? 3 : 4;
  c.shape.own_o = false;
  c.schedule.ping_pong = false;
  c.schedule.lazy_rescale = true;
  return c;
}
/// The same without a list, for few tiles.
constexpr Config few64() {
  Config c = listed_alone(64, Mask::none);
  c.lists = Lists::none;
  c.schedule.dynamic = false;
  return c;
}

}  // namespace
