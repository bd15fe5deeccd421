#include "harness/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <unordered_set>

#include "cpu/micro/elements.h"
#include "harness/expected.h"
#include "harness/guarded_allocator.h"
#include "harness/materialize.h"
#include "harness/memory_meter.h"
#include "harness/sample.h"
#include "reference/elements.h"

namespace tilewise {
namespace {

using Bytes = std::vector<double>;

void fail(CheckResult& result, const std::string& reason) {
  result.status = CheckStatus::failed;
  result.reason += (result.reason.empty() ? "" : "; ") + reason;
}

/// Bits, not values: NaN equals itself, and -0 is not 0.
bool same_bits(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

std::int64_t count_not_finite(const Tensor& t) {
  Tensor rows = t;
  for (; rows.rank < 4; ++rows.rank) {  // with leading axes of one element
    std::rotate(rows.sizes.begin(), rows.sizes.begin() + rows.rank,
                rows.sizes.begin() + rows.rank + 1);
    std::rotate(rows.strides.begin(), rows.strides.begin() + rows.rank,
                rows.strides.begin() + rows.rank + 1);
    rows.sizes[0] = 1;
    rows.strides[0] = 0;
  }
  std::vector<float> values(static_cast<std::size_t>(rows.sizes[3]));
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < rows.sizes[0]; ++b) {
    for (std::int64_t h = 0; h < rows.sizes[1]; ++h) {
      for (std::int64_t s = 0; s < rows.sizes[2]; ++s) {
        cpu::load_row(rows, cpu::offset_of(rows, b, h, s), rows.strides[3], rows.sizes[3],
                      values.data());
        count += std::count_if(values.begin(), values.end(),
                               [](float value) { return !std::isfinite(value); });
      }
    }
  }
  return count;
}

/// One row on one case.
class Check {
 public:
  Check(const KernelRow& row, const Case& c, const CheckOptions& options)
      : row_(row),
        case_(c),
        options_(options),
        executor_(options.executor != nullptr ? *options.executor : default_executor()),
        memory_(device_memory(options.device)),
        workspace_(*memory_) {
    result_.kernel = row.name;
    result_.repeat = repeat_line(row, c, options);
  }

  CheckResult run() {
    const bool wanted = row_.pass == Pass::forward ? case_.forward : case_.backward;
    if (!wanted) {
      skip("the case has no " + std::string(pass_name(row_.pass)));
      return result_;
    }
    material_.emplace(case_, options_.seed, *memory_);
    if (case_.invalid) {
      check_invalid();
    } else if (const std::string reason = refusal(); !reason.empty()) {
      skip(reason);
    } else {
      if (row_.pass == Pass::forward) {
        check_forward();
      } else {
        check_backward();
      }
      check_memory();
    }
    return result_;
  }

 private:
  const KernelRow& row_;
  const Case& case_;
  const CheckOptions& options_;
  Executor& executor_;
  std::unique_ptr<DeviceMemory> memory_;
  GuardedAllocator workspace_;
  std::optional<MaterializedCase> material_;
  CheckResult result_;

  void skip(const std::string& reason) {
    result_.status = CheckStatus::skipped;
    result_.reason = reason;
  }

  Launch launch() {
    Launch launch;
    launch.allocator = &workspace_;
    launch.executor = &executor_;
    return launch;
  }
  Choice choice() const { return {.implementation = {}, .kernel = row_.name}; }

  Problem device_problem() {
    if (row_.pass == Pass::forward) {
      return make_problem(material_->forward(), material_->spec(), Purpose::run);
    }
    return make_problem(material_->backward(), material_->spec(), Purpose::run);
  }
  Problem host_problem() {
    if (row_.pass == Pass::forward) {
      return make_problem(material_->host_forward(), material_->host_spec(), Purpose::run);
    }
    return make_problem(material_->host_backward(), material_->host_spec(), Purpose::run);
  }

  std::string refusal() {
    return refusal_of(row_.prepare(row_, device_problem(), hardware(options_.device)));
  }

  /// True when the arguments are wrong by themselves, not by values that lie on the device.
  bool invalid_on_device() {
    try {
      device_problem();
    } catch (const InvalidArgument&) {
      return true;
    }
    return false;
  }

