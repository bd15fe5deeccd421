#include "harness/expected.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "reference/elements.h"
#include "reference/unfused.h"

namespace tilewise {
namespace {

constexpr double kFactor = 2.0;
constexpr double kFloor = 1e-5;

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0.0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    const double difference = std::abs(a[n] - b[n]);
    if (std::isfinite(difference)) largest = std::max(largest, difference);
  }
  return largest;
}

double largest_finite(const std::vector<double>& values) {
  double largest = 0.0;
  for (double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

Expected make_expected(const char* name, std::vector<double> truth,
                       const std::vector<double>& unfused) {
  Expected e{name, std::move(truth), 0.0, 0.0};
  e.yardstick = largest_difference(e.truth, unfused);
  e.bound = kFactor * e.yardstick + kFloor;
  return e;
}

Expected expected_lse(std::vector<double> truth, const std::vector<double>& unfused,
                      const Problem& problem) {
  Expected e = make_expected("LSE", std::move(truth), unfused);
  // What rounding q does to a row's scores is common to all its keys: TF32's LSE shows it.
  if (problem.precision == Precision::tf32 && problem.dtype == DType::float32) return e;
  // The largest |LSE| stands for max |s| where that is enough: the scores need not be made again.
  e.bound = kFloor * std::max(1.0, largest_finite(e.truth));
  return e;
}

/// How an element misses; empty when it is right.
std::string miss(const Expected& expected, double truth, double actual, DType dtype,
                 bool finite_only) {
  if (std::isnan(truth)) return std::isnan(actual) ? "" : "NaN was expected";
  if (std::isnan(actual)) return "it is NaN";
  if (std::isinf(truth)) return actual == truth ? "" : "expected an infinity";
  if (std::isinf(actual)) {
    return std::isinf(reference::round_to(dtype, truth)) ? "" : "it is infinite";
  }
  if (finite_only || std::abs(actual - truth) <= expected.bound) return "";
  return "its error exceeds the bound";
}

std::string number(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

/// A quantity that is compared more than once (samples, saved state) keeps its largest error.
void note(const Deviation& deviation, CheckResult& result) {
  for (Deviation& known : result.deviations) {
    if (known.quantity != deviation.quantity) continue;
    if (deviation.error > known.error) known = deviation;
    return;
  }
  result.deviations.push_back(deviation);
}

std::string index_text(const Tensor& tensor, std::int64_t n) {
  std::string text;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    const std::int64_t size = tensor.sizes[static_cast<std::size_t>(axis)];
    if (!text.empty()) text.insert(0, ",");
    text.insert(0, std::to_string(n % size));
    n /= size;
  }
  return "[" + text + "]";
}

}  // namespace

std::string capture_gradient_name(std::size_t n) { return "dcapture" + std::to_string(n); }

std::vector<Expected> expected_results(const Problem& problem, Executor& executor) {
  std::vector<Expected> all;
  if (problem.pass == Pass::forward) {
    reference::Forward truth = reference::forward_f64(problem, executor);
    const reference::Forward unfused = reference::unfused_forward(problem, executor);
    all.push_back(make_expected("O", std::move(truth.o), unfused.o));
    all.push_back(expected_lse(std::move(truth.lse), unfused.lse, problem));
    return all;
  }
  reference::Backward truth = reference::backward_f64(problem, executor);
  const reference::Backward unfused = reference::unfused_backward(problem, executor);
  all.push_back(make_expected("dQ", std::move(truth.dq), unfused.dq));
  all.push_back(make_expected("dK", std::move(truth.dk), unfused.dk));
  all.push_back(make_expected("dV", std::move(truth.dv), unfused.dv));
  if (problem.dbias.defined()) {
    all.push_back(make_expected("dbias", std::move(truth.dbias), unfused.dbias));
  }
  if (problem.dsinks.defined()) {
    all.push_back(make_expected("dsinks", std::move(truth.dsinks), unfused.dsinks));
  }
  for (std::size_t n = 0; n < problem.dcaptures.size(); ++n) {
    if (!problem.dcaptures[n].defined()) continue;
    const std::string name = capture_gradient_name(n);
    all.push_back(make_expected(name.c_str(), std::move(truth.dcaptures[n]), unfused.dcaptures[n]));
  }
  return all;
}

void compare(const Expected& expected, const Tensor& actual, bool finite_only,
             CheckResult& result) {
  const std::vector<double> values = reference::to_double(actual);
  Deviation deviation{expected.name, 0.0, finite_only ? 0.0 : expected.bound};
  if (values.size() != expected.truth.size()) {
    result.status = CheckStatus::failed;
    result.reason = expected.name + " has " + std::to_string(values.size()) + " elements, not " +
                    std::to_string(expected.truth.size());
    return;
  }
  std::int64_t misses = 0;
  std::int64_t worst = -1;
  double worst_error = -1.0;
  for (std::size_t n = 0; n < values.size(); ++n) {
    const double error = std::abs(values[n] - expected.truth[n]);
    const double weight = std::isfinite(error) ? error : HUGE_VAL;
    const bool missed =
        !miss(expected, expected.truth[n], values[n], actual.dtype, finite_only).empty();
    if (missed || std::isfinite(error)) deviation.error = std::max(deviation.error, weight);
    if (!missed) continue;
    ++misses;
    if (weight > worst_error) {
      worst_error = weight;
      worst = static_cast<std::int64_t>(n);
    }
  }
  note(deviation, result);
  if (misses == 0) return;
  const auto at = static_cast<std::size_t>(worst);
  result.status = CheckStatus::failed;
  result.reason += (result.reason.empty() ? "" : "; ") + expected.name + index_text(actual, worst) +
                   " is " + number(values[at]) + ", expected " + number(expected.truth[at]) + " (" +
                   miss(expected, expected.truth[at], values[at], actual.dtype, finite_only) +
                   ", bound " + number(expected.bound) + "; " + std::to_string(misses) + " of " +
                   std::to_string(values.size()) + " elements)";
}

double largest_score(const Problem& p) {
  double largest = 0.0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence sequence = p.sequence(b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      for (std::int64_t i = 0; i < sequence.q_length; ++i) {
        const KeyRange keys = p.visible_keys(sequence, i);
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          const Problem::KeyRow row = p.key_row(b, sequence, j);
          double sum = 0.0;
          for (std::int64_t d = 0; d < p.head_dim; ++d) {
            sum +=
                reference::load(p.q, b * p.q.strides[0] + h * p.q.strides[1] +
                                         (sequence.q_begin + i) * p.q.strides[2] +
                                         d * p.q.strides[3]) *
                reference::load(p.k, row.batch * p.k.strides[0] + h / p.group() * p.k.strides[1] +
                                         row.row * p.k.strides[2] + d * p.k.strides[3]);
          }
          if (std::isfinite(sum)) largest = std::max(largest, std::abs(p.scale64 * sum));
        }
      }
    }
  }
  return largest;
}

std::shared_ptr<ReferenceCache> make_reference_cache(std::int64_t max_bytes) {
  return std::make_shared<ReferenceCache>(max_bytes);
}

ReferenceCache::Results ReferenceCache::find(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  return entry == entries_.end() ? nullptr : entry->results;
}

void ReferenceCache::keep(const std::string& key, const Results& results) {
  std::int64_t bytes = 0;
  for (const Expected& e : *results) {
    bytes += static_cast<std::int64_t>(e.truth.size() * sizeof(double));
  }
  const std::scoped_lock lock(mutex_);
  entries_.push_back({key, results, bytes});
  bytes_ += bytes;
  while (bytes_ > max_bytes_ && !entries_.empty()) {
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
  }
}

}  // namespace tilewise
