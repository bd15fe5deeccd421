#include "cuda/kernels/copied/row.h"

#include <array>
#include <span>
#include <string>
#include <vector>

#include "cuda/driver/memory.h"
#include "cuda/host/common.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/fwd_sm90/row.h"
#include "cuda/kernels/rows/copy.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

/// Rows of copies are multiples of 16 bytes.
constexpr std::int64_t kUnitElems = 8;

/// The row that runs on the copies, and what it refuses.
struct Inner {
  const KernelRow& row;
  std::string (*refusal)(const Problem& problem, const Hardware& machine);
};
const Inner& inner(const KernelRow& row) { return *static_cast<const Inner*>(row.config); }

struct Copied {
  const char* name;
  Tensor Problem::*tensor;
  bool written;
};
constexpr std::array<Copied, 4> kForward = {{{"Q copy", &Problem::q, false},
                                             {"K copy", &Problem::k, false},
                                             {"V copy", &Problem::v, false},
                                             {"O copy", &Problem::o, true}}};
constexpr std::array<Copied, 8> kBackward = {{{"Q copy", &Problem::q, false},
                                              {"K copy", &Problem::k, false},
                                              {"V copy", &Problem::v, false},
                                              {"O copy", &Problem::o, false},
                                              {"dO copy", &Problem::d_o, false},
                                              {"dQ copy", &Problem::dq, true},
                                              {"dK copy", &Problem::dk, true},
                                              {"dV copy", &Problem::dv, true}}};
std::span<const Copied> copied(Pass pass) {
  if (pass == Pass::forward) return kForward;
  return kBackward;
}

/// The shape of a copy: rows end with zeros where the caller's are no multiple of 16 bytes.
std::array<std::int64_t, 4> copy_shape(const Tensor& t) {
  return {t.sizes[0], t.sizes[1], t.sizes[2], round_up(t.sizes[3], kUnitElems)};
}

/// The problem on copies that lie in `workspace`, without data where that is null.
Problem on_copies(const Problem& p, WorkspaceCutter& workspace, bool planned) {
  Problem copies = p;
  for (const Copied& c : copied(p.pass)) {
    const Tensor& t = p.*c.tensor;
    const std::array<std::int64_t, 4> shape = copy_shape(t);
    const std::int64_t elems = shape[0] * shape[1] * shape[2] * shape[3];
    void* const data = planned ? nullptr : workspace.take<unsigned short>(elems);
    copies.*c.tensor =
        Tensor::contiguous(data, t.dtype, {shape[0], shape[1], shape[2], shape[3]}, t.device);
  }
  copies.head_dim = round_up(p.head_dim, kUnitElems);
  copies.head_dim_v = round_up(p.head_dim_v, kUnitElems);
  return copies;
}
Problem planned_copies(const Problem& p) {
  WorkspaceCutter nothing(nullptr);
  return on_copies(p, nothing, true);
}

std::string refusal(const Inner& on_them, const Problem& p, const Problem& copies,
                    const Hardware& machine) {
  if (p.dtype != DType::bfloat16 && p.dtype != DType::float16) {
    return std::string(dtype_name(p.dtype)) +
           " is not supported by this kernel (bfloat16, float16)";
  }
  if (p.packed) return "packed sequences are not supported by this kernel";
  if (p.paged) return "paged K and V are not supported by this kernel";
  std::string reason = on_them.refusal(copies, machine);
  if (!reason.empty()) return reason;
  if (on_them.refusal(p, machine).empty()) {
    return std::string(on_them.row.name) + " takes these tensors without a copy";
  }
  return "";
}

