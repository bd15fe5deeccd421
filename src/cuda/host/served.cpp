#include "cuda/host/served.h"

#include <algorithm>

namespace tilewise::cuda::host {

std::int64_t most_keys(const Problem& p) {
  std::int64_t keys = p.seq_k;
  if (p.left < keys) keys = std::min(keys, p.left + std::min(p.right, keys) + p.seq_q);
  return std::max<std::int64_t>(keys, 1);
}

namespace {

/// That entries of the longest length would have.
double keys_of_longest(const Problem& p) {
  return static_cast<double>(p.batch) * static_cast<double>(most_keys(p));
}

}  // namespace

double all_keys(const Problem& p) {
  // A cache side by side has room for the longest: entries are taken for half as long on average.
  if (!p.paged) return (p.key_lengths.defined() && p.batch > 1 ? 0.5 : 1.0) * keys_of_longest(p);
  return std::min(keys_of_longest(p), static_cast<double>(p.k.sizes[0] * p.page_size));
}

bool is_ragged(const Problem& p) {
  constexpr double kAsGoodAsAll = 0.85;
  return p.key_lengths.defined() && all_keys(p) < kAsGoodAsAll * keys_of_longest(p);
}

double likely_most_keys(const Problem& p) {
  // More than kWide times the average is the width of tables, no length.
  constexpr double kWide = 16.0, kOfWide = 4.0, kTimesAverage = 8.0;
  const double all = all_keys(p), average = all / static_cast<double>(p.batch);
  const auto most = static_cast<double>(most_keys(p));
  const double times = most > kWide * average ? kOfWide : kTimesAverage;
  return std::min({most, times * average, all});
}

}  // namespace tilewise::cuda::host
