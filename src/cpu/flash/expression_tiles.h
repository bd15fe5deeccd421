/// The tile evaluator of expressions: a program over the pairs of a tile, strip by strip in cache.
///
/// A node that neither the score nor both i and j change is worked out once a tile: as one value,
/// a row's, a column's, or along i - j. The rest follows in blocks of rows, each node one pass over
/// a strip that stays in the first-level cache. Nodes under any, all and sum run once a lane.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cpu/flash/tile_place.h"
#include "cpu/micro/expression_ops.h"
#include "expression/program.h"

namespace tilewise::cpu {

/// Nodes whose values a caller wants side by side, for lane = 0 .. lanes - 1.
struct ExpressionRoots {
  std::vector<std::int32_t> nodes;
  int lanes = 1;
};

class ExpressionTiles {
 public:
  /// The values of one group of roots on rows `row` .. row + rows - 1 of a tile.
  struct Strips {
    std::size_t group = 0;
    int row = 0, rows = 0, vectors = 0;
    int lane = 0;
    std::span<const StripIn> values;  ///< in the order of the group's nodes
  };
  using Use = std::function<void(const Strips&)>;

  /// Where a root differs by no more than one of these, its strips repeat.
  enum class Domain : std::uint8_t { uniform, row, column, diagonal, pair };

  ExpressionTiles(const expression::Program& program, std::span<const Tensor> captures,
                  std::vector<ExpressionRoots> groups, const ExpressionOps& ops);

  const ExpressionOps& ops() const { return ops_; }
  std::size_t groups() const { return groups_.size(); }
  Domain domain(std::int32_t node) const;

  /// Calls use() for every block of rows, group and lane of a tile. Rows of `score` have room for
  /// whole vectors; their padding is read and counts for nothing.
  void run(const TilePlace& at, const float* score, const Use& use) const;
  /// Root 0 of group 0, a real, takes the place of the score.
  void replace(const TilePlace& at, float* score) const;
  /// Where root 0 of group 0, a boolean, is false, the score becomes -inf.
  void hide(const TilePlace& at, float* score) const;

 private:
  /// How a value comes about.
  enum class Step : std::uint8_t { score, leaf, function, load, load_row, reduce, dot };

  /// A node in a domain: its own one, or along i - j with those that it is made from.
  struct Value {
    std::int32_t node = -1;
    Domain domain = Domain::pair;
    Step step = Step::leaf;
    StripFunction function = nullptr;
    int count = 0;
    std::array<std::int32_t, 4> in{};  ///< values
    int lanes = 0;                     ///< that it is wanted for; 0 where no lane changes it
    bool broadcast = false;            ///< of a row, wanted beside pairs
    int slot = -1;                     ///< of a pair: which strip holds it
    std::vector<std::int32_t> body;    ///< of a reduction of pairs: what a lane changes, in order
  };

  struct Layout;
  struct Block;

  std::int32_t value_of(std::int32_t node, Domain domain);
  std::int32_t argument_of(std::int32_t node, Domain user);
  Value made_of(std::int32_t node, Domain domain);
  void take_products(Value& value) const;
  void mark_lanes(std::int32_t node, int lanes);
  bool loads_rows(const expression::Node& node) const;
  std::vector<std::int32_t> changed_by_lane(std::span<const std::int32_t> roots) const;
  void assign_slots();

  Layout& layout_of(const TilePlace& at) const;
  void run(const TilePlace& at, const float* score, float* target, const Use& use) const;
  void hoist(std::span<const std::int32_t> values, const TilePlace& at, const Layout& layout) const;
  void fill_leaf(const TilePlace& at, const Value& value, float* out, int vectors) const;
  void hoist_lane(const Value& value, const Layout& layout, int lane, StripOut out) const;
  void broadcast_rows(const Block& block) const;
  void work_out(std::int32_t index, const Block& block, int lane) const;
  void reduce(const Value& value, const Block& block, const StripOut& out) const;
  void load_rows(const Value& value, const Block& block, const StripOut& out, int lane) const;
  StripIn input(std::int32_t index, const Block& block, int lane) const;
  StripOut output(std::int32_t index, const Block& block) const;

  const expression::Program& program_;
  const ExpressionOps& ops_;
  std::vector<CaptureView> captures_;
  std::vector<ExpressionRoots> groups_;
  std::vector<std::vector<std::int32_t>> group_values_;
  std::vector<std::vector<std::int32_t>> group_bodies_;  ///< of a group with lanes
  std::vector<int> lanes_;                               ///< by node: how many it is wanted for
  std::vector<std::int32_t> made_;                       ///< values by node and domain
  std::vector<Value> values_;
  std::vector<std::int32_t> uniform_, hoisted_, pairs_;  ///< values in order
  std::uint64_t number_;                                 ///< no two have the same
  int slots_ = 0;
};

}  // namespace tilewise::cpu