  void check_invalid() {
    try {
      host_problem();
      fail(result_, "expected InvalidArgument, but the host reported no error");
      return;
    } catch (const InvalidArgument&) {  // as it should be
    }
    if (!memory_->is_host() && !invalid_on_device()) {
      skip("the error is in device memory, which the host does not read");
      return;
    }
    try {
      if (row_.pass == Pass::forward) {
        forward(material_->forward(), material_->spec(), launch(), choice());
      } else {
        backward(material_->backward(), material_->spec(), launch(), choice());
      }
    } catch (const InvalidArgument&) {
      return;
    }
    fail(result_, "expected InvalidArgument, but the call succeeded");
  }

  /// Runs the forced row once, into poisoned outputs.
  void run_row(const SavedState& saved = {}) {
    Plan plan;
    if (row_.pass == Pass::forward) {
      material_->poison_outputs();
      plan = forward(material_->forward(), material_->spec(), launch(), choice());
    } else {
      material_->poison_gradients();
      BackwardTensors tensors = material_->backward();
      tensors.saved = saved;
      plan = backward(tensors, material_->spec(), launch(), choice());
    }
    memory_->synchronize();
    material_->download();
    if (plan.kernel != row_.name) fail(result_, "kernel " + plan.kernel + " ran instead");
  }

  ReferenceCache::Results results_of(const std::string& part, const Problem& problem) {
    const auto make = [&] { return expected_results(problem, executor_); };
    if (options_.cache == nullptr) {
      return std::make_shared<const std::vector<Expected>>(make());
    }
    Case plain = case_;
    plain.id.clear();
    const std::string key = format_case(plain) + " " + std::to_string(options_.seed) + " " +
                            std::string(pass_name(problem.pass)) + part;
    return options_.cache->get(key, make);
  }

  /// `more_bound`: by the means that cost too much to be used at once.
  void compare_one(const Expected& expected, const Tensor& actual,
                   const std::function<double(bool near)>& more_bound) {
    const bool finite_only = case_.finite_only && row_.pass == Pass::backward;
    CheckResult trial = result_;
    compare(expected, actual, finite_only, trial);
    if (trial.status == CheckStatus::failed && result_.status != CheckStatus::failed) {
      Expected wider = expected;
      wider.bound = std::max(expected.bound, more_bound(is_near(expected, trial)));
      trial = result_;
      compare(wider, actual, finite_only, trial);
    }
    result_ = std::move(trial);
  }

  static constexpr int kDraws = 8;

  /// Whether what missed its bound missed it by less than a quarter.
  static bool is_near(const Expected& expected, const CheckResult& trial) {
    constexpr double kNear = 1.25;
    for (const Deviation& deviation : trial.deviations) {
      if (deviation.quantity == expected.name) return deviation.error <= kNear * expected.bound;
    }
    return false;
  }

  /// Inputs that are expanded give the same value in many elements, with the same error.
  static bool has_few_values(const std::vector<double>& truth) {
    constexpr std::size_t kFew = 128;
    std::unordered_set<double> values;
    for (std::size_t i = 0; i < truth.size() && values.size() < kFew; ++i) values.insert(truth[i]);
    return values.size() < kFew;
  }
  /// Whether few pairs carry all the error: scores are so large that nearly every row has one key,
  /// or so large beside a softcap that nearly all of them are cut flat.
  static bool is_sharp(const Problem& problem) {
    constexpr double kSharp = 100.0;
    if (largest_score(problem) >= kSharp) return true;
    Problem uncapped = problem;
    uncapped.softcap = 0.0;
    return problem.softcap > 0.0 && largest_score(uncapped) >= kSharp * problem.softcap;
  }

