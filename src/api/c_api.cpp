/// The C API: C structs in, the C++ verbs, codes and messages out. No exception passes this file.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "api/c_structs.h"
#include "api/execute.h"
#include "tilewise/selection.h"
#include "tilewise/tilewise.h"

namespace {

using namespace tilewise::c_api;

thread_local std::string last_error;

tw_score_tile c_tile(const tilewise::ScoreTile& x) {
  return {sizeof(tw_score_tile), x.scores, x.row_stride, x.rows, x.cols, x.b, x.h, x.i0, x.j0};
}

/// The spec and what it points to.
struct Spec {
  tilewise::AttentionSpec spec;
  tilewise::ScoreMod mod;
  std::vector<std::string> score_names;  ///< in the caller's order

  explicit Spec(const tw_spec* given) {
    const tw_spec s = known(given, "spec");
    if (s.has_scale != 0) spec.scale = s.scale;
    require_within("spec.causal", s.causal, TW_CAUSAL_TOP_LEFT, "a tw_causal, 0 to 2");
    require_within("spec.precision", s.precision, TW_REFINED, "a tw_precision, 0 to 2");
    spec.causal = static_cast<tilewise::Causal>(s.causal);
    if (s.has_window_left != 0) spec.window.left = s.window_left;
    if (s.has_window_right != 0) spec.window.right = s.window_right;
    spec.softcap = s.softcap;
    spec.dropout = {s.dropout_p, s.dropout_seed, s.dropout_offset};
    spec.dropout_counter = tensor("dropout_counter", s.dropout_counter);
    spec.mask = tensor("mask", s.mask);
    spec.bias = tensor("bias", s.bias);
    spec.alibi_slopes = tensor("alibi_slopes", s.alibi_slopes);
    spec.sinks = tensor("sinks", s.sinks);
    spec.key_lengths = tensor("key_lengths", s.key_lengths);
    spec.cu_seqlens_q = tensor("cu_seqlens_q", s.cu_seqlens_q);
    spec.cu_seqlens_k = tensor("cu_seqlens_k", s.cu_seqlens_k);
    spec.block_table = tensor("block_table", s.block_table);
    spec.max_seqlen_q = s.max_seqlen_q;
    spec.max_seqlen_k = s.max_seqlen_k;
    spec.block_list = {tensor("block_row_offsets", s.block_row_offsets),
                       tensor("block_index", s.block_index), tensor("block_full", s.block_full),
                       s.block_q, s.block_k};
    spec.deterministic = s.deterministic != 0;
    spec.precision = static_cast<tilewise::Precision>(s.precision);
    if (s.score_mod != nullptr) set_score_mod(known(s.score_mod, "score_mod"));
    spec.mask_expression = expression("mask_expression", s.mask_expression);
    spec.score_expression = expression("score_expression", s.score_expression);
    if (s.score_expression != nullptr) {
      const tw_expression e = known(s.score_expression, "score_expression");
      score_names.assign(e.names, e.names + e.count);
    }
  }
  Spec(const Spec&) = delete;
  Spec& operator=(const Spec&) = delete;

 private:
  void set_score_mod(const tw_score_mod& m) {
    if (m.apply != nullptr) {
      mod.apply = [m](const tilewise::ScoreTile& x) {
        const tw_score_tile tile = c_tile(x);
        m.apply(m.context, &tile);
      };
    }
    if (m.derivative != nullptr) {
      mod.derivative = [m](const tilewise::ScoreTile& x, float* grad) {
        const tw_score_tile tile = c_tile(x);
        m.derivative(m.context, &tile, grad);
      };
    }
    spec.score_mod = &mod;
  }
};

class CAllocator final : public tilewise::Allocator {
 public:
  explicit CAllocator(const tw_allocator& a) : a_(a) {
    require_function("allocator.allocate", a.allocate != nullptr);
    require_function("allocator.release", a.release != nullptr);
  }
  void* allocate(std::int64_t bytes, tilewise::Device d, void* stream) override {
    void* data = a_.allocate(a_.context, bytes, static_cast<std::int32_t>(d.type), d.index, stream);
    if (data == nullptr) {
      throw tilewise::OutOfMemory("the caller's allocator has no " + std::to_string(bytes) +
                                  " bytes on " + tilewise::device_name(d));
    }
    return data;
  }
  void release(void* data, std::int64_t bytes, tilewise::Device d, void* stream) noexcept override {
    a_.release(a_.context, data, bytes, static_cast<std::int32_t>(d.type), d.index, stream);
  }