/// What the row on copies decides is what the row that runs on them decides.
Preparation prepare(const KernelRow& row, const Problem& p, const Hardware& machine) {
  const Inner& on_them = inner(row);
  const Problem copies = planned_copies(p);
  std::string reason = refusal(on_them, p, copies, machine);
  if (!reason.empty()) return reason;
  Preparation prepared = on_them.row.prepare(on_them.row, copies, machine);
  if (std::holds_alternative<std::string>(prepared)) return prepared;
  Cost& cost = std::get<Prepared>(prepared).cost;
  const std::vector<MemoryPart> of_kernel = std::move(cost.memory);
  cost.memory.clear();
  double bytes = 0.0;
  for (const Copied& c : copied(p.pass)) {
    const Tensor& t = p.*c.tensor;
    cost.memory.push_back(memory_part(c.name, MemoryItem::Role::workspace, t.dtype, copy_shape(t)));
    bytes += static_cast<double>(t.numel() * dtype_bytes(t.dtype) + cost.memory.back().bytes);
  }
  cost.memory.insert(cost.memory.end(), of_kernel.begin(), of_kernel.end());
  // copy_rows takes an element a thread: it reaches this share of the memory's rate.
  constexpr double kRate = 0.35;
  cost.ms += host::kKernelMs * static_cast<double>(copied(p.pass).size() + 1) +
             1e-6 * bytes / (kRate * machine.bandwidth_gbps);
  cost.bytes_moved += bytes;
  return prepared;
}

/// The columns of a copy that the caller's tensor has.
Tensor without_padding(Tensor copy, const Tensor& like) {
  copy.sizes[3] = like.sizes[3];
  return copy;
}

void run(const KernelRow& row, const Problem& p, const Context& context) {
  WorkspaceCutter workspace(context.workspace);
  const Problem copies = on_copies(p, workspace, false);
  for (const Copied& c : copied(p.pass)) {
    if (c.written) continue;
    const Tensor& from = p.*c.tensor;
    const Tensor& to = copies.*c.tensor;
    if (to.sizes[3] != from.sizes[3]) {
      fill_bytes(to.data, 0, to.numel() * dtype_bytes(to.dtype), p.device.index, context.stream);
    }
    copy_elements(from, without_padding(to, from), context.stream);
  }
  const KernelRow& on_them = inner(row).row;
  on_them.run(on_them, copies,
              {.plan = context.plan,
               .decision = context.decision,
               .workspace = workspace.take<std::byte>(0),
               .stream = context.stream,
               .executor = context.executor});
  for (const Copied& c : copied(p.pass)) {
    if (!c.written) continue;
    copy_elements(without_padding(copies.*c.tensor, p.*c.tensor), p.*c.tensor, context.stream);
  }
}

/// On an H200 16 heads of 8,192 rows of dim 132 took 0.55 and 0.52 of the sm_80 rows' time.
std::string on_trial(const KernelRow& /*row*/, const Problem& p) {
  constexpr double kTimed = 1 << 28;  // pairs of query and key
  const double pairs =
      static_cast<double>(p.batch * p.heads_q * p.seq_q) * static_cast<double>(p.seq_k);
  return pairs < kTimed ? "no card has timed problems of fewer than 2^28 pairs" : "";
}

constexpr Inner kForwardOnCopies = {kFlashForwardSm90, fwd_sm90_refusal};
constexpr Inner kBackwardOnCopies = {kFlashBackwardSm90, bwd_sm90_refusal};

constexpr KernelRow make_row(const char* name, Pass pass, const Inner& on_them) {
  return {.name = name,
          .implementation = "flash",
          .device = DeviceType::cuda,
          .pass = pass,
          .summary = "the Hopper kernel on copies, for tensors that TMA cannot reach",
          .prepare = prepare,
          .run = run,
          .config = &on_them,
          .on_trial = on_trial};
}

}  // namespace

const KernelRow kFlashForwardCopiedSm90 =
    make_row("flash_fwd_sm90_copied", Pass::forward, kForwardOnCopies);
const KernelRow kFlashBackwardCopiedSm90 =
    make_row("flash_bwd_sm90_copied", Pass::backward, kBackwardOnCopies);

}  // namespace tilewise::cuda
