#include "problem/apart.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "problem/arguments.h"
#include "problem/expressions.h"
#include "problem/named_tensors.h"
#include "problem/shared_memory.h"

namespace tilewise {
namespace {

/// Each output against the other tensors of the call, which `for_tensors` names; of two outputs the
/// later one is judged.
template <class ForTensors>
void require_each_apart(std::span<const Named> outputs, ForTensors for_tensors) {
  for (const Named& output : outputs) {
    if (Extent(*output.tensor).empty()) continue;
    for_tensors([&](const char* name, const Tensor& t) {
      if (!share_memory(*output.tensor, t)) return;
      const auto is_itself_or_later = [&](const Named& o) {
        return o.tensor == &t && &o >= &output;
      };
      if (std::any_of(outputs.begin(), outputs.end(), is_itself_or_later)) return;
      arguments::fail(
          output.name, *output.tensor,
          std::string("it shares memory with ") + name + "; an output needs its own memory");
    });
  }
}

template <class F>
void for_captures(const AttentionSpec& s, F f) {
  for (const auto& [argument, given] : {std::pair{"score_expression", &s.score_expression},
                                        std::pair{"mask_expression", &s.mask_expression}}) {
    if (!given->defined()) continue;
    for (const Captured& capture : given->captures())
      f(captured_name(argument, capture).c_str(), capture.tensor());
  }
}

template <class Tensors>
void require_apart(std::span<const Named> outputs, const Tensors& t, const AttentionSpec& spec) {
  require_each_apart(outputs, [&](auto check) {
    for_operands(t, check);
    if constexpr (requires { t.dcaptures; }) {
      for (const Tensor& gradient : t.dcaptures) check("dcaptures", gradient);
    }
    for_options(spec, check);
    for_captures(spec, check);
  });
}

}  // namespace

void require_apart(std::span<const Named> outputs, std::span<const Named> inputs) {
  require_each_apart(outputs, [&](auto check) {
    for (const Named& output : outputs) check(output.name, *output.tensor);
    for (const Named& input : inputs) check(input.name, *input.tensor);
  });
}

void require_apart(const AppendTensors& t, const AppendSpec& s) {
  std::vector<Named> others = {{"q", &t.q},
                               {"k", &t.k},
                               {"v", &t.v},
                               {"lengths", &t.lengths},
                               {"block_table", &s.block_table},
                               {"cu_seqlens", &s.cu_seqlens},
                               {"rotary.cos", &s.rotary.cos},
                               {"rotary.sin", &s.rotary.sin},
                               {"rotary.positions", &s.rotary.positions}};
  const std::array<Named, 4> outputs = {{{"k_cache", &t.k_cache},
                                         {"rotated_q", &t.rotated_q},
                                         {"new_lengths", &t.new_lengths},
                                         {"skipped", &t.skipped}}};
  require_apart(outputs, others);
  others.insert(others.end(), outputs.begin() + 1, outputs.end());
  const std::array<Named, 1> values = {{{"v_cache", &t.v_cache}}};
  require_apart(values, others);
}

void require_apart(const ForwardTensors& t, const AttentionSpec& spec) {
  const std::array<Named, 2> outputs = {{{"o", &t.o}, {"lse", &t.lse}}};
  require_apart(outputs, t, spec);
}

void require_apart(const BackwardTensors& t, const AttentionSpec& spec) {
  std::vector<Named> outputs = {
      {"dq", &t.dq}, {"dk", &t.dk}, {"dv", &t.dv}, {"dbias", &t.dbias}, {"dsinks", &t.dsinks}};
  for (const Tensor& gradient : t.dcaptures) outputs.push_back({"dcaptures", &gradient});
  require_apart(outputs, t, spec);
}

void require_usable(const char* name, const void* data, std::int64_t bytes, const Problem& p) {
  constexpr std::uintptr_t kAlignment = 256;
  const bool on_gpu = p.device.type == DeviceType::cuda;
  if (on_gpu && reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0) {
    throw InvalidArgument(std::string(name) + " is not aligned: expected memory aligned to " +
                          std::to_string(kAlignment) + " bytes");
  }
  // The tensor is only compared: nothing writes through it.
  const Tensor block = Tensor::contiguous(const_cast<void*>(data), DType::uint8, {bytes}, p.device);
  const auto check = [&](const char* other, const Tensor& t) {
    if (!share_memory(block, t)) return;
    throw InvalidArgument(std::string(name) + " shares memory with " + other + ": its " +
                          std::to_string(bytes) + " bytes need their own memory");
  };
  for_operands(p, check);
  for_options(p, check);
}

}  // namespace tilewise
