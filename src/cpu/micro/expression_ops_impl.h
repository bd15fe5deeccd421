/// The operations of expressions, written once over vectors of kLanes values and compiled per
/// instruction set, in an unnamed namespace as lanes_impl.h.
#pragma once

#include "cpu/micro/expression_ops.h"
#include "cpu/micro/lanes_math_impl.h"

namespace tilewise::cpu {
namespace {

using expression::Op;
using expression::Type;

constexpr int kLanes = Lanes::kLanes;

inline Signed load_signed(const float* p) {
  Signed x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store_signed(float* p, Signed x) { __builtin_memcpy(p, &x, sizeof x); }

// Operands and results of an operation's function, as they lie in a strip.
struct Real {
  using Vector = Float;
  static Vector load(const float* p) { return Lanes::load(p); }
  static void store(float* p, Vector x) { Lanes::store(p, x); }
};
struct Whole {
  using Vector = Signed;
  static Vector load(const float* p) { return load_signed(p); }
  static void store(float* p, Vector x) { store_signed(p, x); }
};

/// out = F(in[0]).
template <class Out, class In, auto F>
void map_one(const StripOp& op) {
  for (int r = 0; r < op.rows; ++r) {
    const float* a = op.in[0].data + r * op.in[0].row;
    float* out = op.out.data + r * op.out.row;
    for (int v = 0; v < op.vectors; ++v, a += op.in[0].col, out += kLanes) {
      Out::store(out, F(In::load(a)));
    }
  }
}

/// out = F(in[0], in[1]).
template <class Out, class In, auto F>
void map_two(const StripOp& op) {
  for (int r = 0; r < op.rows; ++r) {
    const float* a = op.in[0].data + r * op.in[0].row;
    const float* b = op.in[1].data + r * op.in[1].row;
    float* out = op.out.data + r * op.out.row;
    for (int v = 0; v < op.vectors; ++v, out += kLanes) {
      Out::store(out, F(In::load(a), In::load(b)));
      a += op.in[0].col;
      b += op.in[1].col;
    }
  }
}

/// out = F(in[0], in[1], in[2]), First the type of the first.
template <class Out, class First, class Second, class Third, auto F>
void map_three(const StripOp& op) {
  for (int r = 0; r < op.rows; ++r) {
    const float* a = op.in[0].data + r * op.in[0].row;
    const float* b = op.in[1].data + r * op.in[1].row;
    const float* c = op.in[2].data + r * op.in[2].row;
    float* out = op.out.data + r * op.out.row;
    for (int v = 0; v < op.vectors; ++v, out += kLanes) {
      Out::store(out, F(First::load(a), Second::load(b), Third::load(c)));
      a += op.in[0].col;
      b += op.in[1].col;
      c += op.in[2].col;
    }
  }
}

// Integers wrap: arithmetic on what has no sign.
inline Unsigned bits(Signed x) { return reinterpret_cast<Unsigned>(x); }
inline Signed whole(Unsigned x) { return reinterpret_cast<Signed>(x); }
inline Signed shifted_right(Signed x, Signed by) { return x >> (by & 31); }

/// By 1 << exponent, for what divides by a power of two: shifts floor.
inline bool power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

/// out = floor(in[0] / in[1]), or the remainder with the sign of in[1].
template <bool kRemainder>
void divide_integers(const StripOp& op) {
  for (int r = 0; r < op.rows; ++r) {
    const float* a = op.in[0].data + r * op.in[0].row;
    const float* b = op.in[1].data + r * op.in[1].row;
    float* out = op.out.data + r * op.out.row;
    const int divisor = op.vectors > 0 ? load_signed(b)[0] : 0;
    if (op.in[1].col == 0 && power_of_two(divisor)) {
      const int exponent = __builtin_ctz(static_cast<unsigned>(divisor));
      for (int v = 0; v < op.vectors; ++v, a += op.in[0].col, out += kLanes) {
        const Signed x = load_signed(a);
        store_signed(out, kRemainder ? x & (divisor - 1) : x >> exponent);
      }
      continue;
    }
    for (int v = 0; v < op.vectors; ++v, out += kLanes) {
      const Signed x = load_signed(a);
      const Signed y = load_signed(b);
      const Signed quotient = floor_quotient(x, y);
      store_signed(out, kRemainder ? whole(bits(x) - bits(quotient) * bits(y)) : quotient);
      a += op.in[0].col;
      b += op.in[1].col;
    }
  }
}

/// Towards 0, cut to 32 bits; NaN is 0.
inline Signed truncated(Float x) {
  constexpr int kHighest = 2147483647;
  const Float within = x < 0x1p31F ? x : Float{};
  const Float bounded = within > -0x1p31F ? within : Lanes::set(-0x1p31F);
  const Signed cut = __builtin_convertvector(x == x ? bounded : Float{}, Signed);
  return x >= 0x1p31F ? Signed{} + kHighest : cut;
}

template <class In>
StripFunction comparison(Op op) {
  using V = typename In::Vector;
  switch (op) {
    case Op::equal:
      return map_two<Whole, In, [](V a, V b) -> Signed { return a == b; }>;
    case Op::not_equal:
      return map_two<Whole, In, [](V a, V b) -> Signed { return a != b; }>;
    case Op::less:
      return map_two<Whole, In, [](V a, V b) -> Signed { return a < b; }>;
    case Op::less_equal:
      return map_two<Whole, In, [](V a, V b) -> Signed { return a <= b; }>;
    default:
      return nullptr;
  }
}

StripFunction of_one_real(Op op) {
  switch (op) {
    case Op::negate:
      return map_one<Real, Real, [](Float x) { return -x; }>;
    case Op::absolute:
      return map_one<Real, Real, [](Float x) { return Lanes::absolute(x); }>;
    case Op::exp:
      return map_one<Real, Real, [](Float x) { return Lanes::exp(x); }>;
    case Op::exp2:
      return map_one<Real, Real, [](Float x) { return exp2_of(x); }>;
    case Op::log:
      return map_one<Real, Real, [](Float x) { return log_of(x); }>;
    case Op::sqrt:
      return map_one<Real, Real, [](Float x) { return square_root(x); }>;
    case Op::rsqrt:
      return map_one<Real, Real, [](Float x) { return 1.0F / square_root(x); }>;
    case Op::tanh:
      return map_one<Real, Real, [](Float x) { return Lanes::tanh(x); }>;
    case Op::sigmoid:
      return map_one<Real, Real, [](Float x) { return sigmoid_of(x); }>;
    case Op::sin:
      return map_one<Real, Real, [](Float x) { return sine_of(x, 0); }>;
    case Op::cos:
      return map_one<Real, Real, [](Float x) { return sine_of(x, 1); }>;
    case Op::atan:
      return map_one<Real, Real, [](Float x) { return atan_of(x); }>;
    case Op::erf:
      return map_one<Real, Real, [](Float x) { return erf_of(x); }>;
    case Op::relu:
      return map_one<Real, Real, [](Float x) { return x <= 0.0F ? Float{} : x; }>;
    case Op::silu:
      return map_one<Real, Real, [](Float x) { return x * sigmoid_of(x); }>;
    case Op::gelu:
      return map_one<Real, Real,
                     [](Float x) { return 0.5F * x * (1.0F + erf_of(x * 0.707106781F)); }>;
    case Op::floor:
      return map_one<Real, Real, [](Float x) { return floor_of(x); }>;
    case Op::ceil:
      return map_one<Real, Real, [](Float x) { return ceil_of(x); }>;
    case Op::round:
      return map_one<Real, Real, [](Float x) { return round_of(x); }>;
    case Op::sign:
      return map_one<Real, Real, [](Float x) {
        return (0.0F < x) ? Lanes::set(1.0F) : x < 0.0F ? Lanes::set(-1.0F) : x;
      }>;
    case Op::to_boolean:
      return map_one<Whole, Real, [](Float x) -> Signed { return x != 0.0F; }>;
    case Op::to_integer:
      return map_one<Whole, Real, [](Float x) { return truncated(x); }>;
    case Op::to_real:
      return map_one<Real, Real, [](Float x) { return x; }>;
    default:
      return nullptr;
  }
}

StripFunction of_reals(Op op) {
  switch (op) {
    case Op::add:
    case Op::sum:
      return map_two<Real, Real, [](Float a, Float b) { return a + b; }>;
    case Op::subtract:
      return map_two<Real, Real, [](Float a, Float b) { return a - b; }>;
    case Op::multiply:
      return map_two<Real, Real, [](Float a, Float b) { return a * b; }>;
    case Op::divide:
      return map_two<Real, Real, [](Float a, Float b) { return a / b; }>;
    case Op::floor_divide:
      return map_two<Real, Real, [](Float a, Float b) { return floor_of(a / b); }>;
    case Op::modulo:
      return map_two<Real, Real, [](Float a, Float b) { return each<floor_remainder>(a, b); }>;
    case Op::minimum:  // NaN on either side stays
      return map_two<Real, Real, [](Float a, Float b) {
        const Float least = a < b ? a : b;
        return a == a ? least : a;
      }>;
    case Op::maximum:
      return map_two<Real, Real, [](Float a, Float b) {
        const Float most = b < a ? a : b;
        return a == a ? most : a;
      }>;
    case Op::power:
      return map_two<Real, Real, [](Float a, Float b) { return each<power_of>(a, b); }>;
    case Op::where:
      return map_three<Real, Whole, Real, Real,
                       [](Signed c, Float a, Float b) { return c != 0 ? a : b; }>;
    default:
      return comparison<Real>(op);
  }
}

StripFunction of_integers(Op op) {
  switch (op) {
    case Op::add:
    case Op::sum:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return whole(bits(a) + bits(b)); }>;
    case Op::subtract:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return whole(bits(a) - bits(b)); }>;
    case Op::multiply:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return whole(bits(a) * bits(b)); }>;
    case Op::floor_divide:
      return divide_integers<false>;
    case Op::modulo:
      return divide_integers<true>;
    case Op::negate:
      return map_one<Whole, Whole, [](Signed x) { return whole(-bits(x)); }>;
    case Op::absolute:
      return map_one<Whole, Whole, [](Signed x) { return x < 0 ? whole(-bits(x)) : x; }>;
    case Op::minimum:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return a < b ? a : b; }>;
    case Op::maximum:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return b < a ? a : b; }>;
    case Op::bit_and:
    case Op::logical_and:
    case Op::all:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return a & b; }>;
    case Op::bit_or:
    case Op::logical_or:
    case Op::any:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return a | b; }>;
    case Op::bit_xor:
    case Op::logical_xor:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return a ^ b; }>;
    case Op::bit_not:
    case Op::logical_not:
      return map_one<Whole, Whole, [](Signed x) { return ~x; }>;
    case Op::shift_left:
      return map_two<Whole, Whole,
                     [](Signed a, Signed b) { return whole(bits(a) << (bits(b) & 31U)); }>;
    case Op::shift_right:
      return map_two<Whole, Whole, [](Signed a, Signed b) { return shifted_right(a, b); }>;
    case Op::where:
      return map_three<Whole, Whole, Whole, Whole,
                       [](Signed c, Signed a, Signed b) { return c != 0 ? a : b; }>;
    case Op::to_boolean:
      return map_one<Whole, Whole, [](Signed x) -> Signed { return x != 0; }>;
    case Op::to_integer:
      return map_one<Whole, Whole, [](Signed x) { return x; }>;
    case Op::to_real:
      return map_one<Real, Whole, [](Signed x) { return __builtin_convertvector(x, Float); }>;
    default:
      return comparison<Whole>(op);
  }
}

