/// Axes of length 0, alone and together: empty results or rule 3, never a signal. CONTRACT 8.
#include <limits>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kDim = 16;

struct Axes {
  std::int64_t batch, heads_q, heads_k, seq_q, seq_k;
};

/// Every combination of an empty and a short axis that the arguments allow. Few and many query
/// rows take different schedules.
std::vector<Axes> combinations() {
  std::vector<Axes> all;
  for (const std::int64_t batch : {0, 2}) {
    for (const auto& [heads_q, heads_k] : {std::pair{0, 0}, std::pair{0, 2}, std::pair{4, 2}}) {
      for (const std::int64_t seq_q : {0, 3, 200}) {
        for (const std::int64_t seq_k : {0, 5}) {
          const bool empty = batch == 0 || heads_q == 0 || seq_q == 0 || seq_k == 0;
          if (empty) all.push_back({batch, heads_q, heads_k, seq_q, seq_k});
        }
      }
    }
  }
  return all;
}

/// The options that have tensors or steps of their own, over one set of axes.
struct Options {
  Owned bias, mask, sinks, slopes;

  std::vector<Trial> trials(DType dtype, const Axes& a) {
    const Trial plain =
        trial(dtype, a.batch, a.heads_q, a.heads_k, a.seq_q, a.seq_k, kDim, kDim).fill(8);
    bias = Owned(DType::float32, {1, a.seq_k}, constant(a.seq_k, 0.5));
    const Sizes all{a.batch, a.heads_q, a.seq_q, a.seq_k};
    const std::int64_t scores = a.batch * a.heads_q * a.seq_q * a.seq_k;
    mask = booleans(all, std::vector<bool>(static_cast<std::size_t>(scores), true));
    sinks = Owned(DType::float32, {a.heads_q}, constant(a.heads_q, 0.25));
    slopes = Owned(DType::float32, {a.heads_q}, constant(a.heads_q, 0.5));
    std::vector<Trial> trials(6, plain);
    trials[1].spec.causal = Causal::bottom_right;
    trials[1].spec.softcap = 10.0;
    trials[2].spec.bias = bias.tensor();
    trials[3].spec.mask = mask.tensor();
    trials[3].spec.dropout.p = 0.5;
    trials[4].spec.sinks = sinks.tensor();
    trials[5].spec.alibi_slopes = slopes.tensor();
    trials[5].spec.deterministic = true;
    return trials;
  }
};

template <class Check>
void for_empty_trials(const std::vector<DType>& types, const Check& check) {
  for (const DType dtype : types) {
    for (const Axes& a : combinations()) {
      Options options;
      for (const Trial& s : options.trials(dtype, a)) {
        SCOPED_TRACE(testing::Message() << "B " << a.batch << ", Hq " << a.heads_q << ", Hk "
                                        << a.heads_k << ", Sq " << a.seq_q << ", Sk " << a.seq_k);
        check(s);
      }
    }
  }
}

TEST_P(TypedForward, EmptyAxesGiveEmptyResults) {
  for_empty_trials(types_, [&](const Trial& s) {
    if (refuses(s, GetParam(), Pass::forward)) return;
    const Results r = run_forward(s, GetParam().kernel);
    expect_all(r.o, 0.0, "O");
    expect_all(r.lse, s.spec.sinks.defined() ? 0.25 : -kInfinity, "LSE");
  });
}

TEST_P(TypedBackward, EmptyAxesGiveZeroGradients) {
  for_empty_trials(types_, [&](const Trial& s) {
    if (refuses(s, GetParam(), Pass::backward)) return;
    const Results r = run_backward(s, GetParam());
    expect_all(r.dq, 0.0, "dQ");
    expect_all(r.dk, 0.0, "dK");
    expect_all(r.dv, 0.0, "dV");
    expect_all(r.dbias, 0.0, "dbias");
    expect_all(r.dsinks, 0.0, "dsinks");
  });
}

/// Sequences without queries, without keys and without both, and a pack of no sequence at all.
TEST_P(TypedBackward, PacksOfEmptySequences) {
  for (const DType dtype : types_) {
    for (const std::int64_t heads_q : {0, 4}) {
      Owned cu_q = integers({0, 0, 0, 3}), cu_k = integers({0, 0, 5, 5});
      Trial s = trial(dtype, 1, heads_q, 2, 3, 5, kDim, kDim).fill(9);
      s.packed = true;
      s.spec.cu_seqlens_q = cu_q.tensor();
      s.spec.cu_seqlens_k = cu_k.tensor();
      Owned none_q = integers({0}), none_k = integers({0});
      Trial none = trial(dtype, 1, heads_q, 2, 0, 0, kDim, kDim);
      none.packed = true;
      none.spec.cu_seqlens_q = none_q.tensor();
      none.spec.cu_seqlens_k = none_k.tensor();
      for (const Trial& each : {s, none}) {
        if (refuses(each, GetParam(), Pass::backward)) continue;
        const Results r = run_backward(each, GetParam());
        for (const Values* gradient : {&r.dq, &r.dk, &r.dv}) {
          expect_all(*gradient, 0.0, "gradient");
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::contract
