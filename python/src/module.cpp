/// tilewise._native: the C++ verbs for the package's Python side. Arguments come as flat tuples
/// (_spec.py); shapes and meanings are those of include/tilewise/attention.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "api/execute.h"
#include "api/plan_cache.h"
#include "append.h"
#include "block_map.h"
#include "select.h"
#include "spec.h"
#include "tilewise/attention.h"
#include "tilewise/kv_cache.h"
#include "torch_side.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

/// Runs something with workspace and stream from where q lives.
template <class Run>
void with_launch(const Tensor& q, nb::handle object, Run run) {
  const ExchangeApi* api = exchange_api(object);
  std::optional<ExchangeAllocator> allocator;
  Launch launch;
  if (api != nullptr && q.device.type == DeviceType::cuda) {
    launch.stream = current_stream(*api, q.device);
    launch.allocator = &allocator.emplace(*api);
  }
  const nb::gil_scoped_release unlocked;
  run(launch);
}

/// True where the call is over before another thread could take the interpreter lock, whose way out
/// and back costs half a microsecond.
bool is_brief(const Tensor& q, const Tensor& k) {
  constexpr std::int64_t kMostElements = 1024;
  return q.device.type == DeviceType::cpu && q.numel() <= kMostElements &&
         k.numel() <= kMostElements;
}

template <class Tensors>
void run_pass(const Call& call, const Tensors& tensors, nb::handle q) {
  if (is_brief(tensors.q, tensors.k)) {
    tilewise::execute(tensors, call.spec, {}, call.choice);
    return;
  }
  with_launch(tensors.q, q, [&](const Launch& launch) {
    tilewise::execute(tensors, call.spec, launch, call.choice);
  });
}

/// inputs: q, k, v. outputs: o, lse.
ForwardTensors forward_tensors(Call& call, const nb::tuple& inputs, const nb::tuple& outputs) {
  return {.q = call.values(inputs[0], "q"),
          .k = call.values(inputs[1], "k"),
          .v = call.values(inputs[2], "v"),
          .o = call.values(outputs[0], "o"),
          .lse = call.statistics(outputs[1], "lse")};
}

/// inputs: q, k, v, o, lse, d_o, d_lse. outputs: dq, dk, dv, dbias, dsinks, (dcapture, ...).
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

/// (o, lse) of torch tensors, made here; without with_lse, None stands for lse.
nb::tuple new_forward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec,
                      bool with_lse) {
  nb::tuple outputs = empty_outputs(q, v, spec, with_lse);
  forward_call(nb::make_tuple(q, k, v), outputs, spec);
  return outputs;
}

/// new_forward() of plain tensors, whose views tell what the outputs are like.
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

/// new_forward() of a plain call. None: the call is not plain. A bool: autograd records it, and
/// whether the spec has tensors.
nb::object plain_forward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& spec,
                         bool with_lse) {
  if (!is_plain_call(q, k, v, spec)) return nb::none();
  if (is_recorded(q, k, v, spec)) return nb::bool_(has_tensors(spec));
  return new_plain_forward(q, k, v, spec, with_lse);
}

/// (dq, dk, dv, None) of a plain call that autograd recorded, whose spec has no tensors; the last
/// is the spec's. None: somebody looks on. saved: q, k, v, o, lse.
nb::object plain_backward(const nb::tuple& saved, nb::handle d_o, const nb::tuple& spec) {
  if (is_grad_enabled()) return nb::none();
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

/// inputs: q, k_prefix, v_prefix, k, v. outputs: o, lse.
void forward_prefix_call(const nb::tuple& inputs, const nb::tuple& outputs, const nb::tuple& spec) {
  Call call(spec);
  const auto shared = [&](std::size_t n, const char* name) {
    return values_of(call.arrays.take(inputs[n], name), true, call.heads_first);
  };
  const PrefixTensors tensors{.q = call.values(inputs[0], "q"),
                              .k_prefix = shared(1, "k_prefix"),
                              .v_prefix = shared(2, "v_prefix"),
                              .k = call.values(inputs[3], "k"),
                              .v = call.values(inputs[4], "v"),
                              .o = call.values(outputs[0], "o"),
                              .lse = call.statistics(outputs[1], "lse")};
  with_launch(tensors.q, inputs[0],
              [&](const Launch& launch) { forward_prefix(tensors, call.spec, launch); });
}

Plan plan_call(const nb::tuple& inputs, const nb::tuple& outputs, const nb::tuple& spec) {
  Call call(spec);
  if (nb::len(inputs) == 3) {
    return plan(forward_tensors(call, inputs, outputs), call.spec, call.choice);
  }
  return plan(backward_tensors(call, inputs, outputs), call.spec, call.choice);
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw InvalidArgument("dtype is \"" + name +
                        "\": expected float64, float32, bfloat16 or float16");
}

/// Sizes in the caller's order, type and device of an array: (sizes, "float32", "cpu", 0).
std::tuple<std::vector<std::int64_t>, std::string, bool, int> describe(nb::handle object,
                                                                       const std::string& name) {
  Arrays arrays;
  if (object.is_none()) throw InvalidArgument(name + " is None: expected an array");
  const Tensor t = arrays.take(object, name.c_str());
  return {{t.sizes.begin(), t.sizes.begin() + t.rank},
          std::string(dtype_name(t.dtype)),
          t.device.type == DeviceType::cuda,
          t.device.index};
}

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const InvalidArgument& e) {
      PyErr_SetString(PyExc_ValueError, e.what());
    } catch (const Unsupported& e) {
      PyErr_SetString(PyExc_NotImplementedError, e.what());
    } catch (const OutOfMemory& e) {
      PyErr_SetString(PyExc_MemoryError, e.what());
    } catch (const Error& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what());
    }
  });
}

