/// K and V of a case in pages out of order: a page that two entries share, pages of nobody, and
/// table tails, which name one of these.
#pragma once

#include <memory>
#include <numeric>

#include "fwd_sm90_truth.h"

namespace {

class Pools {
 public:
  /// Keys behind a length are NaN in k and v, and so they are in the pages.
  Pools(const Case& c, Rows& k, Rows& v, std::mt19937& random) {
    if (c.page_size == 0) return;
    const int batch = static_cast<int>(c.keys.size()), each = static_cast<int>(pages_of(c));
    const int used = batch * (each - 1), pages = used + 3;
    columns_ = each;
    std::vector<int> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const bool shares = batch > 1 && std::min(c.keys[0], c.keys[1]) >= c.page_size;
    if (shares) {
      copy(c, k, v, 0, 1);
      order[each - 1] = order[0];
    }
    k_ = std::make_unique<Rows>(pages, c.heads_k, c.page_size, c.dim, 0.0F, random);
    v_ = std::make_unique<Rows>(pages, c.heads_k, c.page_size, c.dim_v, 0.0F, random);
    for (int b = 0; b < batch; ++b) {
      for (int page = 0; page < each; ++page) {
        const bool has_keys = page * c.page_size < c.keys[b];
        const int at = has_keys ? order[b * (each - 1) + page] : order[used + page % 3];
        table_.push_back(at);
        for (int row = 0; row < c.page_size && has_keys; ++row) {
          for (int h = 0; h < c.heads_k; ++h) {
            const int key = page * c.page_size + row;
            std::copy_n(k.at(b, h, key), c.dim, k_->at(at, h, row));
            std::copy_n(v.at(b, h, key), c.dim_v, v_->at(at, h, row));
          }
        }
      }
    }
    pages_ = pages;
  }

  void give(Problem& p) {
    if (pages_ == 0) return;
    p.k = k_->tensor(pages_);
    p.v = v_->tensor(pages_);
    p.block_table = Tensor::contiguous(
        table_.data(), DType::int32,
        {static_cast<std::int64_t>(table_.size()) / columns_, columns_}, p.device);
  }

 private:
  /// The first page of entry `from` to entry `to`.
  static void copy(const Case& c, Rows& k, Rows& v, int from, int to) {
    for (int row = 0; row < c.page_size; ++row) {
      for (int h = 0; h < c.heads_k; ++h) {
        std::copy_n(k.at(from, h, row), c.dim, k.at(to, h, row));
        std::copy_n(v.at(from, h, row), c.dim_v, v.at(to, h, row));
      }
    }
  }

  std::unique_ptr<Rows> k_, v_;
  std::vector<int> table_;
  int pages_ = 0, columns_ = 0;
};

}  // namespace
