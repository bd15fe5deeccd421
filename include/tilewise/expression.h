/// Expressions: custom score functions and masks as formulas, which the library parses,
/// differentiates and compiles. docs/expressions.md defines each operation.
///
///   using namespace tilewise::expression;
///   spec.score_expression = score() - 0.1 * abs(query() - key());
///   spec.mask_expression = query() - key() < 1024 | key() < 64;
///   spec.score_expression = Expression::parse("score - 0.1*abs(i-j)");
///
/// Values are booleans, integers or reals. A boolean in arithmetic is 0 or 1. An integer combined
/// with a real becomes a real. Every function throws InvalidArgument for unsupported types.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tilewise/error.h"
#include "tilewise/tensor.h"

namespace tilewise {

class Captured;

namespace expression {
struct Term;
}

/// An immutable formula of one pair (query i, key j). Copies share it. A default-constructed
/// Expression is "not given".
class TILEWISE_API Expression {
 public:
  Expression() = default;
  /// A constant: bool is a boolean, integer types are 32-bit integers, other types are reals. An
  /// integer that does not fit in 32 bits, signed, is an error of the call that uses it. One that
  /// does not fit in 64 bits throws here.
  template <class T>
  requires(std::is_floating_point_v<T> || (std::is_integral_v<T> && sizeof(T) <= 8))
      Expression(T value)  // NOLINT(google-explicit-constructor): mixes constants and expressions
      : Expression(constant(value)) {}
  explicit Expression(std::shared_ptr<const expression::Term> term) : term_(std::move(term)) {}

  /// Parses a formula in the language of docs/expressions.md. Other names refer to `captures`. The
  /// error of an invalid formula names the position.
  static Expression parse(std::string_view text, std::span<const Captured> captures = {});

  bool defined() const { return term_ != nullptr; }
  /// The formula, fully parenthesised, as parse() accepts it. Empty if not given.
  std::string text() const;
  /// The captured tensors, in the order of their first use. Gradients come in this order.
  std::vector<Captured> captures() const;

  const std::shared_ptr<const expression::Term>& term() const { return term_; }

 private:
  static Expression constant(bool value);
  static Expression constant(std::int64_t value);
  static Expression constant(std::uint64_t value);
  static Expression constant(double value);
  template <class T>
  static Expression constant(T value) {
    if constexpr (std::is_unsigned_v<T>) {
      return constant(static_cast<std::uint64_t>(value));
    } else if constexpr (std::is_integral_v<T>) {
      return constant(static_cast<std::int64_t>(value));
    } else {
      return constant(static_cast<double>(value));
    }
  }

  std::shared_ptr<const expression::Term> term_;
};

/// A tensor that expressions read: rank 1 to 4, any strides, any element type. Integers and
/// booleans keep their kind, other types are read as reals. The caller owns the memory.
class TILEWISE_API Captured {
 public:
  /// `name` identifies it in formulas and messages: a letter, then letters, digits and underscores,
  /// and not a word of the language. Throws InvalidArgument for another name, rank or size.
  Captured(std::string name, const Tensor& tensor);

  /// The element at integer indices, one per axis. A negative index counts from the end of the
  /// axis.
  Expression operator()(const Expression& a) const;
  Expression operator()(const Expression& a, const Expression& b) const;
  Expression operator()(const Expression& a, const Expression& b, const Expression& c) const;
  Expression operator()(const Expression& a, const Expression& b, const Expression& c,
                        const Expression& d) const;
  /// The only element of a tensor of shape (1).
  Expression operator()() const;
  /// Same as the operators above.
  Expression at(std::span<const Expression> indices) const;

  const std::string& name() const;
  const Tensor& tensor() const;

