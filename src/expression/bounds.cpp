#include "expression/bounds.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "expression/nodes.h"
#include "expression/range.h"

namespace tilewise::expression {
namespace {

class Search {
 public:
  Search(const Program& program, std::span<const Tensor> captures, const Domain& domain)
      : program_(program), captures_(captures), domain_(domain) {
    ranges_.resize(program.nodes.size());
    told_.resize(program.nodes.size());
    for (std::size_t n = 0; n < program.nodes.size(); ++n) look_at(n);
  }

  /// Whether ranges do not say of all indices that nothing is outside.
  bool needs_pairs() const {
    return std::any_of(program_.nodes.begin(), program_.nodes.end(), [&](const Node& node) {
      for (std::size_t axis = 0; node.op == Op::load && axis < node.count; ++axis)
        if (may_leave(node, axis)) return true;
      return false;
    });
  }

  std::optional<Outside> run() const {
    for (const Node& node : program_.nodes) {
      if (node.op != Op::load) continue;
      for (std::size_t axis = 0; axis < node.count; ++axis) {
        if (!may_leave(node, axis)) continue;
        if (std::optional<Outside> found = try_pairs(node.args[axis], size_of(node, axis))) {
          found->capture = node.capture;
          found->axis = static_cast<int>(axis);
          return found;
        }
      }
    }
    return std::nullopt;
  }

 private:
  std::int64_t size_of(const Node& load, std::size_t axis) const {
    return captures_[static_cast<std::size_t>(load.capture)].sizes[axis];
  }
  bool may_leave(const Node& load, std::size_t axis) const {
    const auto index = static_cast<std::size_t>(load.args[axis]);
    const std::int64_t size = size_of(load, axis);
    return told_[index] && (ranges_[index].low < -size || ranges_[index].high >= size);
  }
  Range leaf(Op op) const {
    switch (op) {
      case Op::batch:
        return integers(0, domain_.batch - 1);
      case Op::head:
        return integers(0, domain_.heads - 1);
      case Op::query:
        return integers(0, domain_.queries - 1);
      case Op::key:
        return integers(0, domain_.keys - 1);
      case Op::query_length:
        return integers(domain_.queries, domain_.queries);
      case Op::key_length:
        return integers(domain_.keys, domain_.keys);
      default:
        return anything(Type::real);
    }
  }

  void look_at(std::size_t n) {
    const Node& node = program_.nodes[n];
    const bool length = node.op == Op::query_length || node.op == Op::key_length;
    bool told = node.op != Op::load && node.op != Op::lane && node.op != Op::score &&
                node.op != Op::any && node.op != Op::all && node.op != Op::sum &&
                (!length || domain_.same_lengths);
    std::array<Range, 4> args;
    for (std::size_t a = 0; a < node.count; ++a) {
      told = told && told_[static_cast<std::size_t>(node.args[a])];
      args[a] = ranges_[static_cast<std::size_t>(node.args[a])];
    }
    told_[n] = told;
    if (!told) return;
    if (node.op == Op::constant) {
      ranges_[n] = node.type == Type::real ? stored_reals(node.real, node.real)
                                           : integers(node.integer, node.integer);
    } else if (node.count == 0) {
      ranges_[n] = leaf(node.op);
    } else {
      const auto last = static_cast<std::size_t>(node.args[node.count - 1U]);
      ranges_[n] = apply(node.op, program_.nodes[last].type, std::span(args).first(node.count));
    }
  }

  /// At most `most` of 0 .. size - 1, the first and the last among them; one where nothing differs.
  static std::vector<std::int64_t> spread(std::int64_t size, bool differs, std::int64_t most) {
    std::vector<std::int64_t> made{0};
    if (!differs) return made;
    const std::int64_t count = std::min(size, most);
    for (std::int64_t n = 1; n < count; ++n) made.push_back(n * (size - 1) / (count - 1));
    return made;
  }

  std::optional<Outside> try_pairs(std::int32_t index, std::int64_t size) const {
    constexpr std::int64_t kMostOfPairs = 65, kMostOfOne = 1025, kMostHeads = 3;
    const NodeTable table(program_);
    std::int32_t result = index;
    std::array roots{&result};
    const Program alone = table.finish(roots);
    Interpreter interpreter(alone, captures_);
    const std::uint8_t depends = alone.nodes[static_cast<std::size_t>(result)].depends;
    const bool by_query = (depends & (kQuery | kDiagonal)) != 0;
    const bool by_key = (depends & (kKey | kDiagonal)) != 0;
    const std::int64_t most = by_query && by_key ? kMostOfPairs : kMostOfOne;
    for (const std::int64_t b : spread(domain_.batch, (depends & kBatch) != 0, kMostHeads)) {
      for (const std::int64_t h : spread(domain_.heads, (depends & kHead) != 0, kMostHeads)) {
        for (const std::int64_t i : spread(domain_.queries, by_query, most)) {
          for (const std::int64_t j : spread(domain_.keys, by_key, most)) {
            const Point pair{.b = b,
                             .h = h,
                             .i = i,
                             .j = j,
                             .query_length = domain_.queries,
                             .key_length = domain_.keys};
            interpreter.turn_to(pair);
            const std::int64_t at = interpreter.integer(result);
            if (at < -size || at >= size) return Outside{.index = at, .pair = pair};
          }
        }
      }
    }
    return std::nullopt;
  }

  const Program& program_;
  std::span<const Tensor> captures_;
  const Domain& domain_;
  std::vector<Range> ranges_;
  std::vector<bool> told_;  ///< by the pair alone
};

/// Programs whose pairs were tried, none of them outside: trying takes thousands of evaluations,
/// and a model asks in every call. What is found depends on nothing else.
class Known {
 public:
  struct Key {
    std::vector<Node> nodes;
    std::vector<std::array<std::int64_t, Tensor::kMaxRank>> sizes;
    Domain domain;
    bool operator==(const Key&) const = default;
  };

  bool has(const Key& key) {
    const std::lock_guard lock(mutex_);
    return std::find(keys_.begin(), keys_.end(), key) != keys_.end();
  }
  void add(Key key) {
    const std::lock_guard lock(mutex_);
    if (keys_.size() < kMost) {
      keys_.push_back(std::move(key));
    } else {
      keys_[next_++ % kMost] = std::move(key);
    }
  }

 private:
  static constexpr std::size_t kMost = 64;
  std::mutex mutex_;
  std::vector<Key> keys_;
  std::size_t next_ = 0;  ///< to be replaced
};

Known& known() {
  static Known programs;
  return programs;
}

}  // namespace

std::optional<Outside> find_outside(const Program& program, std::span<const Tensor> captures,
                                    const Domain& domain) {
  if (captures.empty() || std::min({domain.batch, domain.heads, domain.queries, domain.keys}) < 1) {
    return std::nullopt;
  }
  const Search search(program, captures, domain);
  if (!search.needs_pairs()) return std::nullopt;
  Known::Key key = {.nodes = program.nodes, .sizes = {}, .domain = domain};
  for (const Tensor& t : captures) key.sizes.push_back(t.sizes);
  if (known().has(key)) return std::nullopt;
  std::optional<Outside> found = search.run();
  if (!found) known().add(std::move(key));
  return found;
}

}  // namespace tilewise::expression
