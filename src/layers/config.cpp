/// The names of kinds and patterns, and what a Config may say.
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "layers/model.h"
#include "problem/arguments.h"

namespace tilewise::asam {
namespace {

constexpr std::array<std::pair<LayerKind, std::string_view>, 4> kKinds = {
    {{LayerKind::original, "original"},
     {LayerKind::flash, "flash"},
     {LayerKind::adaptive, "adaptive"},
     {LayerKind::efficient, "efficient"}}};
constexpr std::array<std::pair<Pattern, std::string_view>, 7> kPatterns = {
    {{Pattern::local, "local"},
     {Pattern::strided, "strided"},
     {Pattern::random, "random"},
     {Pattern::clustered, "clustered"},
     {Pattern::hierarchical, "hierarchical"},
     {Pattern::selected, "selected"},
     {Pattern::automatic, "auto"}}};

template <class Table, class Value>
std::string_view name_of(const Table& table, Value value) {
  for (const auto& [entry, name] : table) {
    if (entry == value) return name;
  }
  return "";
}

template <class Table>
auto parse(const Table& table, const char* what, std::string_view text) {
  std::string names;
  for (const auto& [entry, name] : table) {
    if (name == text) return entry;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw InvalidArgument(std::string(what) + " is '" + std::string(text) + "': expected one of " +
                        names);
}

void require(bool holds, const char* name, const std::string& value, const char* expected) {
  if (!holds) {
    throw InvalidArgument(std::string("config.") + name + " is " + value + ": " + expected);
  }
}

void require_positive(const char* name, std::int64_t value) {
  require(value >= 1, name, std::to_string(value), "it must be >= 1");
}

/// Products of two sizes count bytes in 64 bits.
void require_size(const char* name, std::int64_t value) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  require_positive(name, value);
  require(value <= kMost, name, std::to_string(value), "it must be at most 2^24");
}

void require_share(const char* name, double value) {
  require(value >= 0.0 && value < 1.0, name, arguments::number_text(value), "it must be in [0, 1)");
}

void check_pattern(const Config& c) {
  const std::string name(pattern_name(c.pattern));
  if (c.kind == LayerKind::adaptive) {
    require(c.pattern != Pattern::random, "pattern", name,
            "the adaptive layer does not support this pattern");
  } else if (c.kind == LayerKind::original) {
    require(c.pattern != Pattern::selected && c.pattern != Pattern::automatic, "pattern", name,
            "the published layer does not support this pattern");
  }
  require(!c.causal || c.kind == LayerKind::adaptive, "causal", "true",
          "the published layers do not support a causal mask");
}

}  // namespace

std::string_view kind_name(LayerKind kind) { return name_of(kKinds, kind); }
std::string_view pattern_name(Pattern pattern) { return name_of(kPatterns, pattern); }
LayerKind parse_kind(std::string_view text) { return parse(kKinds, "the kind of layer", text); }
Pattern parse_pattern(std::string_view text) { return parse(kPatterns, "the pattern", text); }

void check_config(const Config& c) {
  require_size("dim", c.dim);
  require_size("heads", c.heads);
  require_size("head_dim", c.head_dim);
  require_size("heads * head_dim", c.heads * c.head_dim);
  require_positive("window_size", c.window_size);
  require_positive("stride", c.stride);
  require_size("clusters", c.clusters);
  require_positive("layers", c.layers);
  require(c.gate_hidden >= 2, "gate_hidden", std::to_string(c.gate_hidden), "it must be >= 2");
  require_size("gate_hidden", c.gate_hidden);
  for (const auto& [name, count] :
       {std::pair{"vocabulary", c.vocabulary}, {"classes", c.classes}}) {
    require(count >= 0, name, std::to_string(count), "it must be >= 0");
    require(count <= std::numeric_limits<std::int32_t>::max(), name, std::to_string(count),
            "tokens and labels are int32");
  }
  require_share("dropout", c.dropout);
  require_share("gate_dropout", c.gate_dropout);
  const bool divides = c.kind == LayerKind::flash || c.kind == LayerKind::efficient;
  require(!divides || c.heads * c.head_dim == c.dim, "head_dim", std::to_string(c.head_dim),
          "the flash layer needs heads * head_dim = dim");
  const auto block = static_cast<std::uint64_t>(c.block_size);
  require(c.block_size >= 16 && c.block_size <= 256 && std::has_single_bit(block), "block_size",
          std::to_string(c.block_size), "expected a power of two from 16 to 256");
  require(c.density > 0.0 && c.density <= 1.0, "density", arguments::number_text(c.density),
          "it must be in (0, 1]");
  require(c.route_above >= 0.5 && c.route_above <= 1.0, "route_above",
          arguments::number_text(c.route_above), "it must be in [0.5, 1]");
  require(c.dtype == DType::float32 || c.dtype == DType::float64, "dtype",
          std::string(dtype_name(c.dtype)), "expected float32 or float64");
  require(c.dtype == DType::float32 || c.device.type == DeviceType::cpu, "device",
          device_name(c.device), "float64 is supported only on the CPU");
  require(
      c.compute == DType::float32 || c.compute == DType::bfloat16 || c.compute == DType::float16,
      "compute", std::string(dtype_name(c.compute)), "expected float32, bfloat16 or float16");
  require(c.compute == DType::float32 || c.dtype == DType::float32, "compute",
          std::string(dtype_name(c.compute)), "a float64 model computes in float64");
  require(!c.graph || c.device.type == DeviceType::cuda, "graph", "true", "only CUDA supports it");
  check_pattern(c);
}

void check_options(const TrainOptions& o) {
  const auto require = [](bool holds, const char* name, double value, const char* expected) {
    if (!holds) {
      throw InvalidArgument(std::string("options.") + name + " is " +
                            arguments::number_text(value) + ": it must be " + expected);
    }
  };
  for (const auto& [name, value] :
       {std::pair{"learning_rate", o.learning_rate}, {"epsilon", o.epsilon}})
    require(std::isfinite(value) && value >= 0.0, name, value, "finite and >= 0");
  for (const auto& [name, value] : {std::pair{"beta1", o.beta1}, {"beta2", o.beta2}})
    require(value >= 0.0 && value < 1.0, name, value, "in [0, 1)");
  const double scale = o.initial_scale;
  require(scale <= std::numeric_limits<float>::max() && static_cast<float>(scale) > 0.0F,
          "initial_scale", scale, "a float32 above 0");
  const std::int64_t interval = o.growth_interval;
  require(interval >= 1 && std::in_range<std::int32_t>(interval), "growth_interval",
          static_cast<double>(interval), "from 1 to 2^31 - 1");
}

}  // namespace tilewise::asam
