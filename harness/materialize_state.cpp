#include "harness/materialize_state.h"

#include <algorithm>
#include <cmath>

#include "problem/blocks.h"
#include "reference/elements.h"

namespace tilewise {
namespace {

std::int64_t pool_pages(const Case& c) {
  std::int64_t pages = 2;  // two that nobody uses
  for (std::int64_t length : c.key_lengths) pages += ceil_div(length, c.page_size);
  return pages;
}

/// Standard slopes: 2^(-8 (h + 1) / Hq), Press et al. 2022; a batch entry's own are a little larger
/// each.
double slope(const Case& c, std::int64_t b, std::int64_t h) {
  const double exponent = -8.0 * static_cast<double>(h + 1) / static_cast<double>(c.heads_q);
  const double sign = c.alibi == Case::Alibi::negative ? -1.0 : 1.0;
  return sign * std::exp2(exponent) * (1.0 + static_cast<double>(b) / 4.0);
}

Axes with_all_axes() { return {true, true, true, true}; }

}  // namespace

CaseState::CaseState(const Case& problem, std::uint64_t seed, DeviceMemory* memory, Device device,
                     bool guards)
    : c_(problem), seed_(seed), memory_(memory), where_(device), guards_(guards) {
  if (c_.rank3 && (c_.heads_q != 1 || c_.heads_k != 1)) {
    throw InvalidArgument("case: rank3 needs h1");
  }
  if (c_.rank3 && c_.packed) throw InvalidArgument("case: rank3 and packed= exclude each other");
  if (c_.page_size > 0 && c_.backward) throw InvalidArgument("case: paged= needs pass=fwd");
  add_inputs();
  add_spec();
  add_outputs();
  refresh(seed);
}

Buffer& CaseState::add_buffer(std::string name, std::int64_t bytes, bool small) {
  static const std::unique_ptr<DeviceMemory> host_only = host_memory();
  DeviceMemory* memory = memory_ == nullptr && small ? host_only.get() : memory_;
  return buffers_.emplace_back(std::move(name), bytes, memory, guards_);
}

void CaseState::bind(Slot slot, Buffer& buffer, const Tensor& view, std::int64_t origin) {
  const std::int64_t offset = origin * dtype_bytes(view.dtype);
  const auto at = [&](void* base) -> void* {
    return base == nullptr ? nullptr : static_cast<std::byte*>(base) + offset;
  };
  slot(host_) = slot(device_) = view;
  slot(host_).data = at(buffer.host());
  slot(host_).device = {};
  slot(device_).data = at(buffer.device());
  slot(device_).device = where_;
}

Tensor CaseState::values_view(const Sizes& sizes, const Placement& placement, DType dtype) const {
  Tensor t;
  t.dtype = dtype;
  t.rank = 4;
  t.sizes = sizes;
  t.strides = placement.strides;
  if (c_.rank3) {
    t.rank = 3;
    t.sizes = {sizes[0], sizes[2], sizes[3], 0};
    t.strides = {placement.strides[0], placement.strides[2], placement.strides[3], 0};
  }
  return t;
}

Sizes CaseState::q_sizes() const {
  return {c_.packed ? 1 : c_.batch, c_.heads_q, c_.seq_q, c_.head_dim};
}

Sizes CaseState::k_sizes(std::int64_t dim) const {
  if (c_.page_size > 0) return {pool_pages(c_), c_.heads_k, c_.page_size, dim};
  return {c_.packed ? 1 : c_.batch, c_.heads_k, c_.seq_k, dim};
}

Buffer& CaseState::add_values(const char* name, Slot slot, const Sizes& sizes, Layout layout) {
  const Placement placement = place(layout, sizes);
  Buffer& buffer = add_buffer(name, placement.elems * dtype_bytes(c_.dtype));
  bind(slot, buffer, values_view(sizes, placement, c_.dtype), placement.origin);
  return buffer;
}

/// q, k and v (or their gradients) as views of one (B, S, Hq + 2 Hk, D) block.
void CaseState::add_shared(const char* name, std::array<Slot, 3> slots,
                           std::vector<Output>* outputs) {
  if (c_.seq_q != c_.seq_k || c_.head_dim != c_.head_dim_v || c_.page_size > 0) {
    throw InvalidArgument("case: layout=qkv needs q and k of one length and d = dv, unpaged");
  }
  Sizes all = q_sizes();
  all[1] = c_.heads_q + 2 * c_.heads_k;
  const Placement placement = place(Layout::bshd, all);
  Buffer& buffer = add_buffer(name, placement.elems * dtype_bytes(c_.dtype));
  const std::array<std::int64_t, 3> heads{c_.heads_q, c_.heads_k, c_.heads_k};
  std::int64_t first = 0;
  for (std::size_t n = 0; n < 3; ++n) {
    Sizes own = all;
    own[1] = heads[n];
    bind(slots[n], buffer, values_view(own, placement, c_.dtype), first * c_.head_dim);
    first += heads[n];
  }
  if (outputs == nullptr) {
    inputs_.push_back(&buffer);
  } else {
    // The three cover the block; whether its bands are intact is asked once.
    outputs->push_back({&buffer, nullptr});
  }
}

Buffer& CaseState::add_vector(std::string name, Slot slot, DType dtype,
                              const std::vector<std::int64_t>& sizes,
                              const std::vector<double>& values, bool small) {
  Tensor t;
  t.dtype = dtype;
  t.rank = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), t.sizes.begin());
  std::int64_t stride = 1;
  for (std::size_t n = sizes.size(); n-- > 0;) {
    t.strides[n] = stride;
    stride *= sizes[n];
  }
  Buffer& buffer = add_buffer(std::move(name), stride * dtype_bytes(dtype), small);
  bind(slot, buffer, t, 0);
  for (std::size_t n = 0; n < values.size(); ++n) {
    reference::store(slot(host_), static_cast<std::int64_t>(n), values[n]);
  }
  buffer.upload();
  return buffer;
}