StripFunction function(Op op, Type operands) {
  // A boolean is 0 or -1.
  if (operands == Type::boolean && op == Op::to_real) {
    return map_one<Real, Whole, [](Signed x) { return x != 0 ? Lanes::set(1.0F) : Float{}; }>;
  }
  if (operands == Type::boolean && op == Op::to_integer) {
    return map_one<Whole, Whole, [](Signed x) { return -x; }>;
  }
  if (operands != Type::real) return of_integers(op);
  const StripFunction one = of_one_real(op);
  return one != nullptr ? one : of_reals(op);
}

/// The value of an element in a strip.
template <class T>
inline float held(T x) {
  if constexpr (sizeof(T) == sizeof(float) && T(0.5) != T(0)) {
    return x;
  } else if constexpr (T(0.5) != T(0)) {
    return static_cast<float>(x);
  } else {
    return __builtin_bit_cast(float, static_cast<std::int32_t>(x));  // int64 wraps
  }
}

template <class T>
inline float element(const void* data, std::int64_t at) {
  return held(static_cast<const T*>(data)[at]);
}
inline float bfloat16_element(const void* data, std::int64_t at) {
  const std::uint32_t half = static_cast<const std::uint16_t*>(data)[at];
  return __builtin_bit_cast(float, half << 16);
}
// As float16_to_float() in elements.cpp.
inline float float16_element(const void* data, std::int64_t at) {
  const std::uint32_t half = static_cast<const std::uint16_t*>(data)[at];
  const float scaled = __builtin_bit_cast(float, (half & 0x7FFFU) << 13) * 0x1p112F;
  const std::uint32_t special = (half & 0x7C00U) == 0x7C00U ? 0x7F800000U : 0U;
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, scaled) | special;
  return __builtin_bit_cast(float, bits | (half & 0x8000U) << 16);
}
inline float boolean_element(const void* data, std::int64_t at) {
  return __builtin_bit_cast(float, static_cast<const std::uint8_t*>(data)[at] != 0 ? -1 : 0);
}

