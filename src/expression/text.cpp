#include "expression/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tilewise {
namespace expression {
namespace {

struct Leaf {
  std::string_view name;
  Expression (*make)();
};
constexpr std::array kLeaves{
    Leaf{"score", score}, Leaf{"b", batch},
    Leaf{"h", head},      Leaf{"i", query},
    Leaf{"j", key},       Leaf{"query_length", query_length},
    Leaf{"lane", lane},   Leaf{"key_length", key_length},
};

struct Unary {
  std::string_view name;
  Expression (*make)(const Expression&);
  Op op;
};
constexpr std::array kUnary{
    Unary{"abs", abs, Op::absolute},      Unary{"exp", exp, Op::exp},
    Unary{"exp2", exp2, Op::exp2},        Unary{"log", log, Op::log},
    Unary{"sqrt", sqrt, Op::sqrt},        Unary{"rsqrt", rsqrt, Op::rsqrt},
    Unary{"tanh", tanh, Op::tanh},        Unary{"sigmoid", sigmoid, Op::sigmoid},
    Unary{"sin", sin, Op::sin},           Unary{"cos", cos, Op::cos},
    Unary{"atan", atan, Op::atan},        Unary{"erf", erf, Op::erf},
    Unary{"relu", relu, Op::relu},        Unary{"silu", silu, Op::silu},
    Unary{"gelu", gelu, Op::gelu},        Unary{"floor", floor, Op::floor},
    Unary{"ceil", ceil, Op::ceil},        Unary{"round", round, Op::round},
    Unary{"sign", sign, Op::sign},        Unary{"int", to_integer, Op::to_integer},
    Unary{"float", to_real, Op::to_real}, Unary{"bool", to_boolean, Op::to_boolean},
};

struct Binary {
  std::string_view name;
  Expression (*make)(const Expression&, const Expression&);
  Op op;
};
constexpr std::array kBinary{
    Binary{"min", min, Op::minimum},
    Binary{"max", max, Op::maximum},
    Binary{"pow", pow, Op::power},
};

struct Reduction {
  std::string_view name;
  Expression (*make)(std::int64_t, const Expression&);
  Op op;
};
constexpr std::array kReductions{
    Reduction{"any", any, Op::any},
    Reduction{"all", all, Op::all},
    Reduction{"sum", sum, Op::sum},
};

constexpr std::array<std::string_view, 9> kOtherWords{"true", "false", "inf",   "nan",  "and",
                                                      "or",   "not",   "where", "clamp"};

Expression negated(const Expression& x) { return -x; }

struct Operator {
  std::string_view text;
  int level;  ///< higher binds closer; C's order
  Expression (*make)(const Expression&, const Expression&);
  Op op;
};
// Longer ones first, where one begins another.
constexpr std::array kOperators{
    Operator{"||", 1, operator||, Op::logical_or},
    Operator{"or", 1, operator||, Op::logical_or},
    Operator{"&&", 2, operator&&, Op::logical_and},
    Operator{"and", 2, operator&&, Op::logical_and},
    Operator{"|", 3, operator|, Op::bit_or},
    Operator{"^", 4, operator^, Op::bit_xor},
    Operator{"&", 5, operator&, Op::bit_and},
    Operator{"==", 6, operator==, Op::equal},
    Operator{"!=", 6, operator!=, Op::not_equal},
    Operator{"<<", 8, operator<<, Op::shift_left},
    Operator{">>", 8, operator>>, Op::shift_right},
    Operator{"<=", 7, operator<=, Op::less_equal},
    Operator{">=", 7, operator>=, Op::less_equal},
    Operator{"<", 7, operator<, Op::less},
    Operator{">", 7, operator>, Op::less},
    Operator{"+", 9, operator+, Op::add},
    Operator{"-", 9, operator-, Op::subtract},
    Operator{"//", 10, floor_divide, Op::floor_divide},
    Operator{"*", 10, operator*, Op::multiply},
    Operator{"/", 10, operator/, Op::divide},
    Operator{"%", 10, operator%, Op::modulo},
};
constexpr int kComparisons = 7, kEqualities = 6;

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return is_letter(c) || is_digit(c); }

template <class Table>
auto named(const Table& table, std::string_view name) {
  return std::find_if(table.begin(), table.end(), [&](const auto& x) { return x.name == name; });
}

template <class Table>
bool has(const Table& table, std::string_view name) {
  return named(table, name) != table.end();
}

class Parser {
 public:
  Parser(std::string_view text, std::span<const Captured> captures)
      : text_(text), captures_(captures) {}