Placement CaseState::statistics_placement() const {
  const Sizes sizes{q_sizes()[0], c_.heads_q, c_.seq_q, 1};
  switch (c_.layout) {  // the layouts that say something about a tensor without D
    case Layout::bshd:
      return place(Layout::bshd, sizes);
    case Layout::step2:
      return place(Layout::step2, sizes);
    case Layout::padded:
      return place(Layout::padded, sizes);
    case Layout::reversed:
      return place(Layout::reversed, sizes);
    default:
      return place(Layout::bhsd, sizes);
  }
}

Tensor CaseState::statistics_view(const Placement& placement) const {
  const Sizes& strides = placement.strides;
  Tensor t;
  t.dtype = DType::float32;
  t.rank = 3;
  t.sizes = {c_.batch, c_.heads_q, c_.seq_q, 0};
  t.strides = {strides[0], strides[1], strides[2], 0};
  if (c_.packed) {
    t.rank = 2;
    t.sizes = {c_.heads_q, c_.seq_q, 0, 0};
    t.strides = {strides[1], strides[2], 0, 0};
  } else if (c_.rank3) {
    t.rank = 2;
    t.sizes = {c_.batch, c_.seq_q, 0, 0};
    t.strides = {strides[0], strides[2], 0, 0};
  }
  return t;
}

Buffer& CaseState::add_statistics(const char* name, Slot slot) {
  const Placement placement = statistics_placement();
  Buffer& buffer = add_buffer(name, placement.elems * dtype_bytes(DType::float32));
  bind(slot, buffer, statistics_view(placement), placement.origin);
  return buffer;
}

void CaseState::add_inputs() {
  constexpr Slot q = [](CaseViews& s) -> Tensor& { return s.forward.q; };
  constexpr Slot k = [](CaseViews& s) -> Tensor& { return s.forward.k; };
  constexpr Slot v = [](CaseViews& s) -> Tensor& { return s.forward.v; };
  if (c_.layout == Layout::qkv) {
    add_shared("qkv", {q, k, v}, nullptr);
    return;
  }
  inputs_.push_back(&add_values("q", q, q_sizes(), c_.layout));
  Buffer& keys = add_values("k", k, k_sizes(c_.head_dim), c_.layout);
  inputs_.push_back(&keys);
  if (c_.layout == Layout::latent) {
    if (c_.head_dim_v > c_.head_dim) throw InvalidArgument("case: layout=latent needs dv <= d");
    const Placement placement = place(c_.layout, k_sizes(c_.head_dim));
    bind(v, keys, values_view(k_sizes(c_.head_dim_v), placement, c_.dtype), placement.origin);
    return;
  }
  inputs_.push_back(&add_values("v", v, k_sizes(c_.head_dim_v), c_.layout));
}

