#include "cuda/host/options.h"

#include <cstdint>

#include "cuda/host/fill.h"
#include "cuda/jit/config_text.h"

namespace tilewise::cuda {

tile::OptionKinds options_of(const Problem& p) {
  tile::OptionKinds kinds = {.sinks = p.sinks.defined() && p.pass == Pass::forward,
                             .mask = p.mask.defined(),
                             .dropout = drops(p),
                             .tree = p.tree.defined() && !p.mask_function.defined()};
  if (p.bias.defined())
    kinds.pairs = {.bias = host::pair_tensors(p).type, .staged = bias_begins_even(p)};
  return kinds;
}

bool bias_begins_even(const Problem& p) {
  const Tensor& t = p.bias;
  const auto two = static_cast<std::uintptr_t>(2 * dtype_bytes(t.dtype));
  const bool even = (t.strides[0] | t.strides[1] | t.strides[2]) % 2 == 0;
  return even && t.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(t.data) % two == 0;
}

bool has_tree_words(const Problem& p) {
  return p.tree.defined() && p.mask_function.defined() && !p.block_list.defined();
}

Problem by_tree_words(const Problem& p) {
  Problem words = p;
  words.mask_function = {};
  return words;
}

tile::TreeBits tree_words(const Problem& p) {
  return {.words = static_cast<const unsigned*>(p.tree.data),
          .stride_b = p.tree.strides[0],
          .stride_q = p.tree.strides[1],
          .stride_w = p.tree.strides[2],
          .count = static_cast<int>(p.tree.sizes[2])};
}

std::string options_text(const tile::OptionKinds& kinds) {
  if (!kinds.any()) return "";
  return std::string(", .options = {.sinks = ") + bool_text(kinds.sinks) +
         flag_text("mask", kinds.mask) + flag_text("dropout", kinds.dropout) +
         (kinds.tree ? flag_text("tree", true) : "") + host::pair_text(kinds.pairs) + "}";
}

KernelUnit optioned_unit(KernelUnit unit) {
  unit.prelude += "#include \"cuda/tile/options.cuh\"\n";
  unit.args = "tilewise::tile::Optioned<" + unit.args + ">";
  return unit;
}

tile::Options kernel_options(const Problem& p, const tile::MaskBits& mask) {
  tile::Options options;
  host::fill_sinks(options, p);
  options.mask = mask;
  options.pairs = host::pair_tensors(p);
  if (drops(p)) options.dropout = host::dropout_bits(p);
  if (p.tree.defined()) options.tree = tree_words(p);
  return options;
}

}  // namespace tilewise::cuda
