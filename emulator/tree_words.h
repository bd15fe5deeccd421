/// The words of a tree of speculative tokens in the emulated cases.
#pragma once

#include <vector>

#include "problem/problem.h"

namespace {

class TreeWords {
 public:
  /// `nodes` 0: no tree. Rows have one node more, which nobody is.
  TreeWords(int batch, int nodes) : nodes_(nodes) {
    if (nodes == 0) return;
    while (32 * width_ < nodes) width_ *= 2;
    words_.assign(static_cast<std::size_t>(batch) * (nodes + 1) * width_, -1);
    for (int b = 0; b < batch; ++b) {
      for (int i = 0; i < nodes; ++i) {
        for (int t = 0; t < 32 * width_; ++t) {
          int& word = words_[(static_cast<std::size_t>(b) * (nodes + 1) + i) * width_ + t / 32];
          if (!has(b, i, t)) word &= ~static_cast<int>(1U << (t % 32));
        }
      }
    }
  }
  void give(tilewise::Problem& p) {
    if (nodes_ == 0) return;
    p.tree = tilewise::Tensor::contiguous(words_.data(), tilewise::DType::int32,
                                          {p.batch, nodes_ + 1, width_}, p.device);
  }
  /// Whether query i of so many sees key j of so many, as far as the tree goes.
  bool shows(int b, int i, int queries, int j, int keys) const {
    const int t = j - (keys - queries);
    return nodes_ == 0 || t < 0 || has(b, i, t);
  }

 private:
  int nodes_, width_ = 1;
  std::vector<int> words_;

  /// Some rows see no node, not even their own.
  static bool has(int b, int i, int t) {
    if (i % 7 == 5) return false;
    return t == i || (static_cast<unsigned>(b * 77 + i * 31 + t * 17) * 2654435761U >> 29) < 3;
  }
};

}  // namespace
