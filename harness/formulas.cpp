#include "harness/formulas.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "cuda/kernels/rows/expression_values.h"
#include "expression/interpret.h"
#include "expression/lower.h"
#include "harness/device_memory.h"
#include "harness/random_expression.h"
#include "tilewise/error.h"

namespace tilewise {
namespace {

using cuda::AskedFunctions;
using expression::Function;
using expression::Interpreter;
using expression_values::Point;

constexpr std::int64_t kOfUnit = 16, kPoints = 256;
constexpr double kBound = 1e-4, kMayDiffer = 0.02;

/// Bytes on the device, given back at the end.
class Room {
 public:
  Room(DeviceMemory& memory, std::int64_t bytes)
      : memory_(memory), bytes_(bytes), data_(memory.allocate(bytes)) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { memory_.release(data_, bytes_); }
  void* data() const { return data_; }

 private:
  DeviceMemory& memory_;
  std::int64_t bytes_;
  void* data_;
};

std::vector<Point> draw_points(std::uint64_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<Point> points(static_cast<std::size_t>(kPoints));
  for (Point& at : points) {
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    at = {.b = below(2),
          .h = below(4),
          .i = below(75),
          .j = below(77),
          .query_length = 75,
          .key_length = 77,
          .score = normal(random)};
  }
  return points;
}

expression::Point interpreted(const Point& at) {
  return {.b = at.b,
          .h = at.h,
          .i = at.i,
          .j = at.j,
          .query_length = at.query_length,
          .key_length = at.key_length,
          .score = static_cast<double>(at.score)};
}

bool is_same(double want, double is) {
  if (std::isnan(want)) return std::isnan(is);
  if (std::isinf(want)) return is == want;
  return std::fabs(is - want) <= kBound * (1.0 + std::fabs(want));
}

/// Formulas that are compiled together.
class Unit {
 public:
  Unit(std::uint64_t seed, std::int64_t first, std::int64_t count)
      : tensors_(seed), points_(draw_points(seed)) {
    RandomExpression random(seed, tensors_);
    for (std::int64_t n = first; n < first + count; ++n) {
      const int depth = 1 + static_cast<int>(n / 2 % 8);
      (n % 2 == 0 ? scores_ : masks_)
          .push_back(n % 2 == 0 ? random.real(depth, false) : random.boolean(depth));
    }
  }

  /// Points that differ, by formula.
  void run(DeviceMemory& memory, FormulaCheck& report) {
    std::map<const void*, std::unique_ptr<Room>> copies;
    AskedFunctions asked;
    const auto take = [&](const Expression& formula) {
      Function function = expression::function_of(formula);
      for (Tensor& t : function.captures) {
        std::unique_ptr<Room>& copy = copies[t.data];
        const std::int64_t bytes = t.numel() * dtype_bytes(t.dtype);
        if (copy == nullptr) {
          copy = std::make_unique<Room>(memory, bytes);
          memory.copy_in(copy->data(), t.data, bytes);
        }
        t.data = copy->data();
      }
      return function;
    };
    for (const Expression& score : scores_) {
      asked.scores.push_back(take(score));
      asked.gradients.push_back(expression::lower(score).gradient().get());
    }
    for (const Expression& mask : masks_) asked.masks.push_back(take(mask));
    const std::vector<float> got = values_of(memory, asked);
    const float* at = got.data();
    for (const Expression& score : scores_) {
      compare_score(score, at, report);
      at += 2 * kPoints;
    }
    for (const Expression& mask : masks_) {
      compare_mask(mask, at, report);
      at += kPoints;
    }
  }