void CaseState::add_spec() {
  for (CaseViews* side : {&host_, &device_}) {
    AttentionSpec& spec = side->spec;
    spec.scale = c_.scale;
    spec.causal = c_.causal;
    spec.window = c_.window;
    spec.softcap = c_.softcap;
    spec.dropout = c_.dropout;
    spec.deterministic = c_.deterministic;
    spec.precision = c_.precision;
  }
  if (c_.packed) add_packed();
  if (!c_.key_lengths.empty()) {
    add_vector("key_lengths", [](CaseViews& s) -> Tensor& { return s.spec.key_lengths; },
               DType::int32, {c_.batch}, {c_.key_lengths.begin(), c_.key_lengths.end()});
  }
  if (c_.page_size > 0) add_pages();
  if (c_.blocks) add_blocks();
  if (c_.mask || c_.bias) add_pairs();
  if (c_.alibi != Case::Alibi::none) {
    const bool per_batch = c_.alibi == Case::Alibi::per_batch;
    std::vector<double> slopes;
    for (std::int64_t b = 0; b < (per_batch ? c_.batch : 1); ++b) {
      for (std::int64_t h = 0; h < c_.heads_q; ++h) slopes.push_back(slope(c_, b, h));
    }
    std::vector<std::int64_t> sizes{c_.heads_q};
    if (per_batch) sizes.insert(sizes.begin(), c_.batch);
    add_vector(
        "alibi_slopes", [](CaseViews& s) -> Tensor& { return s.spec.alibi_slopes; }, DType::float32,
        sizes, slopes);
  }
  if (c_.sinks) {
    Random random(seed_, Stream::sinks);
    std::vector<double> sinks;
    for (std::int64_t h = 0; h < c_.heads_q; ++h) {
      sinks.push_back(fill_value(*c_.sinks, random, h, h, 0, h));
    }
    add_vector(
        "sinks", [](CaseViews& s) -> Tensor& { return s.spec.sinks; }, DType::float32, {c_.heads_q},
        sinks);
  }
  add_score_mod();
  add_expressions();
}

void CaseState::add_packed() {
  const PackedCase& packed = *c_.packed;
  const auto offsets = [](const std::vector<std::int64_t>& lengths) {
    std::vector<double> sums{0.0};
    for (std::int64_t length : lengths) sums.push_back(sums.back() + static_cast<double>(length));
    return sums;
  };
  const DType dtype = packed.wide_offsets ? DType::int64 : DType::int32;
  const std::vector<std::int64_t> sizes{c_.batch + 1};
  add_vector(
      "cu_seqlens_q", [](CaseViews& s) -> Tensor& { return s.spec.cu_seqlens_q; }, dtype, sizes,
      offsets(packed.q_lengths));
  if (c_.page_size == 0) {
    add_vector(
        "cu_seqlens_k", [](CaseViews& s) -> Tensor& { return s.spec.cu_seqlens_k; }, dtype, sizes,
        offsets(packed.k_lengths));
  }
  const auto longest = [](const std::vector<std::int64_t>& lengths) {
    const std::int64_t most = std::ranges::max(lengths);
    return most > 0 ? most : kNoRows;
  };
  const auto give_max = [&](AttentionSpec& spec) {
    spec.max_seqlen_q = longest(packed.q_lengths);
    if (c_.page_size == 0) spec.max_seqlen_k = longest(packed.k_lengths);
  };
  if (packed.give_max) give_max(host_.spec);
  // Offsets on a GPU cannot be read by the host, so the bounds must be given.
  if (packed.give_max || where_.type != DeviceType::cpu) give_max(device_.spec);
}

