/// layer_steps: loss and optimizer.
#pragma once

#include "cuda/kernels/layers/steps.cuh"

namespace tilewise::layer_steps {

/// One block of all: one thread a row.
template <Config>
__forceinline__ void cross_entropy(const LossArgs& a) {
  const float scale = a.state->scale;
  float loss = 0.0F;
  for (int i = threadIdx.x; i < a.rows; i += kThreads) {
    const float* row = a.logits + static_cast<i64>(i) * a.cols;
    float most = row[0];
    for (int j = 1; j < a.cols; ++j) most = fmaxf(most, row[j]);
    float sum = 0.0F;
    for (int j = 0; j < a.cols; ++j) sum += expf(row[j] - most);
    const int label = a.labels[i];
    const bool known = label >= 0 && label < a.cols;
    loss += known ? logf(sum) + most - row[label] : tile::not_a_number();
    for (int j = 0; j < a.cols; ++j) {
      const float p =
          known ? expf(row[j] - most) / sum - (j == label ? 1.0F : 0.0F) : tile::not_a_number();
      a.d_logits[static_cast<i64>(i) * a.cols + j] = p / static_cast<float>(a.rows) * scale;
    }
  }
  loss = sum_of_block(loss);
  if (threadIdx.x == 0) a.state->loss = loss / static_cast<float>(a.rows);
}

/// not_finite was cleared by the last end_step.
template <Config>
__forceinline__ void look_for_infinities(const AdamArgs& a) {
  each(a.elems, [&](i64 i) {
    // An exponent of all ones: infinite, or no number.
    if ((__float_as_int(a.g[i]) & 0x7f800000) == 0x7f800000) a.state->not_finite = 1;
  });
}

template <Config>
__forceinline__ void adam(const AdamArgs& a) {
  if (a.state->not_finite != 0) return;
  __shared__ float factors[2];
  if (threadIdx.x == 0) {
    const double step = a.state->steps + 1;
    factors[0] = static_cast<float>(a.learning_rate / (1.0 - pow(a.beta1, step)));
    factors[1] = static_cast<float>(sqrt(1.0 - pow(a.beta2, step)));
  }
  __syncthreads();  // the factors are there
  const float beta1 = static_cast<float>(a.beta1), beta2 = static_cast<float>(a.beta2);
  const float epsilon = static_cast<float>(a.epsilon), unscale = 1.0F / a.state->scale;
  each(a.elems, [&](i64 i) {
    const float d = a.g[i] * unscale;
    const float m = beta1 * a.m[i] + (1.0F - beta1) * d;
    const float v = beta2 * a.v[i] + (1.0F - beta2) * d * d;
    a.m[i] = m;
    a.v[i] = v;
    a.w[i] -= factors[0] * m / (sqrtf(v) / factors[1] + epsilon);
  });
}

/// One thread.
template <Config>
__forceinline__ void end_step(const EndArgs& a) {
  if (threadIdx.x != 0) return;
  State& state = *a.state;
  ++state.draws;
  if (state.not_finite != 0) {
    state.not_finite = 0;
    ++state.skipped;
    state.good_in_a_row = 0;
    if (a.scale_loss) state.scale *= 0.5F;
    return;
  }
  ++state.steps;
  if (!a.scale_loss || ++state.good_in_a_row < a.growth_interval) return;
  state.scale *= 2.0F;
  state.good_in_a_row = 0;
}

}  // namespace tilewise::layer_steps