 private:
  std::vector<float> values_of(DeviceMemory& memory, const AskedFunctions& asked) const {
    const std::vector<tile::Captures> captures = cuda::expression_captures(asked);
    const auto bytes_of = [](const auto& all) {
      return static_cast<std::int64_t>(all.size() * sizeof(all[0]));
    };
    std::vector<float> got(static_cast<std::size_t>(cuda::expression_values_size(asked, kPoints)),
                           NAN);
    const Room points(memory, bytes_of(points_)), of_captures(memory, bytes_of(captures));
    const Room values(memory, bytes_of(got));
    memory.copy_in(points.data(), points_.data(), bytes_of(points_));
    memory.copy_in(of_captures.data(), captures.data(), bytes_of(captures));
    memory.copy_in(values.data(), got.data(), bytes_of(got));
    cuda::expression_values(asked, static_cast<const Point*>(points.data()), kPoints,
                            static_cast<const tile::Captures*>(of_captures.data()),
                            static_cast<float*>(values.data()), memory.device().index, nullptr);
    memory.synchronize();
    memory.copy_out(got.data(), values.data(), bytes_of(got));
    return got;
  }

  void compare_score(const Expression& score, const float* got, FormulaCheck& report) const {
    const expression::Lowered& lowered = expression::lower(score);
    const Function function = expression::function_of(score);
    const expression::Gradient& gradient = *lowered.gradient();
    Interpreter interpreter(gradient.program, function.captures);
    std::int64_t differing = 0;
    for (std::int64_t n = 0; n < kPoints; ++n) {
      interpreter.turn_to(interpreted(points_[static_cast<std::size_t>(n)]));
      const bool same =
          is_same(interpreter.real(gradient.program.result), static_cast<double>(got[n])) &&
          is_same(interpreter.real(gradient.of_score), static_cast<double>(got[kPoints + n]));
      differing += same ? 0 : 1;
    }
    note(score, differing, static_cast<std::int64_t>(kMayDiffer * kPoints), report);
  }
  void compare_mask(const Expression& mask, const float* got, FormulaCheck& report) const {
    const Function function = expression::function_of(mask);
    Interpreter interpreter(*function.program, function.captures);
    std::int64_t differing = 0;
    for (std::int64_t n = 0; n < kPoints; ++n) {
      interpreter.turn_to(interpreted(points_[static_cast<std::size_t>(n)]));
      const float want = interpreter.boolean(function.program->result) ? 1.0F : 0.0F;
      differing += got[n] == want ? 0 : 1;
    }
    note(mask, differing, 0, report);
  }
  static void note(const Expression& formula, std::int64_t differing, std::int64_t most,
                   FormulaCheck& report) {
    ++report.formulas;
    report.points += kPoints;
    report.differing += differing;
    if (differing > most) {
      report.failures.push_back(std::to_string(differing) + " of " + std::to_string(kPoints) +
                                " points differ: " + formula.text());
    }
  }

  RandomCaptures tensors_;
  std::vector<Point> points_;
  std::vector<Expression> scores_, masks_;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

FormulaCheck check_formulas(Device device, std::int64_t count, std::uint64_t seed, int threads,
                            double seconds, const std::function<bool()>& stop) {
  if (device.type != DeviceType::cuda)
    throw Unsupported("random formulas need a GPU (the test suite checks them on a CPU)");
  const auto begin = std::chrono::steady_clock::now();
  FormulaCheck report;
  std::mutex mutex;
  std::exception_ptr error;
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    try {
      const std::unique_ptr<DeviceMemory> memory = device_memory(device);
      while (true) {
        const std::int64_t first = next.fetch_add(kOfUnit);
        if (first >= count || seconds_since(begin) > seconds || stop()) return;
        FormulaCheck of_unit;
        Unit unit(seed * 1000003 + static_cast<std::uint64_t>(first), first,
                  std::min(kOfUnit, count - first));
        unit.run(*memory, of_unit);
        const std::lock_guard lock(mutex);
        report.formulas += of_unit.formulas;
        report.points += of_unit.points;
        report.differing += of_unit.differing;
        for (std::string& failure : of_unit.failures) report.failures.push_back(std::move(failure));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (int n = 0; n < std::max(1, threads); ++n) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  if (error != nullptr) std::rethrow_exception(error);
  report.seconds = seconds_since(begin);
  return report;
}

}  // namespace tilewise