  /// name = formula; ...; formula
  Expression whole() {
    for (;;) {
      const std::size_t begin = skip();
      const std::string_view name = word();
      if (name.empty() || skip_to() != '=' || next_is("==")) {
        at_ = begin;
        break;
      }
      if (!is_capture_name(name) || find(name) != nullptr || find_let(name) != nullptr) {
        fail(begin, "\"" + std::string(name) + "\" is already defined");
      }
      take("=");
      lets_.emplace_back(name, formula(0));
      expect(";");
    }
    Expression result = formula(0);
    if (skip() != text_.size()) fail(at_, "expected the end or an operator");
    return result;
  }

 private:
  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    throw InvalidArgument("expression \"" + std::string(text_) + "\", at character " +
                          std::to_string(at + 1) + ": " + what);
  }

  /// Makes a term of operands that begin at `at`; what it does not take is an error there.
  template <class F>
  Expression made(std::size_t at, F make) const {
    try {
      return make();
    } catch (const InvalidArgument& e) {
      constexpr std::string_view kPrefix = "expression: ";
      std::string_view what = e.what();
      if (what.substr(0, kPrefix.size()) == kPrefix) what.remove_prefix(kPrefix.size());
      fail(at, std::string(what));
    }
  }

  std::size_t skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_;
  }
  char skip_to() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool next_is(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    const std::size_t end = at_ + token.size();
    return !is_letter(token[0]) || end >= text_.size() || !is_word(text_[end]);
  }
  bool take(std::string_view token) {
    if (!next_is(token)) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail(at_, "expected \"" + std::string(token) + "\"");
  }
  std::string_view word() {
    const std::size_t begin = skip();
    if (begin < text_.size() && is_letter(text_[begin])) {
      while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  const Operator* next_operator() {
    const auto at = std::find_if(kOperators.begin(), kOperators.end(),
                                 [&](const Operator& o) { return next_is(o.text); });
    return at == kOperators.end() ? nullptr : &*at;
  }

  Expression formula(int level) {
    if (++depth_ > 2 * kMaxDepth) fail(at_, "nested too deep");
    Expression left = operand();
    bool compared = false;
    for (const Operator* o = next_operator(); o != nullptr && o->level > level;
         o = next_operator()) {
      const bool compares = o->level == kComparisons || o->level == kEqualities;
      if (compares && compared) {
        fail(at_, "comparisons do not chain; write (a < b) & (b < c)");
      }
      compared = compares;
      const std::size_t at = at_;
      take(o->text);
      const Expression right = formula(o->level);
      left = made(at, [&] { return o->make(left, right); });
    }
    --depth_;
    return left;
  }

  Expression operand() {
    const std::size_t at = skip();
    const auto unary = [&](Expression (*make)(const Expression&)) {
      if (++depth_ > 2 * kMaxDepth) fail(at_, "nested too deep");
      const Expression x = operand();
      --depth_;
      return made(at, [&] { return make(x); });
    };
    if (take("-")) return unary(negated);
    if (take("~")) return unary(operator~);
    if (next_is("!") && !next_is("!=")) {
      take("!");
      return unary(operator!);
    }
    if (take("not")) {
      // As in Python, "not" takes a whole comparison.
      const Expression x = formula(2);
      return made(at, [&] { return !x; });
    }
    if (take("(")) {
      Expression inside = formula(0);
      expect(")");
      return inside;
    }
    if (at < text_.size() && (is_digit(text_[at]) || text_[at] == '.')) return number();
    const std::string_view name = word();
    if (name.empty()) fail(at, "expected a number, a name, a function or \"(\"");
    return named_operand(at, name);
  }

  Expression number() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    const bool whole =
        at_ == text_.size() || (text_[at_] != '.' && text_[at_] != 'e' && text_[at_] != 'E');
    const char* first = text_.data() + begin;
    const char* last = text_.data() + text_.size();
    std::from_chars_result read{};
    Expression value;
    if (whole) {
      std::int64_t integer = 0;
      read = std::from_chars(first, last, integer);
      value = Expression(integer);
    } else {
      double real = 0.0;
      read = std::from_chars(first, last, real);
      value = Expression(real);
    }
    if (read.ec != std::errc()) fail(begin, "a number out of range");
    at_ = static_cast<std::size_t>(read.ptr - text_.data());
    if (at_ < text_.size() && is_letter(text_[at_])) fail(at_, "a letter after a number");
    return value;
  }

  const Captured* find(std::string_view name) const {
    const auto at = std::find_if(captures_.begin(), captures_.end(),
                                 [&](const Captured& c) { return c.name() == name; });
    return at == captures_.end() ? nullptr : &*at;
  }
  const Expression* find_let(std::string_view name) const {
    const auto at = std::find_if(lets_.begin(), lets_.end(),
                                 [&](const auto& let) { return let.first == name; });
    return at == lets_.end() ? nullptr : &at->second;
  }

  Expression named_operand(std::size_t at, std::string_view name) {
    if (name == "true" || name == "false") return Expression(name == "true");
    if (name == "inf") return Expression(std::numeric_limits<double>::infinity());
    if (name == "nan") return Expression(std::numeric_limits<double>::quiet_NaN());
    if (const auto l = named(kLeaves, name); l != kLeaves.end()) return l->make();
    if (const Expression* let = find_let(name)) return *let;
    if (const Captured* capture = find(name)) {
      if (!take("[")) return made(at, [&] { return (*capture)(); });
      const std::vector<Expression> index = list("]");
      return made(at, [&] { return capture->at(index); });
    }
    if (!has(kUnary, name) && !has(kBinary, name) && !has(kReductions, name) &&
        !has(std::array{Leaf{"where", nullptr}, Leaf{"clamp", nullptr}}, name)) {
      fail(at, "\"" + std::string(name) + "\" is not an operand, a function or a captured tensor");
    }
    expect("(");
    const std::vector<Expression> args = list(")");
    return called(at, name, args);
  }

  std::vector<Expression> list(std::string_view end) {
    std::vector<Expression> items;
    do {
      items.push_back(formula(0));
    } while (take(","));
    expect(end);
    return items;
  }

  Expression called(std::size_t at, std::string_view name, const std::vector<Expression>& args) {
    const auto takes = [&](std::size_t count) {
      if (args.size() != count) {
        fail(at, std::string(name) + " takes " + std::to_string(count) + " arguments, not " +
                     std::to_string(args.size()));
      }
    };
    return made(at, [&] {
      if (const auto f = named(kUnary, name); f != kUnary.end()) {
        takes(1);
        return f->make(args[0]);
      }
      if (const auto f = named(kBinary, name); f != kBinary.end()) {
        takes(2);
        return f->make(args[0], args[1]);
      }
      if (const auto f = named(kReductions, name); f != kReductions.end()) {
        takes(2);
        const Term& count = term_of(args[0]);
        if (count.op != Op::constant || count.type != Type::integer) {
          fail(at, std::string(name) + " needs a constant number of lanes as its first argument");
        }
        return f->make(count.integer, args[1]);
      }
      takes(3);
      return name == "where" ? where(args[0], args[1], args[2]) : clamp(args[0], args[1], args[2]);
    });
  }

  std::string_view text_;
  std::span<const Captured> captures_;
  std::vector<std::pair<std::string_view, Expression>> lets_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "(-inf)";
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), std::fabs(value));
  std::string text(digits.data(), end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return std::signbit(value) ? "(-" + text + ")" : text;
}

