/// bwd_sm90's configs made of others.
#pragma once

#include "bwd_sm90_check.h"

namespace {

constexpr Config masked(Config c, Mask mask) {
  c.mask = mask;
  return c;
}
constexpr Config hiding(Config c) {
  c.hides = true;
  return c;
}
/// With softcap the scores cannot start from -LSE, nor with ALiBi above dim 128; at dim 64 the rest
/// stays.
constexpr Config with_softcap(Config c) {
  c.logits.modified = c.logits.softcap = true;
  return c;
}
constexpr Config with_alibi(Config c) {
  c.logits.alibi = true;
  c.logits.modified = c.large_dim();
  return c;
}
constexpr Config half(Config c) {
  c.element = Element::fp16;
  return c;
}
constexpr Config ragged(Config c, Lengths lengths) {
  c.lengths = lengths;
  return c;
}
constexpr Config dims(Config c, int dim, int dim_v) {
  c.head_dim = dim, c.head_dim_v = dim_v;
  return c;
}

}  // namespace