 private:
  tw_allocator a_;
};

class CExecutor final : public tilewise::Executor {
 public:
  explicit CExecutor(const tw_executor& e) : e_(e) {
    require_function("executor.parallel_for", e.parallel_for != nullptr);
    if (e.concurrency < 1) {
      throw tilewise::InvalidArgument("executor.concurrency is " + std::to_string(e.concurrency) +
                                      ": expected at least 1");
    }
  }
  int concurrency() const override { return e_.concurrency; }
  void parallel_for(std::int64_t tasks, const Body& body) override {
    Call call{body, tasks, e_.concurrency};
    e_.parallel_for(e_.context, tasks, run_body, &call);
    if (call.error) std::rethrow_exception(call.error);
    if (call.ran != tasks) {
      throw tilewise::InvalidArgument("executor.parallel_for ran " +
                                      std::to_string(call.ran.load()) + " of " +
                                      std::to_string(tasks) + " tasks: expected each of them once");
    }
  }

 private:
  struct Call {
    const Body& body;
    std::int64_t tasks;
    std::int32_t workers;
    std::atomic<std::int64_t> ran{0};
    std::atomic_flag failed{};  ///< bodies run at the same time: the first to fail sets `error`
    std::exception_ptr error{};
  };
  /// NOTE: the caller's pool is C; an exception must not unwind through it.
  static void run_body(void* context, std::int64_t task, std::int32_t worker) {
    auto* call = static_cast<Call*>(context);
    try {
      if (task < 0 || task >= call->tasks || worker < 0 || worker >= call->workers) {
        throw tilewise::InvalidArgument("executor.parallel_for gave task " + std::to_string(task) +
                                        " and worker " + std::to_string(worker) +
                                        ": expected less than " + std::to_string(call->tasks) +
                                        " and " + std::to_string(call->workers));
      }
      call->body(task, worker);
      call->ran.fetch_add(1, std::memory_order_relaxed);
    } catch (...) {
      if (!call->failed.test_and_set()) call->error = std::current_exception();
    }
  }
  tw_executor e_;
};

/// The launch and what it points to.
struct Launch {
  tilewise::Launch launch;
  tilewise::Choice choice;
  std::optional<CAllocator> allocator;
  std::optional<CExecutor> executor;

