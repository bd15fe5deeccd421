/// tilewise._native: the C++ verbs for the package's Python side. Arguments come as flat tuples
/// (_spec.py); shapes and meanings are those of include/tilewise/attention.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "api/plan_cache.h"
#include "append.h"
#include "block_map.h"
#include "calls.h"
#include "name.h"
#include "run.h"
#include "select.h"
#include "spec.h"
#include "tilewise/attention.h"
#include "tilewise/kv_cache.h"
#include "torch_side.h"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

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
  m.def("record_plain", &record_plain);
  // A function of nanobind is no method of the class that holds it; this makes it one.
  m.attr("differentiate_plain") =
      checked(PyInstanceMethod_New(nb::cpp_function(&differentiate_plain).ptr()));
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
