#include "layers/cuda_ops.h"

#include <algorithm>
#include <cmath>

#include "cuda/driver/device.h"
#include "cuda/driver/memory.h"
#include "layers/pools.h"
#include "problem/philox.h"

namespace tilewise::asam {
namespace {

namespace steps = layer_steps;

constexpr const char* kPlain = "layers/steps";
constexpr const char* kTraining = "layers/training";
constexpr const char* kPools = "layers/pools";
constexpr const char* kChoice = "layers/choice";
constexpr const char* kProduct = "layers/product";
/// Entry, its parameter and its file.
struct StepName {
  const char* entry;
  const char* args;
  const char* file = kPlain;
  int min_blocks = 1, shared_bytes = 0;
  bool reads_kept = false;  ///< tensors that a model of 16 bits keeps so
};
constexpr StepName kNames[kSteps] = {
    {"copy", "CopyArgs"},
    {"add", "CopyArgs"},
    {"activate", "ActivateArgs"},
    {"activate_backward", "ActivateArgs"},
    {"gelu_backward", "GeluArgs"},
    {"columns", "ColumnArgs"},
    {"norm_columns", "ColumnArgs"},
    {"layer_norm", "NormArgs"},
    {"normalise", "NormArgs"},
    {"layer_norm_backward", "NormArgs"},
    {"drop_add", "DropArgs"},
    {"gate", "GateArgs"},
    {"gate_backward", "GateArgs"},
    {"mix", "MixArgs", kPlain, 1, 0, true},
    {"mix_backward", "MixArgs", kPlain, 1, 0, true},
    {"twice", "TwiceArgs", kPlain, 1, 0, true},
    {"twice_backward", "TwiceArgs", kPlain, 1, 0, true},
    {"embed", "EmbedArgs"},
    {"embed_backward", "EmbedArgs"},
    {"join_masks", "JoinArgs"},
    {"read_out", "ReadArgs"},
    {"read_out_backward", "ReadArgs"},
    {"cross_entropy", "LossArgs", kTraining},
    {"look_for_infinities", "AdamArgs", kTraining},
    {"adam", "AdamArgs", kTraining},
    {"end_step", "EndArgs", kTraining},
    {"bin_means", "BinArgs", kPools},
    {"bin_tokens", "BinArgs", kPools},
    {"bin_features", "BinArgs", kPools},
    {"bin_tokens_backward", "BinArgs", kPools},
    {"bin_means_backward", "BinArgs", kPools},
    {"bin_inputs_backward", "BinArgs", kPools},
    {"pool_windows", "WindowArgs", kPools},
    {"pool_windows_backward", "WindowArgs", kPools},
    {"choice_means", "ChoiceArgs", kChoice, 1, 0, true},
    {"choice_shares", "ChoiceArgs", kChoice},
    {"choice_heads", "ChoiceArgs", kChoice},
    {"choice_rows", "ChoiceArgs", kChoice},
    {"choice_lists", "ChoiceArgs", kChoice},
    {"choice_logits_backward", "ChoiceArgs", kChoice},
    {"choice_near", "ChoiceArgs", kChoice},
    {"choice_shares_backward", "ChoiceArgs", kChoice, 1, 0, true},
    {"choice_centroids_backward", "ChoiceArgs", kChoice},
    {"choice_temperature_backward", "ChoiceArgs", kChoice},
    {"narrow", "TwinArgs"},
    {"widen", "TwinArgs"},
    {"product_64", "ProductArgs", kProduct, 2, steps::product_shared(64)},
    {"product_32", "ProductArgs", kProduct, 2, steps::product_shared(32)},
};

steps::Tokens tokens_of(const TokenShape& s, Lengths lengths = nullptr) {
  return {static_cast<int>(s.batch), static_cast<int>(s.tokens), static_cast<int>(s.dim), lengths};
}
std::int64_t column_blocks(std::int64_t cols) { return ceil_div(cols, steps::kColumns); }
std::int64_t few_columns(std::int64_t cols) { return ceil_div(cols, steps::kFewColumns); }
/// The kernel reads TrainState through its own declaration.
static_assert(sizeof(steps::State) == sizeof(TrainState));
steps::State* device_state(const TrainState* state) {
  return reinterpret_cast<steps::State*>(const_cast<TrainState*>(state));
}

}  // namespace

cuda::KernelUnit step_unit(Step step, DType compute) {
  const StepName& name = kNames[static_cast<int>(step)];
  const bool half = name.reads_kept && compute != DType::float32;
  const char* kept = compute == DType::bfloat16 ? ".kept = Kept::bf16" : ".kept = Kept::fp16";
  return {.stem = "layer_steps",
          .file = name.file,
          .config = half ? kept : "",
          .threads = steps::kThreads,
          .min_blocks = name.min_blocks,
          .shared_bytes = name.shared_bytes,
          .entry = name.entry,
          .args = name.args};
}

CudaOps::CudaOps(const Config& config, const Launch& launch, Memory& memory)
    : device_(config.device.index),
      stream_(launch.stream),
      memory_(memory),
      compute_(config.compute),
      vocabulary_(config.vocabulary) {
  products_.room(memory_, cuda::kCublasWorkspaceBytes);
}

std::int64_t CudaOps::blocks_for(std::int64_t elems) {
  constexpr std::int64_t kMostBlocks = 2048;
  return std::min(kMostBlocks, ceil_div(elems, steps::kThreads));
}

void CudaOps::synchronize() { cuda::synchronize(device_, stream_); }
void CudaOps::clear(void* x, std::int64_t bytes) {
  cuda::fill_bytes(x, 0, bytes, device_, stream_);
}
void CudaOps::upload(void* to, const void* from, std::int64_t bytes) {
  cuda::copy_to_device(to, from, bytes, device_, stream_);
  cuda::synchronize(device_, stream_);  // `from` may go
}
void CudaOps::download(void* to, const void* from, std::int64_t bytes) {
  cuda::copy_to_host(to, from, bytes, device_, stream_);
  cuda::synchronize(device_, stream_);
}
void CudaOps::copy(const float* x, float* y, std::int64_t elems) {
  start(Step::copy, steps::CopyArgs{x, y, elems}, blocks_for(elems));
}
void CudaOps::add(const float* x, float* y, std::int64_t elems) {
  start(Step::add, steps::CopyArgs{x, y, elems}, blocks_for(elems));
}

void CudaOps::activate(float* z, const float* bias, float* y, Activation f, Shape s) {
  const steps::ActivateArgs args{.z = z,
                                 .bias = bias,
                                 .y = y,
                                 .f = device_activation(f),
                                 .rows = s.rows,
                                 .cols = static_cast<int>(s.cols)};
  start(Step::activate, args, blocks_for(s.rows * s.cols));
}

void CudaOps::activate_backward(const float* z, const float* dy, float* dz, float* dbias,
                                Activation f, Shape s) {
  const int cols = static_cast<int>(s.cols);
  if (f != Activation::none || dz != dy) {
    const steps::ActivateArgs args{.z = const_cast<float*>(z),
                                   .dy = dy,
                                   .y = dz,
                                   .f = device_activation(f),
                                   .rows = s.rows,
                                   .cols = cols};
    start(Step::activate_backward, args, blocks_for(s.rows * s.cols));
  }
  if (dbias == nullptr) return;
  const steps::ColumnArgs args{.dy = dz, .sums = dbias, .rows = s.rows, .cols = cols};
  start(Step::columns, args, few_columns(s.cols));
}

void CudaOps::layer_norm(const float* x, const float* gamma, const float* beta, float* y,
                         float* statistics, Shape s) {
  const steps::NormArgs args{.x = x,
                             .gamma = gamma,
                             .beta = beta,
                             .y = y,
                             .statistics = statistics,
                             .rows = s.rows,
                             .cols = static_cast<int>(s.cols)};
  start(Step::layer_norm, args, ceil_div(s.rows, std::int64_t{steps::kNormRows}));
}

void CudaOps::normalise(const float* x, const float* gamma, const float* beta,
                        const float* statistics, float* y, Shape s) {
  const steps::NormArgs args{.x = x,
                             .gamma = gamma,
                             .beta = beta,
                             .y = y,
                             .statistics = const_cast<float*>(statistics),
                             .rows = s.rows,
                             .cols = static_cast<int>(s.cols)};
  start(Step::normalise, args, blocks_for(s.rows * s.cols));
}

void CudaOps::layer_norm_backward(const float* x, const float* gamma, const float* statistics,
                                  const float* dy, float* dx, float* dgamma, float* dbeta,
                                  Shape s) {
  const int cols = static_cast<int>(s.cols);
  const steps::NormArgs rows{.x = x,
                             .gamma = gamma,
                             .statistics = const_cast<float*>(statistics),
                             .dy = dy,
                             .dx = dx,
                             .rows = s.rows,
                             .cols = cols};
  start(Step::layer_norm_backward, rows, ceil_div(s.rows, std::int64_t{steps::kNormRows}));
  const steps::ColumnArgs columns{.dy = dy,
                                  .x = x,
                                  .statistics = statistics,
                                  .sums = dbeta,
                                  .along = dgamma,
                                  .rows = s.rows,
                                  .cols = cols};
  start(Step::norm_columns, columns, few_columns(s.cols));
}

namespace {

/// What the kernels that drop elements are told of it.
template <class Args>
void tell_of(Args& args, const Drop& drop, Shape s) {
  const DropoutMask mask({.p = drop.p, .seed = drop.seed, .offset = drop.draw});
  args.site = drop.site;
  args.drops = drop.p > 0.0;
  args.rows = s.rows;
  args.cols = static_cast<int>(s.cols);
  args.first = static_cast<unsigned>(drop.first);
  args.bits.key = tile::PhiloxKeys(mask.key()[0], mask.key()[1]);
  args.bits.offset = mask.offset();
  args.bits.counter = counter_of(drop);
  args.bits.limit = static_cast<unsigned>(mask.threshold() - 1);
  args.bits.scale = static_cast<float>(mask.scale());
}

}  // namespace

void CudaOps::drop_add(const float* x, const float* a, float* y, const Drop& drop, Shape s) {
  steps::DropArgs args{.x = x, .a = a, .y = y};
  tell_of(args, drop, s);
  start(Step::drop_add, args, blocks_for(s.rows * ceil_div(s.cols, 4)));
}

void CudaOps::gelu_backward(const float* z, float* du, float* dz, const Drop& drop, Shape s) {
  steps::GeluArgs args{.z = z, .du = du, .dz = dz};
  tell_of(args, drop, s);
  start(Step::gelu_backward, args, blocks_for(s.rows * ceil_div(s.cols, 4)));
}

void CudaOps::pool_bins(const float* x, float* features, float* kept, TokenShape s) {
  const steps::BinArgs args{.shape = tokens_of(s),
                            .scales = kPoolScales,
                            .bins = static_cast<int>(pool_bin_count(s.dim)),
                            .x = x,
                            .kept = kept,
                            .features = features};
  start(Step::bin_means, args, s.batch * column_blocks(s.dim));
  start(Step::bin_tokens, args, s.rows());
  start(Step::bin_features, args, s.batch);
}

void CudaOps::pool_bins_backward(const float* x, const float* kept, const float* d_features,
                                 float* dx, TokenShape s) {
  const steps::BinArgs args{.shape = tokens_of(s),
                            .scales = kPoolScales,
                            .bins = static_cast<int>(pool_bin_count(s.dim)),
                            .x = x,
                            .kept = const_cast<float*>(kept),
                            .d_features = d_features,
                            .d_tokens = d_tokens_.room(memory_, s.batch * (2 * s.tokens + s.dim)),
                            .dx = dx};
  start(Step::bin_tokens_backward, args, s.batch);
  start(Step::bin_means_backward, args, s.batch * column_blocks(s.dim));
  start(Step::bin_inputs_backward, args, blocks_for(s.elems()));
}

void CudaOps::pool_windows(const float* x, Lengths lengths, float* features, TokenShape s) {
  const steps::WindowArgs args{.shape = tokens_of(s, lengths),
                               .x = x,
                               .features = features,
                               .means = means_.room(memory_, 3 * s.batch * s.dim),
                               .highest = highest_.room(memory_, 3 * s.batch * s.dim)};
  start(Step::pool_windows, args, s.batch * column_blocks(s.dim));
}

void CudaOps::pool_windows_backward(const float* x, Lengths lengths, const float* features,
                                    const float* d_features, float* dx, TokenShape s) {
  // The windows' means and maxima anew: another layer's may be there.
  pool_windows(x, lengths, const_cast<float*>(features), s);
  const steps::WindowArgs args{.shape = tokens_of(s, lengths),
                               .x = x,
                               .means = means_.get(),
                               .highest = highest_.get(),
                               .d_features = d_features,
                               .dx = dx};
  start(Step::pool_windows_backward, args,
        s.batch * column_blocks(s.dim) * ceil_div(s.tokens, kPoolWindows.back()));
}

void CudaOps::gate(const float* c, const float* p, const float* threshold, const float* tau,
                   float* g, Shape s) {
  const steps::GateArgs args{.c = c,
                             .p = p,
                             .threshold = threshold,
                             .tau = tau,
                             .g = g,
                             .batch = static_cast<int>(s.rows),
                             .heads = static_cast<int>(s.cols)};
  start(Step::gate, args, blocks_for(s.rows * s.cols));
}

void CudaOps::gate_backward(const float* c, const float* p, const float* threshold,
                            const float* tau, const float* g, const float* dg, float* dc, float* dp,
                            float* d_threshold, float* d_tau, Shape s) {
  const steps::GateArgs args{.c = c,
                             .p = p,
                             .threshold = threshold,
                             .tau = tau,
                             .g = const_cast<float*>(g),
                             .dg = dg,
                             .dc = dc,
                             .dp = dp,
                             .d_threshold = d_threshold,
                             .d_tau = d_tau,
                             .batch = static_cast<int>(s.rows),
                             .heads = static_cast<int>(s.cols)};
  start(Step::gate_backward, args, 1);
}

namespace {

steps::MixArgs mix_args(HeadShape s, const Factor<float>& o, const float* g) {
  return {.batch = static_cast<int>(s.batch),
          .tokens = static_cast<int>(s.tokens),
          .heads = static_cast<int>(s.heads),
          .dim = static_cast<int>(s.dim),
          .o = o.data(),
          .g = g};
}

steps::TwiceArgs twice_args(const Factor<float>& from, const Stored<float>& to, HeadShape s) {
  return {.from = from.data(),
          .to = to.data(),
          .rows = s.rows(),
          .heads = static_cast<int>(s.heads),
          .dim = static_cast<int>(s.dim)};
}

}  // namespace

void CudaOps::mix(Factor<float> o, const float* g, float* a, HeadShape s) {
  steps::MixArgs args = mix_args(s, o, g);
  args.a = a;
  start(Step::mix, args, blocks_for(s.rows() * s.heads * s.dim));
}

void CudaOps::mix_backward(Factor<float> o, const float* g, Factor<float> da, Stored<float> d_o,
                           float* dg, float* d_weight, HeadShape s) {
  steps::MixArgs args = mix_args(s, o, g);
  args.da = da.data();
  args.d_o = d_o.data();
  args.dg = dg;
  args.d_weight = d_weight;
  start(Step::mix_backward, args, s.batch * s.heads);
}

void CudaOps::twice(Factor<float> qkv, Stored<float> q2, HeadShape s) {
  start(Step::twice, twice_args(qkv, q2, s), blocks_for(s.rows() * s.heads * s.dim));
}

void CudaOps::twice_backward(Factor<float> dq2, Stored<float> dqkv, HeadShape s) {
  start(Step::twice_backward, twice_args(dq2, dqkv, s), blocks_for(s.rows() * s.heads * s.dim));
}

void CudaOps::clustered_mask(Factor<float>, const float*, const float*, std::uint8_t*, HeadShape,
                             std::int64_t) {
  throw Unsupported("the clustered pattern of the original layer is not supported on cuda");
}

void CudaOps::join_masks(const JoinedMask& m) {
  const auto part = [](const JoinedMask::Part& from) {
    steps::JoinArgs::Part to{.data = from.data};
    std::copy(from.strides.begin(), from.strides.end(), to.strides);
    return to;
  };
  const steps::JoinArgs args{.first = part(m.first),
                             .second = part(m.second),
                             .lengths = m.lengths,
                             .batch = static_cast<int>(m.sizes[0]),
                             .heads = static_cast<int>(m.sizes[1]),
                             .rows = static_cast<int>(m.sizes[2]),
                             .keys = static_cast<int>(m.sizes[3]),
                             .repeat = static_cast<int>(m.repeat),
                             .out = m.out};
  start(Step::join_masks, args,
        blocks_for(args.batch * m.sizes[1] * m.repeat * m.sizes[2] * m.sizes[3]));
}

void CudaOps::embed(const std::int32_t* ids, const float* table, float* y, Shape s) {
  const steps::EmbedArgs args{.ids = ids,
                              .table = table,
                              .y = y,
                              .rows = s.rows,
                              .cols = static_cast<int>(s.cols),
                              .vocabulary = static_cast<int>(vocabulary_)};
  start(Step::embed, args, blocks_for(s.rows * s.cols));
}

void CudaOps::embed_backward(const std::int32_t* ids, const float* dy, float* d_table, Shape s) {
  const steps::EmbedArgs args{
      .ids = ids, .y = d_table, .dy = dy, .rows = s.rows, .cols = static_cast<int>(s.cols)};
  start(Step::embed_backward, args, vocabulary_);
}

void CudaOps::read_out(const float* x, Lengths lengths, float* y, Readout readout, TokenShape s) {
  const steps::ReadArgs args{
      .shape = tokens_of(s, lengths), .last = readout == Readout::last, .from = x, .to = y};
  start(Step::read_out, args, s.batch * few_columns(s.dim));
}

void CudaOps::read_out_backward(const float* dy, Lengths lengths, float* dx, Readout readout,
                                TokenShape s) {
  const steps::ReadArgs args{
      .shape = tokens_of(s, lengths), .last = readout == Readout::last, .from = dy, .to = dx};
  start(Step::read_out_backward, args, blocks_for(s.elems()));
}

void CudaOps::cross_entropy(const float* logits, const std::int32_t* labels, float* d_logits,
                            TrainState* state, Shape s) {
  const steps::LossArgs args{.logits = logits,
                             .labels = labels,
                             .d_logits = d_logits,
                             .state = device_state(state),
                             .rows = static_cast<int>(s.rows),
                             .cols = static_cast<int>(s.cols)};
  start(Step::cross_entropy, args, 1);
}

void CudaOps::look_for_infinities(const float* g, std::int64_t elems, TrainState* state) {
  const steps::AdamArgs args{.g = g, .elems = elems, .state = device_state(state)};
  start(Step::look_for_infinities, args, blocks_for(elems));
}

void CudaOps::adam(float* w, const float* g, float* m, float* v, std::int64_t elems,
                   const TrainOptions& options, const TrainState* state) {
  const steps::AdamArgs args{.w = w,
                             .g = g,
                             .m = m,
                             .v = v,
                             .elems = elems,
                             .learning_rate = options.learning_rate,
                             .beta1 = options.beta1,
                             .beta2 = options.beta2,
                             .epsilon = options.epsilon,
                             .state = device_state(state)};
  start(Step::adam, args, blocks_for(elems));
}

void CudaOps::end_step(TrainState* state, const TrainOptions& options) {
  const steps::EndArgs args{.state = device_state(state),
                            .scale_loss = options.scale_loss,
                            .growth_interval = static_cast<int>(options.growth_interval)};
  start(Step::end_step, args, 1);
}

}  // namespace tilewise::asam
