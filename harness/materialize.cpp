#include "harness/materialize.h"

#include <algorithm>
#include <limits>

#include "harness/materialize_state.h"
#include "reference/elements.h"

namespace tilewise {

void CaseState::refresh(std::uint64_t seed) {
  seed_ = seed;
  if (memory_ == nullptr) return;
  fill_inputs();
  if (has_backward_) fill_backward_inputs();
}

void CaseState::fill_inputs() {
  const ForwardTensors& t = host_.forward;
  fill_tensor(t.q, c_.q, seed_, Stream::q);
  fill_tensor(t.k, c_.k, seed_, Stream::k);
  fill_tensor(t.v, c_.v, seed_, Stream::v);
  poke('q', t.q);
  poke('k', t.k);
  poke('v', t.v);
  cover_beyond();
  if (c_.page_size > 0) cover_pages();
  for (Buffer* buffer : inputs_) buffer->upload();
}

void CaseState::fill_backward_inputs() {
  const BackwardTensors& t = host_.backward;
  if (t.d_o.data == nullptr) return;
  fill_tensor(t.d_o, c_.d_o, seed_, Stream::d_o);
  poke('o', t.d_o);
  if (t.d_lse.defined()) {
    Tensor rows = t.d_lse;  // with an axis D of one element
    const auto last = static_cast<std::size_t>(rows.rank);
    rows.sizes[last] = 1;
    rows.strides[last] = 1;
    ++rows.rank;
    fill_tensor(rows, Fill{}, seed_, Stream::d_lse);
  }
  if (c_.packed && c_.packed->tail_q > 0 && c_.d_o_layout != Layout::expanded) {
    cover_rows(t.d_o, 0, c_.seq_q - c_.packed->tail_q, c_.seq_q);
  }
  for (Buffer* buffer : inputs_) buffer->upload();
}

/// Rows [begin, end) along S of batch entry b become what lies beyond a sequence.
void CaseState::cover_rows(const Tensor& tensor, std::int64_t b, std::int64_t begin,
                           std::int64_t end) {
  Random random(seed_, Stream::q, 1);
  const auto axis = static_cast<std::size_t>(tensor.rank - 2);
  const std::int64_t heads = tensor.rank == 4 ? tensor.sizes[1] : 1;
  const std::int64_t head_stride = tensor.rank == 4 ? tensor.strides[1] : 0;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::int64_t n = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int64_t row = b * tensor.strides[0] + h * head_stride + s * tensor.strides[axis];
      for (std::int64_t d = 0; d < tensor.sizes[axis + 1]; ++d, ++n) {
        const double value = c_.beyond_nan ? nan : fill_value(c_.beyond, random, h, s, d, n);
        reference::store(tensor, row + d * tensor.strides[axis + 1], value);
      }
    }
  }
}

void CaseState::cover_beyond() {
  const ForwardTensors& t = host_.forward;
  if (c_.layout == Layout::expanded && !c_.packed) return;
  if (c_.packed) {
    cover_rows(t.q, 0, c_.seq_q - c_.packed->tail_q, c_.seq_q);
  }
  if (c_.page_size > 0) return;
  if (c_.packed) {
    cover_rows(t.k, 0, c_.seq_k - c_.packed->tail_k, c_.seq_k);
    cover_rows(t.v, 0, c_.seq_k - c_.packed->tail_k, c_.seq_k);
  }
  for (std::size_t b = 0; b < c_.key_lengths.size(); ++b) {
    const std::int64_t begin = std::clamp<std::int64_t>(c_.key_lengths[b], 0, c_.seq_k);
    cover_rows(t.k, static_cast<std::int64_t>(b), begin, c_.seq_k);
    cover_rows(t.v, static_cast<std::int64_t>(b), begin, c_.seq_k);
  }
}

/// Unused pages, and used pages past their sequence's length.
void CaseState::cover_pages() {
  const ForwardTensors& t = host_.forward;
  std::vector<std::int64_t> used(static_cast<std::size_t>(t.k.sizes[0]), 0);
  const Tensor& table = host_.spec.block_table;
  for (std::int64_t b = 0; b < c_.batch; ++b) {
    const std::int64_t length = c_.key_lengths[static_cast<std::size_t>(b)];
    for (std::int64_t begin = 0; begin < length; begin += c_.page_size) {
      const double page =
          reference::load(table, b * table.strides[0] + begin / c_.page_size * table.strides[1]);
      used[static_cast<std::size_t>(page)] = std::min(c_.page_size, length - begin);
    }
  }
  for (std::size_t page = 0; page < used.size(); ++page) {
    for (const Tensor* pool : {&t.k, &t.v}) {
      cover_rows(*pool, static_cast<std::int64_t>(page), used[page], c_.page_size);
    }
  }
}

