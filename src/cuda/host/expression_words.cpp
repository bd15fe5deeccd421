#include "cuda/host/expression_words.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

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

std::string expression_operation(const expression::Node& n, Type operands, const std::string& a,
                                 const std::string& b, const std::string& c) {
  const auto infix = [&](const char* sign) { return a + sign + b; };
  const auto call = [&](const char* word) { return word + ("(" + a + ")"); };
  const auto call_both = [&](const char* word) { return word + ("(" + a + ", " + b + ")"); };
  switch (n.op) {
    case Op::add:
      return infix(" + ");
    case Op::subtract:
      return infix(" - ");
    case Op::multiply:
      return n.type == Type::integer ? call_both("expression::multiply") : infix(" * ");
    case Op::negate:
      return "-" + a;
    case Op::absolute:
      return call("expression::absolute");
    case Op::minimum:
      return call_both("expression::minimum");
    case Op::maximum:
      return call_both("expression::maximum");
    case Op::power:
      return call_both("powf");
    case Op::equal:
      return infix(" == ");
    case Op::not_equal:
      return infix(" != ");
    case Op::less:
      return infix(" < ");
    case Op::less_equal:
      return infix(" <= ");
    // Evaluates both sides: a branch would cost more.
    case Op::logical_and:
    case Op::bit_and:
      return infix(" & ");
    case Op::logical_or:
    case Op::bit_or:
      return infix(" | ");
    case Op::logical_xor:
    case Op::bit_xor:
      return infix(" ^ ");
    case Op::logical_not:
      return "!" + a;
    case Op::bit_not:
      return "~" + a;
    case Op::shift_left:
      return infix(" << ");
    case Op::shift_right:
      return infix(" >> ");
    case Op::where:
      return a + " ? " + b + " : " + c;
    case Op::exp:
      return call("expf");
    case Op::exp2:
      return call("exp2f");
    case Op::log:
      return call("logf");
    case Op::sqrt:
      return call("sqrtf");
    case Op::rsqrt:
      return call("rsqrtf");
    case Op::tanh:
      return call("tanh_fast");
    case Op::sigmoid:
      return call("expression::sigmoid");
    case Op::sin:
      return call("sinf");
    case Op::cos:
      return call("cosf");
    case Op::erf:
      return call("erff");
    case Op::relu:
      return "expression::maximum(" + a + ", 0.0F)";
    case Op::silu:
      return a + " * expression::sigmoid(" + a + ")";
    case Op::gelu:
      return call("expression::gelu");
    case Op::floor:
      return call("floorf");
    case Op::ceil:
      return call("ceilf");
    case Op::round:
      return call("rintf");
    case Op::sign:
      return call("expression::sign");
    case Op::to_boolean:
      return a + " != " + (operands == Type::real ? "0.0F" : "0");
    case Op::to_integer:
      return call("static_cast<int>");
    case Op::to_real:
      return call("static_cast<float>");
    default:
      return a;
  }
}

}  // namespace tilewise::cuda
