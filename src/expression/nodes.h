/// NodeTable: makes the nodes of a program. Nodes of constants are folded, identities shortened,
/// equal nodes made once, and each node learns what it depends on.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "expression/program.h"

namespace tilewise::expression {

/// Throws InvalidArgument for an integer that a kernel cannot hold.
void require_32_bits(std::int64_t constant);
[[noreturn]] void fail_32_bits(const std::string& constant);

class NodeTable {
 public:
  explicit NodeTable(std::vector<CaptureType> captures) : captures_(std::move(captures)) {}
  /// Goes on from a program; its nodes keep their numbers.
  explicit NodeTable(const Program& program);

  const Node& operator[](std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)]; }
  const std::vector<CaptureType>& captures() const { return captures_; }
  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }

  std::int32_t leaf(Op op);
  std::int32_t real(double value);
  std::int32_t integer(std::int64_t value);
  std::int32_t boolean(bool value);
  std::int32_t load(std::int32_t capture, std::span<const std::int32_t> index);
  std::int32_t reduce(Op op, std::int64_t count, std::int32_t body);
  /// Any other operation on nodes of the types that it takes.
  std::int32_t make(Op op, std::initializer_list<std::int32_t> args);
  std::int32_t make(Op op, std::span<const std::int32_t> args);

  /// The program of the nodes that `roots` need, with `roots` renumbered. The order is that of the
  /// formula, whatever order the nodes were made in, so that equal formulas are one text. Throws
  /// InvalidArgument for more than kMaxNodes nodes and for a constant that 32 bits do not hold.
  Program finish(std::span<std::int32_t*> roots) const;

  static constexpr std::size_t kMaxNodes = 4096;

 private:
  /// The value as i * query + j * key + what depends on neither.
  struct Affine {
    bool known = false;
    std::int64_t i = 0, j = 0;
    std::uint8_t rest = 0;
  };
  struct Hash {
    std::size_t operator()(const Node& node) const;
  };
  struct Equal {
    bool operator()(const Node& a, const Node& b) const;
  };

  bool is_real(std::int32_t node, double value) const;
  bool is_integer(std::int32_t node, std::int64_t value) const;
  /// A node that is the same as op(args), or -1.
  std::int32_t shortened(Op op, std::span<const std::int32_t> args);
  std::int32_t intern(Node node);
  std::size_t shape_of(Node node) const;
  std::size_t shape(std::int32_t node) const { return shapes_[static_cast<std::size_t>(node)]; }
  Affine affine_of(const Node& node) const;
  std::uint8_t depends_of(const Node& node, const Affine& affine) const;

  std::vector<CaptureType> captures_;
  std::vector<Node> nodes_;
  std::vector<Affine> affine_;
  std::vector<std::size_t> shapes_;  ///< hashes of what each node computes, for a fixed order
  std::unordered_map<Node, std::int32_t, Hash, Equal> known_;
};

/// The type of op's value for operands of a type.
Type result_type(Op op, Type operands);

}  // namespace tilewise::expression
