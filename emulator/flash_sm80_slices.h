/// Launches above 256 columns, and configs of theirs that the emulation runs.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"
#include "cuda/kernels/fwd_sm80/args.h"

// The host's, whose headers hide names that kernels use.
namespace tilewise::cuda {
namespace fwd_tiles {
fwd_sm80::Args slice_of(fwd_sm80::Args args, int slice, const fwd_sm80::Config& config);
}
namespace bwd_tiles {
bwd_sm80::Args from_column(bwd_sm80::Args args, const bwd_sm80::Config& config);
}
}  // namespace tilewise::cuda

namespace {

using namespace tilewise;

constexpr fwd_sm80::Config kSliced = {
    .head_dim = 384,
    .head_dim_v = 192,
    .slices = 2,
    .shape = {.block_m = 32, .block_n = 32, .warps = 2, .stages = 1},
    .positional = true};
constexpr bwd_sm80::Config kSlicedKeys = {
    .head_dim = 384,
    .head_dim_v = 384,
    .shape = {.block_m = 16, .block_n = 32, .warps = 2, .sub_m = 16, .stages = 1},
    .output = {.with_dq = false, .columns = 192}};
constexpr bwd_sm80::Config kSlicedQueries = {
    .head_dim = 384,
    .head_dim_v = 384,
    .shape = {.block_m = 32, .block_n = 16, .warps = 2, .stages = 1},
    .output = {.with_dq = false, .columns = 192}};

}  // namespace