/// Writes terms; one that is used more than once gets a name, so that the text stays as short as
/// the DAG.
class Writer {
 public:
  std::string whole(const Term& root) {
    count(root);
    const std::string result = text(root);
    return lets_ + result;
  }

 private:
  void count(const Term& term) {
    if (++uses_[&term] > 1) return;
    for (int n = 0; n < term.count; ++n) count(arg(term, n));
  }
  static const Term& arg(const Term& term, int n) {
    return term_of(term.args[static_cast<std::size_t>(n)]);
  }

  std::string text(const Term& term) {
    if (const auto at = names_.find(&term); at != names_.end()) return at->second;
    std::string written = fresh(term);
    if (term.count == 0 || uses_[&term] < 2) return written;
    std::string name = "t" + std::to_string(names_.size());
    lets_ += name + " = " + written + "; ";
    return names_[&term] = std::move(name);
  }

  std::string list(const Term& term, int first = 0) {
    std::string items;
    for (int n = first; n < term.count; ++n) {
      items += (n > first ? ", " : "") + text(arg(term, n));
    }
    return items;
  }

  std::string fresh(const Term& term) {
    if (term.op == Op::constant) {
      if (term.type == Type::real) return real_text(term.real);
      if (term.type == Type::boolean) return term.integer != 0 ? "true" : "false";
      return term.integer < 0 ? "(" + std::to_string(term.integer) + ")"
                              : std::to_string(term.integer);
    }
    if (term.op == Op::load) return term.capture->name + "[" + list(term) + "]";
    if (term.op == Op::where) return "where(" + list(term) + ")";
    if (term.op == Op::negate) return "(-" + list(term) + ")";
    if (term.op == Op::logical_not || term.op == Op::bit_not) return "(~" + list(term) + ")";
    std::string name(op_name(term.op));
    if (term.count == 0) return name;
    if (has(kReductions, name)) {
      return name + "(" + std::to_string(term.integer) + ", " + list(term) + ")";
    }
    if (term.count == 1 || has(kBinary, name)) return name + "(" + list(term) + ")";
    return "(" + text(arg(term, 0)) + " " + name + " " + text(arg(term, 1)) + ")";
  }