void bind_plan(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def_prop_ro("backward", [](const Plan& p) { return p.pass == Pass::backward; })
      .def_ro("kernel", &Plan::kernel)
      .def_ro("implementation", &Plan::implementation)
      .def_ro("block_m", &Plan::block_m)
      .def_ro("block_n", &Plan::block_n)
      .def_ro("splits", &Plan::splits)
      .def_ro("threads", &Plan::threads)
      .def_ro("workspace_bytes", &Plan::workspace_bytes)
      .def_ro("flops", &Plan::flops)
      .def_ro("bytes_moved", &Plan::bytes_moved)
      .def_ro("predicted_ms", &Plan::predicted_ms)
      .def_ro("reason", &Plan::reason)
      .def_prop_ro("peak_bytes", &Plan::peak_bytes)
      .def_prop_ro("refusals",
                   [](const Plan& p) {
                     std::vector<std::pair<std::string, std::string>> list;
                     for (const Refusal& r : p.refusals) list.emplace_back(r.kernel, r.reason);
                     return list;
                   })
      .def("__str__", [](const Plan& p) { return explain(p); })
      .def("__repr__", [](const Plan& p) {
        return "<tilewise.Plan " + std::string(pass_name(p.pass)) + " on " + device_name(p.device) +
               ": " + p.kernel + ">";
      });
}

void bind_kernels(nb::module_& m) {
  nb::class_<KernelInfo>(m, "KernelInfo")
      .def_ro("name", &KernelInfo::name)
      .def_ro("implementation", &KernelInfo::implementation)
      .def_prop_ro("device",
                   [](const KernelInfo& k) { return k.device == DeviceType::cpu ? "cpu" : "cuda"; })
      .def_prop_ro("backward", [](const KernelInfo& k) { return k.pass == Pass::backward; })
      .def_ro("summary", &KernelInfo::summary)
      .def("__repr__", [](const KernelInfo& k) { return "<tilewise.KernelInfo " + k.name + ">"; });
  m.def("kernels", &kernels);
}

void bind_torch_side(nb::module_& m) {
  m.def("use_torch", &use_torch);
  m.def("is_plain", &is_plain);
  m.def("is_plain_call", &is_plain_call);
  m.def("empty_outputs", &empty_outputs);
  m.def("empty_gradients", &empty_gradients);
  m.def("is_special", &is_special);
  m.def("new_forward", &new_forward);
  m.def("new_plain_forward", &new_plain_forward);
  m.def("plain_forward", &plain_forward);
  m.def("plain_backward", &plain_backward);
}

}  // namespace
}  // namespace tilewise::python

NB_MODULE(_native, m) {
  using namespace tilewise::python;
  translate_errors();
  bind_plan(m);
  bind_kernels(m);
  bind_torch_side(m);
  m.attr("version") = tilewise::version();
  m.def("forward", &forward_call);
  m.def("backward", &backward_call);
  m.def("plan", &plan_call);
  m.def("append", &append_call);
  m.def("forward_prefix", &forward_prefix_call);
  m.def("select_blocks", &select_call);
  m.def("describe", &describe, nb::arg("array").none(), nb::arg("name"));
  m.def("new_array",
        [](const std::vector<std::int64_t>& sizes, const std::string& dtype, bool cuda, int index) {
          const auto type = cuda ? tilewise::DeviceType::cuda : tilewise::DeviceType::cpu;
          return new_array(sizes, dtype_named(dtype), {type, index});
        });
  m.def("block_map", &block_map);
  m.def("plan_cache_size", &tilewise::plan_cache_size);
}