  /// For a whole problem: the largest yardstick of more draws of the inputs.
  double bound_of_draws(const Expected& expected, const Problem& problem, bool near) {
    if (expected.name == "LSE") return 1e-5 * largest_score(problem);
    // The largest of a few errors says little about how large they get: more draws of the inputs.
    if (!near && !has_few_values(expected.truth) && !is_sharp(problem)) return 0.0;
    double bound = 0.0;
    for (int draw = 1; draw <= kDraws; ++draw) {
      MaterializedCase other = materialize(case_, options_.seed + static_cast<std::uint64_t>(draw));
      const Problem p = row_.pass == Pass::forward
                            ? make_problem(other.host_forward(), other.host_spec(), Purpose::run)
                            : make_problem(other.host_backward(), other.host_spec(), Purpose::run);
      bound = std::max(bound, bound_in(p, expected.name));
    }
    return bound;
  }
  /// For a sample: the largest yardstick of the same rows in other heads. Rule 18 takes maxima over
  /// the whole problem, and a sample is one head.
  double bound_of_heads(const Expected& expected, const Problem& problem, const Sample& sample) {
    const Problem own = sample_problem(problem, sample);
    if (expected.name == "LSE") return 1e-5 * largest_score(own);
    double bound = 0.0;
    for (const Sample& other : other_heads(problem, sample, kDraws)) {
      bound = std::max(bound, bound_in(sample_problem(problem, other), expected.name));
    }
    return bound;
  }
  double bound_in(const Problem& problem, const std::string& quantity) {
    double bound = 0.0;
    for (const Expected& result : expected_results(problem, executor_)) {
      if (result.name == quantity) bound = std::max(bound, result.bound);
    }
    return bound;
  }

  /// The tensor of a result, in the caller's shape; of a problem's part in canonical shape.
  static const Tensor& tensor_of(const Problem& p, const std::string& name) {
    if (name == "O") return p.o;
    if (name == "LSE") return p.lse;
    if (name == "dQ") return p.dq;
    if (name == "dK") return p.dk;
    return p.dv;
  }
  const Tensor& tensor_of(const std::string& name) {
    if (name == "O") return material_->host_forward().o;
    if (name == "LSE") return material_->host_forward().lse;
    const BackwardTensors& b = material_->host_backward();
    if (name == "dQ") return b.dq;
    if (name == "dK") return b.dk;
    if (name == "dV") return b.dv;
    if (name == "dbias") return b.dbias;
    for (std::size_t n = 0; n < b.dcaptures.size(); ++n) {
      if (name == capture_gradient_name(n)) return b.dcaptures[n];
    }
    return b.dsinks;
  }

  void compare_all(const Problem& problem) {
    const ReferenceCache::Results results = results_of("", problem);
    for (const Expected& expected : *results) {
      if (expected.name == "LSE" && !case_.lse) continue;
      compare_one(expected, tensor_of(expected.name),
                  [&](bool near) { return bound_of_draws(expected, problem, near); });
    }
  }

  void compare_samples(const Problem& problem) {
    for (const Sample& sample : choose_samples(problem, options_.max_work, options_.seed)) {
      const Problem part = sample_problem(problem, sample);
      const std::string name = " b" + std::to_string(sample.b) + " h" +
                               std::to_string(sample.head_begin) + " i" +
                               std::to_string(sample.row_begin);
      const ReferenceCache::Results results = results_of(name, part);
      for (const Expected& expected : *results) {
        if (expected.name == "LSE" && !case_.lse) continue;
        const bool of_keys = expected.name == "dK" || expected.name == "dV";
        if (of_keys && !whole_keys(problem, sample)) continue;
        compare_one(expected, tensor_of(part, expected.name),
                    [&](bool) { return bound_of_heads(expected, problem, sample); });
      }
      if (result_.status == CheckStatus::failed) {
        result_.reason += " in the sample" + name;
        return;
      }
    }
    if (!case_.pokes.empty()) return;
    const std::vector<const char*> names = row_.pass == Pass::forward
                                               ? std::vector<const char*>{"O"}
                                               : std::vector<const char*>{"dQ", "dK", "dV"};
    for (const char* name : names) {
      const std::int64_t count = count_not_finite(tensor_of(name));
      if (count > 0)
        fail(result_,
             std::string(name) + " has " + std::to_string(count) + " elements that are not finite");
    }
  }

  bool large(const Problem& problem) const {
    const double passes = problem.pass == Pass::forward ? 1.0 : 2.5;
    return passes * reference_work(problem) > options_.max_work && can_sample(problem);
  }

  void compare_outputs(const Problem& problem) {
    if (large(problem)) {
      compare_samples(problem);
    } else {
      compare_all(problem);
    }
  }

