#include "expression/tree.h"

#include <array>
#include <bit>
#include <string>

#include "expression/lower.h"
#include "expression/recognize.h"
#include "tilewise/expression.h"

namespace tilewise::expression {
namespace {

constexpr std::int64_t kMostWords = 32;

bool has_words(const Tensor& t) {
  if (t.dtype != DType::int32 || (t.rank != 2 && t.rank != 3)) return false;
  const std::int64_t words = t.sizes[static_cast<std::size_t>(t.rank - 1)];
  return words > 0 && words <= kMostWords && std::has_single_bit(static_cast<std::uint64_t>(words));
}

std::string part_of_tree(int rank, std::int64_t words) {
  const Expression mask = rank == 3
                              ? tree_mask(Tensor::contiguous(nullptr, DType::int32, {1, 1, words}))
                              : tree_mask(Tensor::contiguous(nullptr, DType::int32, {1, words}));
  const Program& program = *lower(mask).program();
  return conjunction(program, conjuncts(program).others).text;
}

}  // namespace

Expression tree_mask(const Tensor& words) {
  if (!has_words(words)) {
    throw InvalidArgument("words is " + words.describe() +
                          ": expected int32 (n, W) or (B, n, W), W a power of two up to " +
                          std::to_string(kMostWords));
  }
  const Captured tree("tree", words);
  const Expression before = key_length() - query_length(), node = key() - before;
  const std::int64_t last = words.sizes[static_cast<std::size_t>(words.rank - 1)] - 1;
  const Expression word = (node >> 5) & last;
  const Expression bits = words.rank == 3 ? tree(batch(), query(), word) : tree(query(), word);
  const Expression shown = ((bits >> (node & 31)) & 1) == 1;
  return (key() <= query() + before) & ((node < 0) | shown);
}

bool is_tree(const Program& program, const Tensor& words) {
  if (!has_words(words)) return false;
  constexpr std::size_t kWidths = std::bit_width(static_cast<std::uint64_t>(kMostWords));
  static const auto texts = [] {
    std::array<std::array<std::string, kWidths>, 2> made;
    for (const int rank : {2, 3}) {
      for (std::size_t n = 0; n < kWidths; ++n)
        made[static_cast<std::size_t>(rank - 2)][n] = part_of_tree(rank, std::int64_t{1} << n);
    }
    return made;
  }();
  const std::int64_t width = words.sizes[static_cast<std::size_t>(words.rank - 1)];
  const auto n = static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(width)));
  return program.text == texts[static_cast<std::size_t>(words.rank - 2)][n];
}

}  // namespace tilewise::expression