/// Calls use(element) with the function that reads an element of the type.
template <class Use>
inline void with_element(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::float32:
      return use(element<float>);
    case DType::float64:
      return use(element<double>);
    case DType::bfloat16:
      return use(bfloat16_element);
    case DType::float16:
      return use(float16_element);
    case DType::boolean:
      return use(boolean_element);
    case DType::uint8:
      return use(element<std::uint8_t>);
    case DType::int32:
      return use(element<std::int32_t>);
    case DType::int64:
      return use(element<std::int64_t>);
  }
}

/// An index that a tensor's axis takes: negative ones from the end, the rest cut.
inline Signed wrapped(Signed index, int size) {
  const Signed from_end = index < 0 ? whole(bits(index) + static_cast<unsigned>(size)) : index;
  const Signed above = from_end < 0 ? Signed{} : from_end;
  return above >= size ? Signed{} + (size - 1) : above;
}

/// Sizes past 32 bits have elements that no index of 32 bits names.
inline int axis_size(std::int64_t size) {
  constexpr std::int64_t kMost = 2147483647;
  return static_cast<int>(size < kMost ? size : kMost);
}

/// True when every element lies less than 2^31 elements from the first.
inline bool spans_32_bits(const CaptureView& capture) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  std::int64_t span = 0;
  for (int axis = 0; axis < capture.rank; ++axis) {
    const std::int64_t stride = capture.strides[axis];
    const std::int64_t magnitude = stride < 0 ? -stride : stride;
    if (magnitude > kMost || capture.sizes[axis] > kMost) return false;
    span += magnitude * capture.sizes[axis];
    if (span > kMost) return false;
  }
  return true;
}