  explicit Launch(const tw_launch* given) {
    const tw_launch l = known(given, "launch");
    launch.stream = l.stream;
    launch.workspace = l.workspace;
    launch.workspace_bytes = l.workspace_bytes;
    if (l.allocator != nullptr)
      launch.allocator = &allocator.emplace(known(l.allocator, "allocator"));
    if (l.executor != nullptr) launch.executor = &executor.emplace(known(l.executor, "executor"));
    if (l.implementation != nullptr) choice.implementation = l.implementation;
    if (l.kernel != nullptr) choice.kernel = l.kernel;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
};

tilewise::ForwardTensors tensors(const tw_forward_args* given, const Spec& /*spec*/) {
  const tw_forward_args a = known(given, "args");
  return {tensor("q", a.q), tensor("k", a.k),     tensor("v", a.v),
          tensor("o", a.o), tensor("lse", a.lse), {a.saved, a.saved_bytes}};
}

tilewise::BlockSelection selection(const tw_select_args& a) {
  require_within("args.rule", a.rule, TW_BLOCKS_ABOVE, "a tw_block_rule, 0 to 2");
  require_within("args.scorer", a.scorer, TW_SCORES_VERTICAL_SLASH, "a tw_block_scorer, 0 to 2");
  return {.block_q = a.block_q,
          .block_k = a.block_k,
          .weights = {a.weight_mean, a.weight_maximum, a.weight_minimum, a.weight_variance},
          .scale = a.has_scale != 0 ? std::optional(a.scale) : std::nullopt,
          .causal = a.causal != 0,
          .key_lengths = tensor("key_lengths", a.key_lengths),
          .rule = static_cast<tilewise::BlockRule>(a.rule),
          .count = a.count,
          .mass = a.mass,
          .threshold = a.threshold,
          .keep_diagonal = a.drop_diagonal == 0,
          .keep_first = a.drop_first == 0,
          .scorer = static_cast<tilewise::BlockScorer>(a.scorer),
          .stride = a.stride != 0 ? a.stride : tilewise::BlockSelection{}.stride};
}

/// The caller's gradients of captured tensors in the order of the formula's first use.
std::vector<tilewise::Tensor> capture_gradients(const tw_backward_args& a, const Spec& spec) {
  if (a.dcaptures_count == 0) return {};
  const auto count = static_cast<std::int64_t>(spec.score_names.size());
  if (a.dcaptures_count != count || a.dcaptures == nullptr) {
    throw tilewise::InvalidArgument("args.dcaptures_count is " + std::to_string(a.dcaptures_count) +
                                    ": expected 0 or score_expression.count, " +
                                    std::to_string(count) + ", and dcaptures");
  }
  std::vector<tilewise::Tensor> made;
  for (const tilewise::Captured& capture : spec.spec.score_expression.captures()) {
    const auto at = std::find(spec.score_names.begin(), spec.score_names.end(), capture.name());
    made.push_back(tensor("dcaptures", a.dcaptures[at - spec.score_names.begin()]));
  }
  return made;
}

tilewise::BackwardTensors tensors(const tw_backward_args* given, const Spec& spec) {
  const tw_backward_args a = known(given, "args");
  return {tensor("q", a.q),         tensor("k", a.k),          tensor("v", a.v),
          tensor("o", a.o),         tensor("lse", a.lse),      tensor("d_o", a.d_o),
          tensor("d_lse", a.d_lse), tensor("dq", a.dq),        tensor("dk", a.dk),
          tensor("dv", a.dv),       tensor("dbias", a.dbias),  tensor("dsinks", a.dsinks),
          {a.saved, a.saved_bytes}, capture_gradients(a, spec)};
}

/// Where a plan goes is judged before anything is launched. CONTRACT 19.
void check_plan(const tw_plan* plan) {
  if (plan != nullptr) check_size("plan", plan->struct_size, sizeof(tw_plan));
}

void give(const tilewise::Plan& from, tw_plan* to) {
  if (to == nullptr) return;
  tw_plan p{};
  p.struct_size = to->struct_size;
  std::strncpy(p.kernel, from.kernel.c_str(), sizeof p.kernel - 1);
  std::strncpy(p.implementation, from.implementation.c_str(), sizeof p.implementation - 1);
  p.block_m = from.block_m;
  p.block_n = from.block_n;
  p.splits = from.splits;
  p.threads = from.threads;
  p.workspace_bytes = from.workspace_bytes;
  p.saved_bytes = from.saved_bytes;
  p.live_bytes = from.live_bytes();
  p.peak_bytes = from.peak_bytes();
  p.flops = from.flops;
  p.bytes_moved = from.bytes_moved;
  p.predicted_ms = from.predicted_ms;
  std::memcpy(to, &p, std::min(to->struct_size, sizeof p));
}

tilewise::PrefixTensors tensors(const tw_prefix_args* args) {
  const tw_prefix_args a = known(args, "args");
  return {.q = tensor("q", a.q),
          .k_prefix = tensor("k_prefix", a.k_prefix),
          .v_prefix = tensor("v_prefix", a.v_prefix),
          .k = tensor("k", a.k),
          .v = tensor("v", a.v),
          .o = tensor("o", a.o),
          .lse = tensor("lse", a.lse)};
}

tw_status failed(tw_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

template <class Verb>
tw_status guarded(const Verb& verb) noexcept {
  try {
    verb();
    return TW_OK;
  } catch (const tilewise::InvalidArgument& e) {
    return failed(TW_INVALID_ARGUMENT, e.what());
  } catch (const tilewise::Unsupported& e) {
    return failed(TW_UNSUPPORTED, e.what());
  } catch (const tilewise::OutOfMemory& e) {
    return failed(TW_OUT_OF_MEMORY, e.what());
  } catch (const std::bad_alloc&) {
    return failed(TW_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const tilewise::DeviceError& e) {
    return failed(TW_DEVICE_ERROR, e.what());
  } catch (const tilewise::CompileError& e) {
    return failed(TW_COMPILE_ERROR, e.what());
  } catch (const std::exception& e) {
    return failed(TW_INTERNAL_ERROR, e.what());
  } catch (...) {
    return failed(TW_INTERNAL_ERROR, "an exception of an unknown type");
  }
}

template <class Args>
tw_status plan_only(const Args* args, const tw_spec* spec, const tw_launch* launch, tw_plan* plan) {
  return guarded([&] {
    check_plan(plan);
    const Spec s(spec);
    const Launch l(launch);
    give(tilewise::plan(tensors(args, s), s.spec, l.choice), plan);
  });
}

template <class Args>
tw_status explain_only(const Args* args, const tw_spec* spec, const tw_launch* launch,
                       char** text) {
  return guarded([&] {
    if (text == nullptr)
      throw tilewise::InvalidArgument("text is NULL: expected a place for the string");
    const Spec s(spec);
    const Launch l(launch);
    const std::string words = tilewise::explain(tilewise::plan(tensors(args, s), s.spec, l.choice));
    *text = static_cast<char*>(std::malloc(words.size() + 1));
    if (*text == nullptr) throw std::bad_alloc();
    std::memcpy(*text, words.c_str(), words.size() + 1);
  });
}

}  // namespace

tw_status tw_forward(const tw_forward_args* args, const tw_spec* spec, const tw_launch* launch,
                     tw_plan* plan) {
  return guarded([&] {
    check_plan(plan);
    const Spec s(spec);
    const Launch l(launch);
    give(*tilewise::execute(tensors(args, s), s.spec, l.launch, l.choice), plan);
  });
}

tw_status tw_backward(const tw_backward_args* args, const tw_spec* spec, const tw_launch* launch,
                      tw_plan* plan) {
  return guarded([&] {
    check_plan(plan);
    const Spec s(spec);
    const Launch l(launch);
    give(*tilewise::execute(tensors(args, s), s.spec, l.launch, l.choice), plan);
  });
}

tw_status tw_append(const tw_append_args* args, const tw_launch* launch) {
  return guarded([&] {
    const tw_append_args a = known(args, "args");
    const Launch l(launch);
    tilewise::append({.k = tensor("k", a.k),
                      .v = tensor("v", a.v),
                      .k_cache = tensor("k_cache", a.k_cache),
                      .v_cache = tensor("v_cache", a.v_cache),
                      .lengths = tensor("lengths", a.lengths),
                      .new_lengths = tensor("new_lengths", a.new_lengths),
                      .skipped = tensor("skipped", a.skipped),
                      .q = tensor("q", a.q),
                      .rotated_q = tensor("rotated_q", a.rotated_q)},
                     {.block_table = tensor("block_table", a.block_table),
                      .cu_seqlens = tensor("cu_seqlens", a.cu_seqlens),
                      .max_seqlen = a.max_seqlen,
                      .rotary = {.cos = tensor("rotary_cos", a.rotary_cos),
                                 .sin = tensor("rotary_sin", a.rotary_sin),
                                 .interleaved = a.rotary_interleaved != 0,
                                 .positions = tensor("rotary_positions", a.rotary_positions),
                                 .one_query_position = a.rotary_one_query_position != 0}},
                     l.launch);
  });
}

tw_status tw_forward_prefix(const tw_prefix_args* args, const tw_spec* spec,
                            const tw_launch* launch, tw_plan* plan) {
  return guarded([&] {
    check_plan(plan);
    const Spec s(spec);
    give(as_one(tilewise::forward_prefix(tensors(args), s.spec, Launch(launch).launch)), plan);
  });
}

tw_status tw_plan_forward_prefix(const tw_prefix_args* args, const tw_spec* spec,
                                 const tw_launch* /*launch*/, tw_plan* plan) {
  return guarded([&] {
    check_plan(plan);
    give(as_one(tilewise::plan_prefix(tensors(args), Spec(spec).spec)), plan);
  });
}

tw_status tw_select_blocks(const tw_select_args* args, const tw_launch* launch) {
  return guarded([&] {
    const tw_select_args a = known(args, "args");
    const tilewise::BlockList list{.row_offsets = tensor("block_row_offsets", a.block_row_offsets),
                                   .block_index = tensor("block_index", a.block_index)};
    tilewise::select_blocks(tensor("q", a.q), tensor("k", a.k), selection(a), list,
                            Launch(launch).launch);
  });
}

tw_status tw_selected_blocks_bound(const tw_select_args* args, int64_t* entries) {
  return guarded([&] {
    const tw_select_args a = known(args, "args");
    if (entries == nullptr)
      throw tilewise::InvalidArgument("entries is NULL: expected a place for the number");
    *entries = tilewise::selected_blocks_bound(tensor("q", a.q), tensor("k", a.k), selection(a));
  });
}

tw_status tw_plan_forward(const tw_forward_args* args, const tw_spec* spec, const tw_launch* launch,
                          tw_plan* plan) {
  return plan_only(args, spec, launch, plan);
}

tw_status tw_plan_backward(const tw_backward_args* args, const tw_spec* spec,
                           const tw_launch* launch, tw_plan* plan) {
  return plan_only(args, spec, launch, plan);
}

tw_status tw_explain_forward(const tw_forward_args* args, const tw_spec* spec,
                             const tw_launch* launch, char** text) {
  return explain_only(args, spec, launch, text);
}

tw_status tw_explain_backward(const tw_backward_args* args, const tw_spec* spec,
                              const tw_launch* launch, char** text) {
  return explain_only(args, spec, launch, text);
}

void tw_free_string(char* text) { std::free(text); }

const char* tw_last_error(void) { return last_error.c_str(); }

const char* tw_version(void) { return tilewise::version(); }
