/// What a case's results must be: float64 truth, and how far a kernel may be off. CONTRACT 18. Used
/// by conformance.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "harness/conformance.h"
#include "problem/problem.h"

namespace tilewise {

/// One result, row-major in the shape of the caller's tensor.
struct Expected {
  std::string name;  ///< "O", "LSE", "dQ", ...
  std::vector<double> truth;
  double yardstick = 0.0;  ///< max |unfused - float64|
  double bound = 0.0;
};

/// "dcapture0": the gradient of the score's first captured tensor.
std::string capture_gradient_name(std::size_t n);

/// All results of a pass. `problem` has host tensors; only inputs are read, and shapes of outputs.
std::vector<Expected> expected_results(const Problem& problem, Executor& executor);

/// Compares `actual` (host) with the truth. Appends to result.deviations; on a miss result fails
/// with the worst element in words. `finite_only`: the values may be off, but not NaN or Inf.
void compare(const Expected& expected, const Tensor& actual, bool finite_only, CheckResult& result);

/// max |scale q.k| over all pairs that position and lengths leave visible.
double largest_score(const Problem& problem);

class ReferenceCache {
 public:
  using Results = std::shared_ptr<const std::vector<Expected>>;

  explicit ReferenceCache(std::int64_t max_bytes) : max_bytes_(max_bytes) {}
  /// The results under `key`, made when they are not there.
  template <class Make>
  Results get(const std::string& key, Make make) {
    if (Results found = find(key)) return found;
    Results made = std::make_shared<const std::vector<Expected>>(make());
    keep(key, made);
    return made;
  }

 private:
  struct Entry {
    std::string key;
    Results results;
    std::int64_t bytes = 0;
  };
  std::mutex mutex_;
  std::int64_t max_bytes_, bytes_ = 0;
  std::deque<Entry> entries_;  // oldest first

  Results find(const std::string& key);
  void keep(const std::string& key, const Results& results);
};

}  // namespace tilewise