void load_elements(const StripOp& op) {
  const CaptureView& capture = *op.capture;
  bool empty = false;
  for (int axis = 0; axis < capture.rank; ++axis) empty = empty || capture.sizes[axis] <= 0;
  const bool near = spans_32_bits(capture);
  const auto index = [&](int axis, int r, int v) {
    const StripIn& in = op.in[axis];
    return wrapped(load_signed(in.data + r * in.row + v * in.col), axis_size(capture.sizes[axis]));
  };
  with_element(capture.dtype, [&](const auto& read) {
    for (int r = 0; r < op.rows; ++r) {
      float* out = op.out.data + r * op.out.row;
      for (int v = 0; v < op.vectors; ++v, out += kLanes) {
        if (empty) {
          Lanes::store(out, Float{});
        } else if (near) {
          Signed at{};
          for (int axis = 0; axis < capture.rank; ++axis) {
            at += index(axis, r, v) * static_cast<int>(capture.strides[axis]);
          }
          for (int lane = 0; lane < kLanes; ++lane) out[lane] = read(capture.data, at[lane]);
        } else {
          std::int64_t at[kLanes] = {};
          for (int axis = 0; axis < capture.rank; ++axis) {
            const Signed along = index(axis, r, v);
            for (int lane = 0; lane < kLanes; ++lane) {
              at[lane] += along[lane] * capture.strides[axis];
            }
          }
          for (int lane = 0; lane < kLanes; ++lane) out[lane] = read(capture.data, at[lane]);
        }
      }
    }
  });
}

