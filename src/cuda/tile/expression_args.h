/// Expressions as host and device both know them: the tensors that a score function and a mask
/// capture. Nothing is included.
#pragma once

namespace tilewise::tile {

/// A captured tensor of up to four axes.
struct Capture {
  const void* data = nullptr;
  float* gradient = nullptr;  ///< float32 sums, rows of the axes side by side; backward only
  int sizes[4] = {1, 1, 1, 1};
  long long strides[4] = {0, 0, 0, 0};  ///< of `data`, in elements
};

/// What a score function has of each distance i - j, worked out ahead (score_strip): (B, Hq, count)
/// values of its Diagonal part, that of distance 0 at `zero`.
struct Strip {
  const void* values = nullptr;
  long long count = 0;
  int zero = 0, heads = 1;
};

/// Those of the score function, then those of the mask.
struct Captures {
  static constexpr int kMost = 12;
  Capture at[kMost];
  Strip strip;  ///< of the score function, where Expressions say so
};

/// Which of a unit's functions its kernel applies to scores; 0: none. A unit has one of each, 1;
/// the emulation has more in one program.
struct Expressions {
  int score = 0, mask = 0;
  bool strip = false;   ///< the score function reads what distances decide from Captures::strip
  bool shifts = false;  ///< backward: it may shift whole rows so far that LSE lacks all of log l

  constexpr bool any() const { return score != 0 || mask != 0; }
  bool operator==(const Expressions&) const = default;
};

/// The parameters of a kernel whose expressions capture tensors.
template <class Args>
struct Expressed {
  Args args;
  Captures captures;
};

}  // namespace tilewise::tile
