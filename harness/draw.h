/// The random choices of a problem: the same for a seed and an index on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "problem/philox.h"

namespace tilewise {

/// The random choices of one problem, one after another.
class Draw {
 public:
  Draw(std::uint64_t seed, std::int64_t index)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        index_(static_cast<std::uint64_t>(index)) {}

  /// In [begin, end].
  std::int64_t between(std::int64_t begin, std::int64_t end) {
    return begin + static_cast<std::int64_t>(word() % static_cast<std::uint64_t>(end - begin + 1));
  }
  bool percent(std::int64_t share) { return between(1, 100) <= share; }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  PhiloxKey key_;
  std::uint64_t index_;
  std::uint32_t count_ = 0;
  PhiloxCounter words_{};

  std::uint32_t word() {
    if (count_ % 4 == 0) {
      words_ = philox4x32_10({static_cast<std::uint32_t>(index_),
                              static_cast<std::uint32_t>(index_ >> 32), count_ / 4, 0x72616E64U},
                             key_);
    }
    return words_[count_++ % 4];
  }
};

}  // namespace tilewise