void CaseState::add_pages() {
  const std::int64_t pages = pool_pages(c_);
  std::vector<std::int64_t> order(static_cast<std::size_t>(pages));
  for (std::int64_t n = 0; n < pages; ++n) order[static_cast<std::size_t>(n)] = n;
  Random random(seed_, Stream::pages);
  for (std::int64_t n = pages - 1; n > 0; --n) {  // Fisher and Yates
    const std::int64_t other = random.word(n) % (n + 1);
    std::swap(order[static_cast<std::size_t>(n)], order[static_cast<std::size_t>(other)]);
  }
  const std::int64_t columns = ceil_div(c_.seq_k, c_.page_size);
  std::vector<double> table;
  std::size_t next = 0;
  for (std::int64_t length : c_.key_lengths) {
    for (std::int64_t column = 0; column < columns; ++column) {
      if (column < ceil_div(length, c_.page_size)) {
        table.push_back(static_cast<double>(order[next++]));
      } else {
        table.push_back(column % 2 == 0 ? -1.0 : 2147483647.0);  // must never be read
      }
    }
  }
  add_vector(
      "block_table", [](CaseViews& s) -> Tensor& { return s.spec.block_table; }, DType::int32,
      {c_.batch, columns}, table);
}

void CaseState::add_pairs() {
  const auto add = [&](const char* name, Slot slot, const Axes& axes, View view, DType dtype) {
    const PairShape shape = pair_shape(c_, axes, view);
    Buffer& buffer = add_buffer(name, shape.placement.elems * dtype_bytes(dtype));
    bind(slot, buffer, shape.view(nullptr, dtype, where_), shape.placement.origin);
    return &buffer;
  };
  if (c_.mask) {
    constexpr Slot mask = [](CaseViews& s) -> Tensor& { return s.spec.mask; };
    Buffer* buffer = add("mask", mask, c_.mask->axes, c_.mask->view, DType::boolean);
    if (memory_ != nullptr) {
      // Gaps say "visible", so that a wrong stride shows hidden keys. 0xFF is no value of a bool.
      auto* bytes = static_cast<std::uint8_t*>(buffer->host());
      std::fill_n(bytes, pair_shape(c_, c_.mask->axes, c_.mask->view).placement.elems, 1);
      fill_mask(host_.spec.mask, c_, seed_);
      buffer->upload();
    }
  }
  if (c_.bias) {
    constexpr Slot bias = [](CaseViews& s) -> Tensor& { return s.spec.bias; };
    Buffer* buffer = add("bias", bias, c_.bias->axes, c_.bias->view, c_.bias->dtype);
    fill_bias(host_.spec.bias, c_, seed_);
    buffer->upload();
  }
}

void CaseState::add_blocks() {
  const BlockArrays arrays = make_blocks(c_, seed_);
  for (CaseViews* side : {&host_, &device_}) {
    side->spec.block_list.block_q = c_.blocks->block_q;
    side->spec.block_list.block_k = c_.blocks->block_k;
  }
  const auto pairs = static_cast<std::int64_t>(arrays.index.size());
  add_vector("block_list.row_offsets",
             [](CaseViews& s) -> Tensor& { return s.spec.block_list.row_offsets; }, DType::int32,
             {arrays.batch, arrays.heads, arrays.query_blocks + 1},
             {arrays.offsets.begin(), arrays.offsets.end()});
  add_vector("block_list.block_index",
             [](CaseViews& s) -> Tensor& { return s.spec.block_list.block_index; }, DType::int32,
             {pairs}, {arrays.index.begin(), arrays.index.end()});
  if (c_.blocks->full_flags) {
    add_vector("block_list.block_full",
               [](CaseViews& s) -> Tensor& { return s.spec.block_list.block_full; }, DType::boolean,
               {pairs}, {arrays.full.begin(), arrays.full.end()});
  }
}

