#include "cuda/host/wgmma_text.h"

namespace tilewise::cuda {
namespace {

/// "%0, %1, ..."
std::string placeholders(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? ", %" : "%") + std::to_string(i);
  return text;
}

/// "+f"(d[0]), "+f"(d[1]), ...
std::string accumulators(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += (i > 0 ? ", \"+f\"(d[" : "\"+f\"(d[") + std::to_string(i) + "])";
  return text;
}

std::string instruction(tile::Element element, int n) {
  const char* type = element == tile::Element::bf16 ? "bf16" : "f16";
  return "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) + "k16.f32." + type + "." + type;
}

/// Both operands in shared memory: K-major, or (`transposed`) both MN-major.
std::string multiply_shared(tile::Element element, int n, bool transposed) {
  const int r = n / 2;
  const auto operand = [r](int i) { return "%" + std::to_string(r + i); };
  const char* major = transposed ? "1, 1" : "0, 0";
  return std::string("  static __forceinline__ void ") +
         (transposed ? "multiply_transposed" : "multiply_shared") + "(float (&d)[" +
         std::to_string(r) +
         "], u64 a, u64 b, int accumulate) {\n    asm volatile(\"{.reg .pred p; setp.ne.b32 p, " +
         operand(2) + ", 0; " + instruction(element, n) + " {" + placeholders(r) + "}, " +
         operand(0) + ", " + operand(1) + ", p, 1, 1, " + major + ";}\" : " + accumulators(r) +
         " : \"l\"(a), \"l\"(b), \"r\"(accumulate));\n  }\n";
}

std::string multiply_register(tile::Element element, int n) {
  const int r = n / 2;
  const auto operand = [r](int i) { return "%" + std::to_string(r + i); };
  return "  static __forceinline__ void multiply_register(float (&d)[" + std::to_string(r) +
         "], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {\n    asm volatile(\"" +
         instruction(element, n) + " {" + placeholders(r) + "}, {" + operand(0) + ", " +
         operand(1) + ", " + operand(2) + ", " + operand(3) + "}, " + operand(4) +
         ", 1, 1, 1, 1;\" : " + accumulators(r) +
         " : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b));\n  }\n";
}

/// A in registers, B K-major in shared memory.
std::string multiply_register_rows(tile::Element element, int n) {
  const int r = n / 2;
  const auto operand = [r](int i) { return "%" + std::to_string(r + i); };
  return "  static __forceinline__ void multiply_register_rows(float (&d)[" + std::to_string(r) +
         "], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {\n    asm volatile(\"{.reg "
         ".pred p; setp.ne.b32 p, " +
         operand(5) + ", 0; " + instruction(element, n) + " {" + placeholders(r) + "}, {" +
         operand(0) + ", " + operand(1) + ", " + operand(2) + ", " + operand(3) + "}, " +
         operand(4) + ", p, 1, 1, 0;}\" : " + accumulators(r) +
         " : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b), \"r\"(accumulate));\n  }\n";
}

}  // namespace

std::string wgmma_text(tile::Element element, const WgmmaShape& shape) {
  std::string text = "template <>\nstruct tilewise::tile::Wgmma<tilewise::tile::Element::";
  text += element == tile::Element::bf16 ? "bf16" : "fp16";
  text += ", " + std::to_string(shape.n) +
          "> {\n  using u32 = unsigned;\n  using u64 = unsigned long long;\n";
  if (shape.operands_in_shared) text += multiply_shared(element, shape.n, false);
  if (shape.transposed_in_shared) text += multiply_shared(element, shape.n, true);
  if (shape.operand_in_registers) text += multiply_register(element, shape.n);
  if (shape.rows_in_shared) text += multiply_register_rows(element, shape.n);
  return text + "};\n";
}

}  // namespace tilewise::cuda
