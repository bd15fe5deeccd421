/// The warps' products on their way (wgmma.h), by group.
///
/// From a product to the wait for it the warp's accumulators hold NaN or a number that is wrong.
/// At the wait its operands must be what they were at its start: who wrote to them is reported.
#pragma once

#include "emulator.h"

namespace emulator {

/// A warp's accumulators that products are on their way to.
struct Accumulators {
  std::array<float*, 32> lanes;
  std::vector<float> values;  ///< 16 rows
  int in_flight = 0;
};
struct Product {
  Accumulators* sums = nullptr;
  virtual ~Product() = default;
  virtual void check() const = 0;
};
using ProductGroup = std::vector<std::unique_ptr<Product>>;
struct Products {
  ProductGroup open;
  std::deque<ProductGroup> groups;
  std::map<float*, Accumulators> sums;  ///< by lane 0's
};

inline Warp& current_warp() { return current->block->warps[current->thread / 32]; }
inline Products& current_products() {
  Warp& warp = current_warp();
  if (!warp.products) warp.products = std::make_shared<Products>();
  return *warp.products;
}

/// Register `i` of an accumulator m16nN: its element of the warp's 16 rows.
inline int element_of(int i, int lane, int columns) {
  return (lane / 4 + 8 * (i / 2 % 2)) * columns + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
}
inline void take_values(Accumulators& sums, int columns) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < columns / 2; ++i)
      sums.values[element_of(i, lane, columns)] = sums.lanes[lane][i];
  }
}
inline void give_values(const Accumulators& sums) {
  const int columns = static_cast<int>(sums.values.size() / 16);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < columns / 2; ++i)
      sums.lanes[lane][i] = sums.values[element_of(i, lane, columns)];
  }
}

inline void commit_products() {
  meet({}, [] {
    Products& products = current_products();
    products.groups.push_back(std::move(products.open));
    products.open.clear();
  });
  if (current->thread % 32 == 0) stall_here();
}
/// Until at most `pending` groups are on their way.
inline void wait_products(std::size_t pending) {
  meet({}, [pending] {
    Products& products = current_products();
    for (; products.groups.size() > pending; products.groups.pop_front()) {
      for (const std::unique_ptr<Product>& product : products.groups.front()) {
        product->check();
        Accumulators& sums = *product->sums;
        if (--sums.in_flight > 0) continue;
        give_values(sums);
        products.sums.erase(sums.lanes[0]);
      }
    }
  });
}

}  // namespace emulator