void CaseState::add_score_mod() {
  if (c_.score_mod == Case::ScoreModKind::none) return;
  const bool wave = c_.score_mod == Case::ScoreModKind::wave;
  score_mod_.apply = [wave](const ScoreTile& x) {
    for (std::int64_t r = 0; r < x.rows; ++r) {
      float* row = x.scores + r * x.row_stride;
      for (std::int64_t n = 0; n < x.cols; ++n) {
        const auto distance = static_cast<float>(std::abs(x.i0 + r - x.j0 - n));
        row[n] = wave ? row[n] + 0.5F * std::sin(row[n]) : row[n] - 0.1F * distance;
      }
    }
  };
  score_mod_.derivative = [wave](const ScoreTile& x, float* grad) {
    if (!wave) return;  // the derivative of x - f(i, j) is 1
    for (std::int64_t r = 0; r < x.rows; ++r) {
      const float* row = x.scores + r * x.row_stride;
      float* out = grad + r * x.row_stride;
      for (std::int64_t n = 0; n < x.cols; ++n) out[n] *= 1.0F + 0.5F * std::cos(row[n]);
    }
  };
  host_.spec.score_mod = device_.spec.score_mod = &score_mod_;
}

void CaseState::add_outputs() {
  constexpr Slot o = [](CaseViews& s) -> Tensor& { return s.forward.o; };
  constexpr Slot lse = [](CaseViews& s) -> Tensor& { return s.forward.lse; };
  Sizes sizes = q_sizes();
  sizes[3] = c_.head_dim_v;
  outputs_.push_back({&add_values("o", o, sizes, output_layout(c_.layout)), o});
  if (c_.lse) outputs_.push_back({&add_statistics("lse", lse), lse});
}

void CaseState::make_backward() {
  if (has_backward_) return;
  has_backward_ = true;
  for (CaseViews* side : {&host_, &device_}) {
    const ForwardTensors& f = side->forward;
    BackwardTensors& b = side->backward;
    b.q = f.q, b.k = f.k, b.v = f.v, b.o = f.o, b.lse = f.lse;
  }
  if (!c_.lse) add_statistics("lse", [](CaseViews& s) -> Tensor& { return s.backward.lse; });
  Sizes o_sizes = q_sizes();
  o_sizes[3] = c_.head_dim_v;
  const Placement placement = c_.d_o_layout == Layout::expanded ? Placement{{0, 0, 0, 0}, 0, 1}
                                                                : place(c_.d_o_layout, o_sizes);
  Buffer& d_o = add_buffer("d_o", placement.elems * dtype_bytes(c_.dtype));
  bind([](CaseViews& s) -> Tensor& { return s.backward.d_o; }, d_o,
       values_view(o_sizes, placement, c_.dtype), placement.origin);
  inputs_.push_back(&d_o);
  if (c_.d_lse) {
    inputs_.push_back(
        &add_statistics("d_lse", [](CaseViews& s) -> Tensor& { return s.backward.d_lse; }));
  }
  constexpr Slot dq = [](CaseViews& s) -> Tensor& { return s.backward.dq; };
  constexpr Slot dk = [](CaseViews& s) -> Tensor& { return s.backward.dk; };
  constexpr Slot dv = [](CaseViews& s) -> Tensor& { return s.backward.dv; };
  if (c_.layout == Layout::qkv) {
    add_shared("dqkv", {dq, dk, dv}, &gradients_);
  } else {
    const Layout layout = output_layout(c_.layout);
    gradients_.push_back({&add_values("dq", dq, q_sizes(), layout), dq});
    gradients_.push_back({&add_values("dk", dk, k_sizes(c_.head_dim), layout), dk});
    gradients_.push_back({&add_values("dv", dv, k_sizes(c_.head_dim_v), layout), dv});
  }
  if (c_.bias) {
    constexpr Slot dbias = [](CaseViews& s) -> Tensor& { return s.backward.dbias; };
    const Axes axes = c_.bias->view == Layout::expanded ? with_all_axes() : c_.bias->axes;
    const PairShape shape = pair_shape(c_, axes, Layout::bhsd);
    Buffer& buffer = add_buffer("dbias", shape.placement.elems * dtype_bytes(c_.bias->dtype));
    bind(dbias, buffer, shape.view(nullptr, c_.bias->dtype, where_), 0);
    gradients_.push_back({&buffer, dbias});
  }
  if (c_.sinks) {
    constexpr Slot dsinks = [](CaseViews& s) -> Tensor& { return s.backward.dsinks; };
    gradients_.push_back({&add_vector("dsinks", dsinks, DType::float32, {c_.heads_q}, {}), dsinks});
  }
  add_capture_gradients();
  fill_backward_inputs();
}

}  // namespace tilewise
