/// torch's side of a call: who looks on, and uninitialised tensors for outputs. torch is called as
/// Python calls it and nothing of it is linked, so one binary serves every version of it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "tilewise/tensor.h"

namespace tilewise::python {

namespace nb = nanobind;

/// Hands over what is needed of torch, once, before any other function here is called.
/// plain_types: types whose tensors have no behaviour of their own. watches: functions that return
/// something true while somebody looks on. The rest is torch's own: is_grad_enabled, the module
/// torch.autograd.forward_ad, whether a tensor stands for many gradients at once, what makes a
/// GPU's context current in the thread, empty_like, float32.
void use_torch(const nb::tuple& plain_types, const nb::tuple& watches, nb::object grad_enabled,
               nb::object forward_mode, nb::object is_batched, nb::object make_context_current,
               nb::object empty_like, nb::object float32);

/// Ours may be the first work of autograd's thread: any call of CUDA's runtime makes the context
/// current there, which our driver calls do not, and which cuBLAS warns of when it is next.
void make_context_current();

/// True when the numbers of a tensor lie in memory as they are. Those of a conjugate's imaginary
/// part have the other sign there (torch's negative bit); the dispatcher makes plain tensors of
/// them.
bool is_plain(nb::handle tensor);

/// True when nobody but autograd looks on, q, k, v and the spec's tensors are plain, and q has
/// memory.
bool is_plain_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec);

/// True in a level of torch.autograd.forward_ad, where tensors may have tangents.
bool in_forward_mode();

bool is_grad_enabled();

/// True when autograd would record a plain call: it is on, and any of the tensors that have
/// gradients requires one.
bool is_recorded(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec);

/// Whether the spec has any tensor.
bool has_tensors(const nb::tuple& spec);

/// True for the many gradients at once of torch.autograd.grad(is_grads_batched=True), and for
/// tensors that are not plain. None is not special.
bool is_special(nb::handle tensor);

/// Throws Unsupported with advice if q is a nested tensor.
void refuse_nested(nb::handle q);

/// (o, lse) of a forward, uninitialised. o lies in memory as q does; lse is float32: (B, H, S);
/// packed (H, S); of q (B, S, D) without heads, (B, S). Takes tensors of any kind, fake ones too.
/// Without with_lse, None stands for lse.
nb::tuple empty_outputs(nb::handle q, nb::handle v, const nb::tuple& spec, bool with_lse);

/// Uninitialised tensors of plain calls, whose views tell what torch need not be asked. A view has
/// the tensor's own axes.
/// Like the tensor.
nb::object empty_like(nb::handle tensor, const Tensor& view);
/// O: q's sizes with the last one of v.
nb::object empty_output_like(nb::handle q, const Tensor& view, nb::handle v, std::int64_t v_dim);
/// LSE of q's rows with logical axes (B, H, S, D) or (B, S, D): their sizes without D, packed
/// without B.
nb::object empty_statistics_like(nb::handle q, const Tensor& rows, bool packed);

/// (dq, dk, dv, dbias, dsinks, (dcapture, ...)) of a backward, uninitialised; None for what is not
/// needed.
nb::tuple empty_gradients(nb::handle q, nb::handle k, nb::handle v, bool need_dbias,
                          bool need_dsinks, const nb::tuple& need_dcaptures, const nb::tuple& spec);

}  // namespace tilewise::python
