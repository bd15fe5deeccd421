#include "cuda/host/expression_words.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace tilewise::cuda {

using expression::Op;
using expression::Type;

const char* type_text(Type type) {
  return type == Type::boolean ? "bool" : type == Type::integer ? "int" : "float";
}

std::string integer_text(std::int64_t value) {
  if (value == std::numeric_limits<std::int32_t>::min()) return "(-2147483647 - 1)";
  const std::string digits = std::to_string(value);
  return value < 0 ? "(" + digits + ")" : digits;
}

std::string real_text(double value) {
  const auto x = static_cast<float>(value);
  if (std::isnan(x)) return "not_a_number()";
  if (std::isinf(x)) return x > 0 ? "infinity()" : "(-infinity())";
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), x);
  std::string text(digits.data(), end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  text += "F";
  return std::signbit(x) ? "(" + text + ")" : text;
}

const char* stored_text(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "float64";
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bf16";
    case DType::float16:
      return "fp16";
    case DType::boolean:
      return "boolean";
    case DType::uint8:
      return "uint8";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
  }
  return "";
}

int log2_of(std::int64_t value) {
  for (int shift = 0; shift < 31; ++shift) {
    if (value == std::int64_t{1} << shift) return shift;
  }
  return -1;
}

namespace {

struct Word {
  Op op;
  const char* text;
};

/// NOTE: logical operations evaluate both sides. A branch would cost more.
constexpr Word kInfix[] = {
    {Op::add, " + "},         {Op::subtract, " - "},    {Op::equal, " == "},
    {Op::not_equal, " != "},  {Op::less, " < "},        {Op::less_equal, " <= "},
    {Op::logical_and, " & "}, {Op::bit_and, " & "},     {Op::logical_or, " | "},
    {Op::bit_or, " | "},      {Op::logical_xor, " ^ "}, {Op::bit_xor, " ^ "},
    {Op::shift_left, " << "}, {Op::shift_right, " >> "}};
constexpr Word kCalls[] = {{Op::absolute, "expression::absolute"},
                           {Op::exp, "expf"},
                           {Op::exp2, "exp2f"},
                           {Op::log, "logf"},
                           {Op::sqrt, "sqrtf"},
                           {Op::rsqrt, "rsqrtf"},
                           {Op::tanh, "tanh_fast"},
                           {Op::sigmoid, "expression::sigmoid"},
                           {Op::sin, "sinf"},
                           {Op::cos, "cosf"},
                           {Op::atan, "atanf"},
                           {Op::erf, "erff"},
                           {Op::gelu, "expression::gelu"},
                           {Op::floor, "floorf"},
                           {Op::ceil, "ceilf"},
                           {Op::round, "rintf"},
                           {Op::sign, "expression::sign"},
                           {Op::to_integer, "static_cast<int>"},
                           {Op::to_real, "static_cast<float>"}};
constexpr Word kCallsOfTwo[] = {{Op::minimum, "expression::minimum"},
                                {Op::maximum, "expression::maximum"},
                                {Op::power, "powf"}};

const char* word_of(std::span<const Word> words, Op op) {
  for (const Word& word : words) {
    if (word.op == op) return word.text;
  }
  return nullptr;
}

}  // namespace

std::string expression_operation(const expression::Node& n, Type operands, const std::string& a,
                                 const std::string& b, const std::string& c) {
  if (const char* sign = word_of(kInfix, n.op)) return a + sign + b;
  if (const char* name = word_of(kCalls, n.op)) return name + ("(" + a + ")");
  if (const char* name = word_of(kCallsOfTwo, n.op)) return name + ("(" + a + ", " + b + ")");
  switch (n.op) {
    case Op::multiply:
      return n.type == Type::integer ? "expression::multiply(" + a + ", " + b + ")" : a + " * " + b;
    case Op::negate:
      return "-" + a;
    case Op::logical_not:
      return "!" + a;
    case Op::bit_not:
      return "~" + a;
    case Op::where:
      return a + " ? " + b + " : " + c;
    case Op::relu:
      return "expression::maximum(" + a + ", 0.0F)";
    case Op::silu:
      return a + " * expression::sigmoid(" + a + ")";
    case Op::to_boolean:
      return a + " != " + (operands == Type::real ? "0.0F" : "0");
    default:
      return a;
  }
}

}  // namespace tilewise::cuda