  struct Data;
  explicit Captured(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  const std::shared_ptr<const Data>& data() const { return data_; }

 private:
  std::shared_ptr<const Data> data_;
};

namespace expression {

/// The logit after scale, softcap, bias and ALiBi, before the mask. Not for masks.
TILEWISE_API Expression score();
TILEWISE_API Expression batch();         ///< b: the batch entry, or the packed sequence
TILEWISE_API Expression head();          ///< h: the query head
TILEWISE_API Expression query();         ///< i: local to its sequence
TILEWISE_API Expression key();           ///< j: local to its sequence, logical under paging
TILEWISE_API Expression query_length();  ///< Sq of the sequence
TILEWISE_API Expression key_length();    ///< Sk of the sequence, key_lengths applied
TILEWISE_API Expression lane();          ///< the index that any(), all() or sum() runs over

TILEWISE_API Expression abs(const Expression& x);
TILEWISE_API Expression min(const Expression& a, const Expression& b);
TILEWISE_API Expression max(const Expression& a, const Expression& b);
TILEWISE_API Expression clamp(const Expression& x, const Expression& low, const Expression& high);
/// An integer to the power of a constant integer >= 0 is an integer.
TILEWISE_API Expression pow(const Expression& x, const Expression& exponent);
TILEWISE_API Expression floor_divide(const Expression& a, const Expression& b);
TILEWISE_API Expression exp(const Expression& x);
TILEWISE_API Expression exp2(const Expression& x);
TILEWISE_API Expression log(const Expression& x);
TILEWISE_API Expression sqrt(const Expression& x);
TILEWISE_API Expression rsqrt(const Expression& x);
TILEWISE_API Expression tanh(const Expression& x);
TILEWISE_API Expression sigmoid(const Expression& x);
TILEWISE_API Expression sin(const Expression& x);
TILEWISE_API Expression cos(const Expression& x);
TILEWISE_API Expression atan(const Expression& x);
TILEWISE_API Expression erf(const Expression& x);
TILEWISE_API Expression relu(const Expression& x);
TILEWISE_API Expression silu(const Expression& x);
TILEWISE_API Expression gelu(const Expression& x);  ///< exact form
TILEWISE_API Expression floor(const Expression& x);
TILEWISE_API Expression ceil(const Expression& x);
TILEWISE_API Expression round(const Expression& x);  ///< half to even
TILEWISE_API Expression sign(const Expression& x);
TILEWISE_API Expression where(const Expression& condition, const Expression& a,
                              const Expression& b);
TILEWISE_API Expression to_integer(const Expression& x);  ///< towards 0
TILEWISE_API Expression to_real(const Expression& x);
TILEWISE_API Expression to_boolean(const Expression& x);
/// Over lane() = 0 .. count - 1, count from 1 to 64. They do not nest.
TILEWISE_API Expression any(std::int64_t count, const Expression& body);
TILEWISE_API Expression all(std::int64_t count, const Expression& body);
TILEWISE_API Expression sum(std::int64_t count, const Expression& body);

/// The mask of a tree of speculative tokens. Query i is node i of its sequence's tree, and key
/// key_length - query_length + t belongs to node t. A query sees all keys before the tree. It sees
/// node t <= i if bit t % 32 of word t / 32 of its row is set. `words` is int32 (n, W) for one
/// tree, or (B, n, W) for a tree per sequence; n >= Sq, and W is a power of two up to 32.
TILEWISE_API Expression tree_mask(const Tensor& words);

}  // namespace expression

TILEWISE_API Expression operator+(const Expression& a, const Expression& b);
TILEWISE_API Expression operator-(const Expression& a, const Expression& b);
TILEWISE_API Expression operator*(const Expression& a, const Expression& b);
TILEWISE_API Expression operator/(const Expression& a, const Expression& b);  ///< of reals
TILEWISE_API Expression operator%(const Expression& a, const Expression& b);  ///< floors
TILEWISE_API Expression operator-(const Expression& x);
TILEWISE_API Expression operator<(const Expression& a, const Expression& b);
TILEWISE_API Expression operator<=(const Expression& a, const Expression& b);
TILEWISE_API Expression operator>(const Expression& a, const Expression& b);
TILEWISE_API Expression operator>=(const Expression& a, const Expression& b);
TILEWISE_API Expression operator==(const Expression& a, const Expression& b);
TILEWISE_API Expression operator!=(const Expression& a, const Expression& b);
/// Logical for booleans, bitwise for integers.
TILEWISE_API Expression operator&(const Expression& a, const Expression& b);
TILEWISE_API Expression operator|(const Expression& a, const Expression& b);
TILEWISE_API Expression operator^(const Expression& a, const Expression& b);
TILEWISE_API Expression operator~(const Expression& x);
TILEWISE_API Expression operator<<(const Expression& a, const Expression& b);
TILEWISE_API Expression operator>>(const Expression& a, const Expression& b);
/// For booleans. Both sides are evaluated.
TILEWISE_API Expression operator&&(const Expression& a, const Expression& b);
TILEWISE_API Expression operator||(const Expression& a, const Expression& b);
TILEWISE_API Expression operator!(const Expression& x);

}  // namespace tilewise
