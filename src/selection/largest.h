/// The largest of a row's scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace tilewise::selection {

/// Orders indices from the largest score down. The first of equal scores is the larger.
template <class T>
struct Larger {
  const T* scores;
  bool operator()(std::int64_t a, std::int64_t b) const {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  }
};

/// Sets `taken` to 1 at the `count` largest of the first `end` scores. `order` is scratch.
template <class T>
void take_largest(const T* scores, std::int64_t end, std::int64_t count,
                  std::vector<std::int64_t>& order, std::uint8_t* taken) {
  count = std::min(count, end);
  order.resize(static_cast<std::size_t>(end));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::nth_element(order.begin(), order.begin() + count, order.end(), Larger<T>{scores});
  for (std::int64_t n = 0; n < count; ++n) taken[order[static_cast<std::size_t>(n)]] = 1;
}

}  // namespace tilewise::selection
