/// Configs of the backward that the emulation runs.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"

namespace {

using namespace tilewise;
using tile::Element;
using Gradient = bwd_sm80::Config;

constexpr Gradient kSmall = {.two_plane = true};
constexpr Gradient kPlain = {};
constexpr Gradient kFirstPass = {.output = {.with_dq = false}, .two_plane = true};
constexpr Gradient kSecondPass = {
    .shape = {.block_m = 128, .block_n = 32}, .output = {.with_dq = false}, .two_plane = true};
constexpr Gradient kWide = {.head_dim = 128,
                            .head_dim_v = 128,
                            .shape = {.warps = 8, .column_warps = 2},
                            .two_plane = true};
/// For machines with 99 KiB of shared memory.
constexpr Gradient kSmallWide = {
    .head_dim = 192,
    .head_dim_v = 192,
    .shape =
        {.block_m = 32, .block_n = 64, .warps = 8, .column_warps = 2, .sub_m = 16, .stages = 1},
    .two_plane = true};
constexpr Gradient kWideHalf = {.form = {.element = Element::fp16},
                                .head_dim = 128,
                                .head_dim_v = 128,
                                .shape = {.warps = 8, .column_warps = 2}};
constexpr Gradient kFloatKeys = {.form = {.element = Element::fp16, .planes = 2, .scaled = true},
                                 .shape = {.block_n = 64, .sub_m = 64, .stages = 1},
                                 .output = {.with_dq = false}};
constexpr Gradient with_parts(Gradient config) {
  config.split = true;
  return config;
}
constexpr tile::PairKind kPairs = {tile::BiasType::float32, true, true};
constexpr Gradient with_pairs(Gradient config, tile::PairKind pairs = kPairs) {
  config.pairs = pairs;
  return config;
}
constexpr Gradient with_one_plane(Gradient config) {
  config.form.planes = 1;
  return config;
}
constexpr Gradient with_modification(Gradient config) {
  config.modified = true;
  return config;
}
constexpr Gradient with_dropout(Gradient config) {
  config.dropout = true;
  return config;
}
constexpr Gradient kFloatQueries = {.form = {.element = Element::fp16, .planes = 2, .scaled = true},
                                    .shape = {.block_n = 64, .stages = 1},
                                    .output = {.with_dq = false}};
constexpr Gradient kFloatWideKeys = {
    .form = {.element = Element::fp16, .planes = 2, .scaled = true},
    .head_dim = 192,
    .head_dim_v = 192,
    .shape = {.block_m = 16, .block_n = 64, .sub_m = 16, .stages = 1},
    .output = {.with_dq = false}};
constexpr Gradient kFloatWideQueries = {
    .form = {.element = Element::fp16, .planes = 2, .scaled = true},
    .head_dim = 192,
    .head_dim_v = 192,
    .shape = {.block_m = 64, .block_n = 16, .stages = 1},
    .output = {.with_dq = false}};

}  // namespace
