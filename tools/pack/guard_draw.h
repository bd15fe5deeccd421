/// Problems of the units that the guard watches beside the packed ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>

#include "problem/problem.h"

namespace tilewise::cuda {

/// Draws problems that no machine has to run. std::mt19937_64 gives the same numbers everywhere,
/// the standard's distributions do not. Problems hold addresses inside of their draw.
class ProblemDraw {
 public:
  explicit ProblemDraw(std::uint64_t seed);
  ProblemDraw(const ProblemDraw&) = delete;
  ProblemDraw& operator=(const ProblemDraw&) = delete;
  ~ProblemDraw();

  /// For the Hopper rows: masks, softcap, ALiBi, key lengths, packed sequences.
  Problem problem();
  /// With a block list.
  Problem listed();
  /// With K and V in pages, the queries packed or not.
  Problem paged();
  /// For the sm_80 rows: any type, any head dim, and half of the options at a time.
  Problem mma();
  /// For the Hopper rows, with a score function, a mask function, or both.
  Problem expressed();

  std::size_t below(std::size_t count) { return numbers_() % count; }

 private:
  template <class T, std::size_t kCount>
  T pick(const std::array<T, kCount>& choices) {
    return choices[below(kCount)];
  }
  void set_mask(Problem& p);
  void set_scores(Problem& p);
  void set_lengths(Problem& p);
  void set_key_lengths(Problem& p);
  void pack(Problem& p, bool keys);
  void set_list(Problem& p);
  void set_pages(Problem& p);
  void set_pairs(Problem& p);
  void set_functions(Problem& p);
  Problem narrow();

  std::mt19937_64 numbers_;
  // Configs ask whether such a tensor is given and how it lies, never for what it holds.
  std::array<float, 32> reals_{};
  std::array<int, 8> offsets_{};
  struct Functions;
  std::unique_ptr<Functions> functions_;
};

}  // namespace tilewise::cuda
