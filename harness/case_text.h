/// Pieces of the case grammar that parsing and formatting share. Used by case*.cpp only.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/case.h"

namespace tilewise::case_text {

/// A value of an enum and its word.
template <class Value>
struct Word {
  std::string_view text;
  Value value;
};

inline constexpr std::array<Word<DType>, 4> kDTypes{{{"f64", DType::float64},
                                                     {"f32", DType::float32},
                                                     {"bf16", DType::bfloat16},
                                                     {"f16", DType::float16}}};

inline constexpr std::array<Word<Layout>, 10> kLayouts{{{"bhsd", Layout::bhsd},
                                                        {"bshd", Layout::bshd},
                                                        {"sbhd", Layout::sbhd},
                                                        {"qkv", Layout::qkv},
                                                        {"transposed", Layout::transposed},
                                                        {"step2", Layout::step2},
                                                        {"padded", Layout::padded},
                                                        {"reversed", Layout::reversed},
                                                        {"expanded", Layout::expanded},
                                                        {"latent", Layout::latent}}};

inline constexpr std::array<Word<Fill::Kind>, 7> kFills{{{"randn", Fill::Kind::randn},
                                                         {"rand", Fill::Kind::rand},
                                                         {"sign", Fill::Kind::sign},
                                                         {"iota", Fill::Kind::iota},
                                                         {"heads", Fill::Kind::heads},
                                                         {"arange", Fill::Kind::arange},
                                                         {"eye", Fill::Kind::eye}}};

inline constexpr std::array<Word<Case::ScoreModKind>, 2> kScoreMods{
    {{"distance", Case::ScoreModKind::distance}, {"wave", Case::ScoreModKind::wave}}};

template <class Value, std::size_t n>
std::string list(const std::array<Word<Value>, n>& words) {
  std::string all;
  for (const Word<Value>& word : words) all += (all.empty() ? "" : ", ") + std::string(word.text);
  return all;
}

template <class Value, std::size_t n>
const Value* find(const std::array<Word<Value>, n>& words, std::string_view text) {
  for (const Word<Value>& word : words) {
    if (word.text == text) return &word.value;
  }
  return nullptr;
}

template <class Value, std::size_t n>
std::string_view name(const std::array<Word<Value>, n>& words, Value value) {
  for (const Word<Value>& word : words) {
    if (word.value == value) return word.text;
  }
  return "?";
}

/// What the words of a text have given, each thing once.
class Given {
 public:
  /// Throws std::string, as the readers do, where another word gave it.
  void take(const std::string& what, std::string_view word);
  bool has(const std::string& what) const { return words_.contains(what); }

 private:
  std::map<std::string, std::string> words_;
};

/// Parts between separators; an empty text is one empty part.
std::vector<std::string_view> split(std::string_view text, char separator);

/// The readers throw std::string with what was expected; parse_case() adds the word at fault.
std::int64_t read_integer(std::string_view text);
/// A seed of 64 bits; one below 0 wraps.
std::uint64_t read_seed(std::string_view text);
std::vector<std::int64_t> read_integers(std::string_view text);
double read_number(std::string_view text);
Fill read_fill(std::string_view text);
Region read_region(std::string_view text);

/// Shortest text that reads back as the same number.
std::string number(double value);
std::string integers(const std::vector<std::int64_t>& values);
std::string fill(const Fill& fill);
std::string region(const Region& region);

}  // namespace tilewise::case_text