  std::unordered_map<const Term*, int> uses_;
  std::unordered_map<const Term*, std::string> names_;
  std::string lets_;
};

}  // namespace

bool is_capture_name(std::string_view name) {
  if (name.empty() || !is_letter(name[0]) || !std::all_of(name.begin(), name.end(), is_word)) {
    return false;
  }
  return !has(kLeaves, name) && !has(kUnary, name) && !has(kBinary, name) &&
         !has(kReductions, name) &&
         std::find(kOtherWords.begin(), kOtherWords.end(), name) == kOtherWords.end();
}

std::string_view op_name(Op op) {
  switch (op) {
    case Op::score:
      return "score";
    case Op::batch:
      return "b";
    case Op::head:
      return "h";
    case Op::query:
      return "i";
    case Op::key:
      return "j";
    case Op::query_length:
      return "query_length";
    case Op::key_length:
      return "key_length";
    case Op::lane:
      return "lane";
    case Op::logical_and:
      return "&";
    case Op::logical_or:
      return "|";
    case Op::logical_xor:
      return "^";
    case Op::logical_not:
      return "not";
    case Op::bit_not:
      return "~";
    case Op::where:
      return "where";
    default:
      break;
  }
  for (const auto& f : kUnary) {
    if (f.op == op) return f.name;
  }
  for (const auto& f : kBinary) {
    if (f.op == op) return f.name;
  }
  for (const auto& f : kReductions) {
    if (f.op == op) return f.name;
  }
  const auto at = std::find_if(kOperators.begin(), kOperators.end(),
                               [&](const Operator& o) { return o.op == op; });
  return at != kOperators.end() ? at->text : "constant";
}

}  // namespace expression

Expression Expression::parse(std::string_view text, std::span<const Captured> captures) {
  return expression::Parser(text, captures).whole();
}

std::string Expression::text() const { return defined() ? expression::Writer().whole(*term_) : ""; }

}  // namespace tilewise
