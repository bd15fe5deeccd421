/// A line's bool mask, bias and block list, as the emulated cases have them.
#pragma once

#include <cmath>
#include <limits>

#include "biases.h"
#include "block_lists.h"
#include "bool_masks.h"
// Behind the kernels, whose namespaces see its names.
#include "case_lines.h"

namespace {

/// `more`, and the own words of what stands here.
std::vector<std::string_view> with_option_words(std::vector<std::string_view> more) {
  more.insert(more.end(), {"mask_pitch", "mask_square", "transposed", "bias_pitch", "mangled"});
  return more;
}

/// mask=AXES:someF of hidden pairs. Shows hides some more.
Shows shows_of(const CaseLine& line, const tilewise::MaskCase& mask) {
  using tilewise::Region;
  line.expect(mask.view == tilewise::View::bhsd && mask.hide.size() == 1 &&
                  mask.hide[0].kind == Region::Kind::some && mask.hide[0].batch < 0,
              "mask=AXES:someF");
  const auto& [by_batch, by_head, by_query, by_key] = mask.axes;
  return {.density = 1.0 - mask.hide[0].fraction,
          .by_batch = by_batch,
          .by_head = by_head,
          .by_query = by_query,
          .by_key = by_key,
          .pitch = line.own("mask_pitch", Shows().pitch),
          .transposed = line.own("transposed") != 0,
          .square = line.own("mask_square")};
}

/// bias=AXES:TYPE, with VALUE@rows5 or min@rows5 and then -inf@someF.
Added added_of(const CaseLine& line, const tilewise::BiasCase& bias) {
  using tilewise::Region;
  line.expect(bias.view == tilewise::View::bhsd && bias.fill == tilewise::Fill{},
              "a contiguous bias of randn");
  const auto& [by_batch, by_head, by_query, by_key] = bias.axes;
  Added added = {.type = bias.dtype,
                 .by_batch = by_batch,
                 .by_head = by_head,
                 .by_query = by_query,
                 .by_key = by_key,
                 .pitch = line.own("bias_pitch", Added().pitch)};
  for (const auto& [value, lowest, region] : bias.overrides) {
    if (region == Region{.kind = Region::Kind::rows, .begin = 5, .end = 5}) {
      const bool is_bf16 = added.type == tilewise::DType::bfloat16;
      const float least = is_bf16 ? -0x1.fep127F : -std::numeric_limits<float>::max();
      added.shift = lowest ? least : static_cast<float>(value);
    } else {
      line.expect(region.kind == Region::Kind::some && std::isinf(value), "@rows5 or -inf@someF");
      added.hidden = region.fraction;
    }
  }
  return added;
}

Blocks blocks_of(const CaseLine& line, const tilewise::BlocksCase& blocks) {
  return {.q = static_cast<int>(blocks.block_q),
          .k = static_cast<int>(blocks.block_k),
          .density = blocks.density,
          .by_batch = blocks.per_batch,
          .by_head = blocks.per_head,
          .full = blocks.full_flags,
          .dense_row = static_cast<int>(blocks.dense_row),
          .mangled = line.own("mangled") != 0};
}

/// Of Q and K alike.
float take_amplitude(CaseLine& line) {
  const tilewise::Fill q = line.take(&Words::q), k = line.take(&Words::k);
  line.expect(q == k && q.kind == tilewise::Fill::Kind::randn && q.shift == 0.0,
              "the same randn*X for q= and k=");
  return static_cast<float>(q.scale);
}

/// Its bits come from the program's own seed.
double take_dropout(CaseLine& line) {
  const tilewise::Dropout dropout = line.take(&Words::dropout);
  line.expect(dropout.seed == 0 && dropout.offset == 0, "dropout= alone");
  return dropout.p;
}

}  // namespace
