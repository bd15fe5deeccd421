#include "cuda/host/options.h"

#include "cuda/jit/config_text.h"

namespace tilewise::cuda {

tile::OptionKinds options_of(const Problem& p) {
  return {.sinks = p.sinks.defined() && p.pass == Pass::forward, .mask = p.mask.defined()};
}

std::string options_text(const tile::OptionKinds& kinds) {
  if (!kinds.any()) return "";
  return std::string(", .options = {") + bool_text(kinds.sinks) + ", " + bool_text(kinds.mask) +
         "}";
}

tile::Options kernel_options(const Problem& p, const tile::MaskBits& mask) {
  tile::Options options;
  if (p.sinks.defined()) {
    options.sinks = static_cast<const float*>(p.sinks.data);
    options.sinks_h = p.sinks.strides[0];
  }
  options.mask = mask;
  return options;
}

}  // namespace tilewise::cuda
