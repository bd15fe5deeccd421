#include "calls.h"

#include <cstddef>
#include <cstdint>

#include "name.h"
#include "run.h"
#include "tilewise/error.h"
#include "torch_side.h"

namespace tilewise::python {
namespace {

/// (dq, dk, dv, None) of a call that record_plain() kept; the last is the spec's. None: somebody
/// looks on. saved: q, k, v, o, lse.
nb::object plain_backward(const nb::tuple& saved, nb::handle d_o, const nb::tuple& spec) {
  if (is_grad_enabled() || in_forward_mode()) return nb::none();
  const nb::handle q = saved[0], k = saved[1], v = saved[2], o = saved[3], lse = saved[4];
  if (!is_plain_call(q, k, v, spec) || !is_plain(o) || !is_plain(lse)) return nb::none();
  if (is_special(d_o)) return nb::none();
  Call call(spec);
  const Tensor q_view = call.arrays.take(q, "q"), k_view = call.arrays.take(k, "k"),
               v_view = call.arrays.take(v, "v");
  if (q_view.device.type == DeviceType::cuda) make_context_current();
  const nb::object dq = empty_like(q, q_view), dk = empty_like(k, k_view),
                   dv = empty_like(v, v_view);
  run_pass(call,
           BackwardTensors{.q = call.rows_of(q_view),
                           .k = call.rows_of(k_view),
                           .v = call.rows_of(v_view),
                           .o = call.values(o, "o"),
                           .lse = call.statistics(lse, "lse"),
                           .d_o = call.values(d_o, "d_o"),
                           .dq = call.values(dq, "dq"),
                           .dk = call.values(dk, "dk"),
                           .dv = call.values(dv, "dv")},
           q);
  return nb::make_tuple(dq, dk, dv, nb::none());
}

}  // namespace

ForwardTensors forward_tensors(Call& call, const nb::tuple& inputs, const nb::tuple& outputs) {
  return {.q = call.values(inputs[0], "q"),
          .k = call.values(inputs[1], "k"),
          .v = call.values(inputs[2], "v"),
          .o = call.values(outputs[0], "o"),
          .lse = call.statistics(outputs[1], "lse")};
}

BackwardTensors backward_tensors(Call& call, const nb::tuple& inputs, const nb::tuple& outputs) {
  return {.q = call.values(inputs[0], "q"),
          .k = call.values(inputs[1], "k"),
          .v = call.values(inputs[2], "v"),
          .o = call.values(inputs[3], "o"),
          .lse = call.statistics(inputs[4], "lse"),
          .d_o = call.values(inputs[5], "d_o"),
          .d_lse = call.statistics(inputs[6], "d_lse"),
          .dq = call.values(outputs[0], "dq"),
          .dk = call.values(outputs[1], "dk"),
          .dv = call.values(outputs[2], "dv"),
          .dbias = call.arrays.take(outputs[3], "dbias"),
          .dsinks = call.arrays.take(outputs[4], "dsinks"),
          .dcaptures = call.capture_gradients(outputs[5])};
}

void forward_call(const nb::tuple& inputs, const nb::tuple& outputs, const nb::tuple& spec) {
  Call call(spec);
  run_pass(call, forward_tensors(call, inputs, outputs), inputs[0]);
}

void backward_call(const nb::tuple& inputs, const nb::tuple& outputs, const nb::tuple& spec) {
  Call call(spec);
  run_pass(call, backward_tensors(call, inputs, outputs), inputs[0]);
}

nb::tuple new_forward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec,
                      bool with_lse) {
  nb::tuple outputs = empty_outputs(q, v, spec, with_lse);
  forward_call(nb::make_tuple(q, k, v), outputs, spec);
  return outputs;
}

nb::tuple new_plain_forward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec,
                            bool with_lse) {
  Call call(spec);
  ForwardTensors tensors;
  Tensor q_view, v_view;
  try {
    q_view = call.arrays.take(q, "q");
    v_view = call.arrays.take(v, "v");
  } catch (const InvalidArgument&) {
    refuse_nested(q);
    throw;
  }
  if (q_view.rank < 3) return new_forward(q, k, v, spec, with_lse);
  tensors.q = call.rows_of(q_view);
  tensors.k = call.values(k, "k");
  tensors.v = call.rows_of(v_view);
  const auto v_dim = v_view.sizes[static_cast<std::size_t>(v_view.rank - 1)];
  const nb::object o = empty_output_like(q, q_view, v, v_dim);
  const bool no_batch = call.packed && q_view.rank == 3;
  const nb::object lse = with_lse ? empty_statistics_like(q, tensors.q, no_batch) : nb::none();
  tensors.o = call.values(o, "o");
  tensors.lse = call.statistics(lse, "lse");
  run_pass(call, tensors, q);
  return nb::make_tuple(o, lse);
}

nb::object plain_forward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec,
                         bool with_lse) {
  if (!is_plain_call(q, k, v, spec)) return nb::none();
  if (is_recorded(q, k, v, spec)) return nb::bool_(has_tensors(spec));
  return new_plain_forward(q, k, v, spec, with_lse);
}

nb::object record_plain(nb::handle context, nb::handle q, nb::handle k, nb::handle v,
                        const nb::tuple& spec) {
  static const Name save_for_backward("save_for_backward"), kept_spec("spec");
  const nb::tuple made = new_plain_forward(q, k, v, spec, true);
  const nb::object o = made[0], lse = made[1];
  save_for_backward.call(context, {q, k, v, o, lse});
  kept_spec.set(context, spec);
  return o;
}

nb::object differentiate_plain(nb::handle context, nb::handle d_o) {
  static const Name saved_tensors("saved_tensors"), kept_spec("spec"), function("_forward_cls"),
      backward("backward");
  const auto saved = nb::borrow<nb::tuple>(saved_tensors.of(context));
  const auto spec = nb::borrow<nb::tuple>(kept_spec.of(context));
  nb::object gradients = plain_backward(saved, d_o, spec);
  return gradients.is_none() ? backward.call(function.of(context), {context, d_o}) : gradients;
}

}  // namespace tilewise::python
