/// The tensors of a call by the names of its arguments. `Of` is who has them: the caller's structs
/// or the Problem made of them.
#pragma once

#include <array>

#include "tilewise/attention.h"

namespace tilewise {

template <class Of>
struct NamedTensor {
  const char* name;
  Tensor Of::*of;
};

/// ForwardTensors, BackwardTensors, Problem.
template <class Of>
inline constexpr std::array<NamedTensor<Of>, 5> kForwardTensors = {
    {{"q", &Of::q}, {"k", &Of::k}, {"v", &Of::v}, {"o", &Of::o}, {"lse", &Of::lse}}};

/// BackwardTensors, Problem: those that a forward does not have.
template <class Of>
inline constexpr std::array<NamedTensor<Of>, 7> kGradientTensors = {{{"d_o", &Of::d_o},
                                                                     {"d_lse", &Of::d_lse},
                                                                     {"dq", &Of::dq},
                                                                     {"dk", &Of::dk},
                                                                     {"dv", &Of::dv},
                                                                     {"dbias", &Of::dbias},
                                                                     {"dsinks", &Of::dsinks}}};

/// AttentionSpec, Problem.
template <class Of>
inline constexpr std::array<NamedTensor<Of>, 9> kOptionTensors = {
    {{"mask", &Of::mask},
     {"bias", &Of::bias},
     {"alibi_slopes", &Of::alibi_slopes},
     {"sinks", &Of::sinks},
     {"dropout_counter", &Of::dropout_counter},
     {"key_lengths", &Of::key_lengths},
     {"cu_seqlens_q", &Of::cu_seqlens_q},
     {"cu_seqlens_k", &Of::cu_seqlens_k},
     {"block_table", &Of::block_table}}};

inline constexpr std::array<NamedTensor<BlockList>, 3> kListTensors = {
    {{"block_list.row_offsets", &BlockList::row_offsets},
     {"block_list.block_index", &BlockList::block_index},
     {"block_list.block_full", &BlockList::block_full}}};

/// Calls f(name, tensor) for the options of an AttentionSpec or a Problem.
template <class Of, class F>
void for_options(const Of& of, F f) {
  for (const auto& [name, member] : kOptionTensors<Of>) f(name, of.*member);
  for (const auto& [name, member] : kListTensors) f(name, of.block_list.*member);
}

/// Calls f(name, tensor) for the operands of a pass: of a Problem for those of both passes.
template <class Of, class F>
void for_operands(const Of& of, F f) {
  for (const auto& [name, member] : kForwardTensors<Of>) f(name, of.*member);
  if constexpr (requires { &Of::d_o; }) {
    for (const auto& [name, member] : kGradientTensors<Of>) f(name, of.*member);
  }
}

}  // namespace tilewise