void CaseState::poke(char name, const Tensor& tensor) {
  if (tensor.data == nullptr) return;
  Sizes sizes = tensor.sizes;
  Sizes strides = tensor.strides;
  if (tensor.rank == 3) {
    sizes = {sizes[0], 1, sizes[1], sizes[2]};
    strides = {strides[0], 0, strides[1], strides[2]};
  }
  for (const Poke& poke : c_.pokes) {
    if (poke.tensor != name) continue;
    Sizes end{};
    for (std::size_t n = 0; n < 4; ++n) {
      end[n] = poke.end[n] < 0 ? sizes[n] : poke.end[n] + 1;
      if (poke.begin[n] < 0 || end[n] > sizes[n]) {
        throw InvalidArgument("case: poke= exceeds the axes of " + tensor.describe());
      }
    }
    for (std::int64_t b = poke.begin[0]; b < end[0]; ++b) {
      for (std::int64_t h = poke.begin[1]; h < end[1]; ++h) {
        for (std::int64_t s = poke.begin[2]; s < end[2]; ++s) {
          for (std::int64_t d = poke.begin[3]; d < end[3]; ++d) {
            reference::store(tensor,
                             b * strides[0] + h * strides[1] + s * strides[2] + d * strides[3],
                             poke.value);
          }
        }
      }
    }
  }
}

void CaseState::poison_outputs() {
  for (const Output& output : outputs_) output.buffer->poison();
}

void CaseState::poison_gradients() {
  for (const Output& gradient : gradients_) gradient.buffer->poison();
}

void CaseState::download() {
  for (const Output& output : outputs_) output.buffer->download();
  for (const Output& gradient : gradients_) gradient.buffer->download();
}

void CaseState::set_forward_results(const std::vector<double>& o, const std::vector<double>& lse) {
  make_backward();
  reference::from_double(host_.backward.o, o);
  reference::from_double(host_.backward.lse, lse);
  for (Buffer& buffer : buffers_) {
    if (buffer.name() == "o" || buffer.name() == "lse") buffer.upload();
  }
}

std::string CaseState::damage() {
  std::string names;
  const auto look = [&](const Output& output) {
    Tensor view;
    if (output.slot != nullptr) view = output.slot(host_);
    if (!output.buffer->intact(view)) {
      names += (names.empty() ? "" : ", ") + output.buffer->name();
    }
  };
  for (const Output& output : outputs_) look(output);
  for (const Output& gradient : gradients_) look(gradient);
  return names;
}

MaterializedCase::MaterializedCase(const Case& problem, std::uint64_t seed, DeviceMemory& memory,
                                   MaterializeOptions options)
    : state_(std::make_unique<CaseState>(problem, seed, &memory, memory.device(), options.guards)) {
}
MaterializedCase::MaterializedCase(MaterializedCase&&) noexcept = default;
MaterializedCase& MaterializedCase::operator=(MaterializedCase&&) noexcept = default;
MaterializedCase::~MaterializedCase() = default;

void MaterializedCase::own(std::unique_ptr<DeviceMemory> memory) { state_->own(std::move(memory)); }

const Case& MaterializedCase::problem() const { return state_->problem(); }
const AttentionSpec& MaterializedCase::spec() const { return state_->device().spec; }
const ForwardTensors& MaterializedCase::forward() const { return state_->device().forward; }
const BackwardTensors& MaterializedCase::backward() {
  state_->make_backward();
  return state_->device().backward;
}
const AttentionSpec& MaterializedCase::host_spec() const { return state_->host().spec; }
const ForwardTensors& MaterializedCase::host_forward() const { return state_->host().forward; }
const BackwardTensors& MaterializedCase::host_backward() {
  state_->make_backward();
  return state_->host().backward;
}
void MaterializedCase::refresh(std::uint64_t seed) { state_->refresh(seed); }
void MaterializedCase::poison_outputs() { state_->poison_outputs(); }
void MaterializedCase::poison_gradients() { state_->poison_gradients(); }
void MaterializedCase::download() { state_->download(); }
void MaterializedCase::set_forward_results(const std::vector<double>& o,
                                           const std::vector<double>& lse) {
  state_->set_forward_results(o, lse);
}
std::string MaterializedCase::damage() { return state_->damage(); }

PlannedCase::PlannedCase(const Case& problem, Device device)
    : state_(std::make_unique<CaseState>(problem, 0, nullptr, device, false)) {
  if (problem.page_size == 0) state_->make_backward();
}
PlannedCase::PlannedCase(PlannedCase&&) noexcept = default;
PlannedCase& PlannedCase::operator=(PlannedCase&&) noexcept = default;
PlannedCase::~PlannedCase() = default;
const ForwardTensors& PlannedCase::forward() const { return state_->device().forward; }
const BackwardTensors& PlannedCase::backward() const { return state_->device().backward; }
const AttentionSpec& PlannedCase::spec() const { return state_->device().spec; }

MaterializedCase materialize(const Case& problem, std::uint64_t seed, Device device,
                             MaterializeOptions options) {
  std::unique_ptr<DeviceMemory> memory = device_memory(device);
  MaterializedCase made(problem, seed, *memory, options);
  made.own(std::move(memory));
  return made;
}

}  // namespace tilewise
