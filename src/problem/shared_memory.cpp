#include "problem/shared_memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

namespace tilewise {
namespace {

/// Is there a byte at begin_a + sum_k stride_k x_k = begin_b + sum_k stride_k y_k? With the y_k
/// counted from b's end every term is positive:
///
///   sum_k step_k n_k = end_b - 1 - begin_a,  0 <= n_k <= most_k
///
/// Axes of equal steps are one term, so slices of one packed tensor have as many as one tensor.
class CommonByte {
 public:
  CommonByte(const Tensor& a, const Tensor& b) {
    for (const Tensor* t : {&a, &b}) {
      const std::int64_t bytes = dtype_bytes(t->dtype);
      add(1, bytes - 1);
      for (std::size_t axis = 0; axis < static_cast<std::size_t>(t->rank); ++axis) {
        if (t->sizes[axis] > 1) add(std::abs(t->strides[axis]) * bytes, t->sizes[axis] - 1);
      }
    }
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& x, const Term& y) { return x.step > y.step; });
    absorb();
  }

  bool exists(std::int64_t distance) { return search(0, distance); }

 private:
  struct Term {
    std::int64_t step = 0, most = 0;
    std::int64_t reach = 0;    ///< the largest sum of this term and those after it
    std::int64_t divisor = 0;  ///< the greatest one of this step and those after it
  };

  void add(std::int64_t step, std::int64_t most) {
    if (step == 0 || most == 0) return;
    Term* const end = terms_.data() + count_;
    Term* const same =
        std::find_if(terms_.data(), end, [&](const Term& t) { return t.step == step; });
    if (same == end) *end = {.step = step}, ++count_;
    same->most += most;
  }

  /// The small steps that leave no gap are a run: their sums are all of 0 .. run_.
  void absorb() {
    while (count_ > 0 && terms_[count_ - 1].step <= run_ + 1) {
      --count_;
      run_ += terms_[count_].step * terms_[count_].most;
    }
    std::int64_t reach = run_, divisor = 0;
    for (std::size_t k = count_; k-- > 0;) {
      reach += terms_[k].step * terms_[k].most;
      divisor = std::gcd(divisor, terms_[k].step);
      terms_[k].reach = reach;
      terms_[k].divisor = divisor;
    }
  }

  /// Whether the terms from `k` on and the run have the sum `rest`.
  bool search(std::size_t k, std::int64_t rest) {
    if (k == count_) return rest >= 0 && rest <= run_;
    const Term& term = terms_[k];
    if (rest < 0 || rest > term.reach || rest % term.divisor > run_) return false;
    if (--steps_left_ < 0) return true;
    const std::int64_t after = term.reach - term.step * term.most;
    const std::int64_t least = std::max<std::int64_t>(rest - after + term.step - 1, 0) / term.step;
    for (std::int64_t n = std::min(term.most, rest / term.step); n >= least; --n) {
      if (search(k + 1, rest - n * term.step)) return true;
    }
    return false;
  }

  std::array<Term, 2 * Tensor::kMaxRank + 1> terms_{};
  std::size_t count_ = 0;
  std::int64_t run_ = 0;
  std::int64_t steps_left_ = 65536;
};

}  // namespace

Extent::Extent(const Tensor& t) {
  const std::int64_t elements = t.defined() && t.data != nullptr ? t.numel() : 0;
  if (elements == 0) return;
  std::int64_t low = 0, high = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(t.rank); ++axis) {
    const std::int64_t reach = (t.sizes[axis] - 1) * t.strides[axis];
    (reach < 0 ? low : high) += reach;
  }
  const auto bytes = static_cast<std::uintptr_t>(dtype_bytes(t.dtype));
  begin = reinterpret_cast<std::uintptr_t>(t.data) + static_cast<std::uintptr_t>(low) * bytes;
  end = begin + static_cast<std::uintptr_t>(high - low + 1) * bytes;
}

bool share_memory(const Tensor& a, const Tensor& b) {
  const Extent in_a(a), in_b(b);
  if (!in_a.meets(in_b) || a.device != b.device) return false;
  return CommonByte(a, b).exists(static_cast<std::int64_t>(in_b.end - 1 - in_a.begin));
}

}  // namespace tilewise
