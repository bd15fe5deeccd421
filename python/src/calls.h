/// The passes as Python calls them: into the caller's outputs, or into new torch tensors.
#pragma once

#include <nanobind/nanobind.h>

#include "spec.h"
#include "tilewise/attention.h"

namespace tilewise::python {

namespace nb = nanobind;

/// inputs: q, k, v. outputs: o, lse.
ForwardTensors forward_tensors(Call& call, const nb::tuple& inputs, const nb::tuple& outputs);
void forward_call(const nb::tuple& inputs, const nb::tuple& outputs, const nb::tuple& spec);

/// inputs: q, k, v, o, lse, d_o, d_lse. outputs: dq, dk, dv, dbias, dsinks, (dcapture, ...).
BackwardTensors backward_tensors(Call& call, const nb::tuple& inputs, const nb::tuple& outputs);
void backward_call(const nb::tuple& inputs, const nb::tuple& outputs, const nb::tuple& spec);

/// (o, lse) of torch tensors, made here; without with_lse, None stands for lse.
nb::tuple new_forward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec,
                      bool with_lse);

/// new_forward() of plain tensors, whose views tell what the outputs are like.
nb::tuple new_plain_forward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec,
                            bool with_lse);

/// new_plain_forward() of a plain call. None: the call is not plain. A bool: autograd records it,
/// and whether the spec has tensors.
nb::object plain_forward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec,
                         bool with_lse);

/// The forward of the torch.autograd.Function for plain tensors and O alone of a spec without
/// tensors: keeps in the node `context` what differentiate_plain() reads, and returns O.
nb::object record_plain(nb::handle context, nb::handle q, nb::handle k, nb::handle v,
                        const nb::tuple& spec);

/// Its backward: (dq, dk, dv, None). Where somebody looks on, that of the Function's class.
nb::object differentiate_plain(nb::handle context, nb::handle d_o);

}  // namespace tilewise::python