  void check_forward() {
    run_row();
    const Problem problem = host_problem();
    compare_outputs(problem);
    if (!options_.repeatable || large(problem)) return;
    const Bytes o = reference::to_double(tensor_of("O"));
    const Bytes lse = reference::to_double(tensor_of("LSE"));
    run_row();
    if (!same_bits(o, reference::to_double(tensor_of("O"))) ||
        !same_bits(lse, reference::to_double(tensor_of("LSE")))) {
      fail(result_, "a second forward returned different bits");
    }
  }

  /// O and LSE of backward come from the reference, so that a forward's faults stay its own.
  void give_forward_results() {
    if (large(host_problem())) {
      ForwardTensors tensors = material_->forward();
      tensors.lse = material_->backward().lse;  // backward reads it, whether the case asks for it
      forward(tensors, material_->spec(), launch(), {.implementation = "flash", .kernel = {}});
      memory_->synchronize();
      material_->download();
      return;
    }
    const Problem problem =
        make_problem(material_->host_forward(), material_->host_spec(), Purpose::run);
    const ReferenceCache::Results results = results_of("", problem);
    material_->set_forward_results(results->at(0).truth, results->at(1).truth);
  }

  void check_backward() {
    material_->backward();
    give_forward_results();
    run_row();
    const Problem problem = host_problem();
    compare_outputs(problem);
    if (case_.deterministic && options_.repeatable && !large(problem)) check_repeatable();
    if (result_.status == CheckStatus::passed) check_saved(problem);
  }

  void check_repeatable() {
    const auto gradients = [&] {
      Bytes all;
      std::vector<std::string> names{"dQ", "dK", "dV", "dbias", "dsinks"};
      for (std::size_t n = 0; n < material_->host_backward().dcaptures.size(); ++n) {
        names.push_back(capture_gradient_name(n));
      }
      for (const std::string& name : names) {
        const Tensor& tensor = tensor_of(name);
        if (!tensor.defined()) continue;
        const Bytes values = reference::to_double(tensor);
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    };
    const Bytes first = gradients();
    run_row();
    if (!same_bits(first, gradients())) fail(result_, "a second backward returned different bits");
  }

  /// Forward of the same implementation, then backward with the state that it saved.
  void check_saved(const Problem& problem) {
    constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
    const Choice same{.implementation = row_.implementation, .kernel = {}};
    SavedState saved;
    try {
      saved.bytes = plan(material_->forward(), material_->spec(), same).saved_bytes;
    } catch (const Unsupported&) {
      return;
    }
    if (saved.bytes == 0 || saved.bytes > kMostBytes) return;
    saved.data = workspace_.allocate(saved.bytes, options_.device, nullptr);
    ForwardTensors tensors = material_->forward();
    tensors.lse = material_->backward().lse;
    tensors.saved = saved;
    forward(tensors, material_->spec(), launch(), same);
    run_row(saved);
    compare_outputs(problem);
    if (result_.status == CheckStatus::failed) result_.reason += " (with saved state)";
    workspace_.release(saved.data, saved.bytes, options_.device, nullptr);
  }

  void check_memory() {
    const std::string damaged = material_->damage();
    if (!damaged.empty()) fail(result_, "memory around " + damaged + " was written");
    if (workspace_.damaged() > 0) fail(result_, "the call wrote outside the workspace");
    if (workspace_.outstanding() > 0) fail(result_, "the call did not free its workspace");
  }
};

}  // namespace

CheckResult check_case(const KernelRow& row, const Case& problem, const CheckOptions& options) {
  CheckResult result;
  result.kernel = row.name;
  result.repeat = repeat_line(row, problem, options);
  try {
    return Check(row, problem, options).run();
  } catch (const OutOfMemory& error) {
    result.status = CheckStatus::skipped;
    result.reason = error.what();
  } catch (const std::exception& error) {
    fail(result, error.what());
  }
  return result;
}

std::string repeat_line(const KernelRow& row, const Case& problem, const CheckOptions& options) {
  std::string line = "tilewise check --kernel " + std::string(row.name);
  if (options.device != Device{}) line += " --device " + device_name(options.device);
  if (options.seed != CheckOptions{}.seed) line += " --seed " + std::to_string(options.seed);
  return line + " --case \"" + format_case(problem) + "\"";
}

}  // namespace tilewise