void locate(const CaptureView& capture, const StripIn* index, int row, int count,
            std::int64_t* out) {
  const bool near = spans_32_bits(capture);
  const auto column = [&](int axis, int c) { return index[axis].col == 0 ? 0 : c; };
  int c = 0;
  for (; near && c + kLanes <= count; c += kLanes) {
    Signed at{};
    for (int axis = 0; axis < capture.rank; ++axis) {
      const StripIn& in = index[axis];
      const Signed along = load_signed(in.data + row * in.row + column(axis, c));
      at +=
          wrapped(along, axis_size(capture.sizes[axis])) * static_cast<int>(capture.strides[axis]);
    }
    for (int lane = 0; lane < kLanes; ++lane) out[c + lane] = at[lane];
  }
  for (; c < count; ++c) {
    out[c] = 0;
    for (int axis = 0; axis < capture.rank; ++axis) {
      const StripIn& in = index[axis];
      const float held = in.data[row * in.row + column(axis, c)];
      const Signed along =
          wrapped(Signed{} + __builtin_bit_cast(int, held), axis_size(capture.sizes[axis]));
      out[c] += along[0] * capture.strides[axis];
    }
  }
}

void dot(const StripOp& op) {
  for (int r = 0; r < op.rows; ++r) {
    const float* a = op.in[0].data + r * op.in[0].row;
    const float* b = op.in[1].data + r * op.in[1].row;
    float* out = op.out.data + r * op.out.row;
    for (int v = 0; v < op.vectors; ++v, out += kLanes) {
      Float sum{};
      for (int lane = 0; lane < op.lanes; ++lane) {
        sum += Lanes::load(a + lane * op.in[0].lane) * Lanes::load(b + lane * op.in[1].lane);
      }
      Lanes::store(out, sum);
      a += op.in[0].col;
      b += op.in[1].col;
    }
  }
}

void load_row(const CaptureView& capture, std::int64_t offset, std::int64_t stride, std::int64_t n,
              float* out) {
  with_element(capture.dtype, [&](const auto& read) {
    if (stride == 1) {
      for (std::int64_t j = 0; j < n; ++j) out[j] = read(capture.data, offset + j);
      return;
    }
    for (std::int64_t j = 0; j < n; ++j) out[j] = read(capture.data, offset + j * stride);
  });
}

constexpr ExpressionOps make_expression_ops() {
  return {.lanes = kLanes,
          .function = function,
          .load = load_elements,
          .locate = locate,
          .load_row = load_row,
          .dot = dot,
          .hide = map_three<Real, Real, Whole, Whole,
                            [](Float s, Signed visible, Signed) {
                              return visible != 0 ? s : Lanes::set(-kInfinite);
                            }>,
          .multiply_seen = map_three<Real, Real, Real, Real, [](Float x, Float by, Float p) {
            return p != 0.0F ? x * by : Float{};
          }>};
}

}  // namespace
}  // namespace tilewise::cpu
