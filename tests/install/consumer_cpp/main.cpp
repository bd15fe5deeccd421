#include <tilewise/attention.h>

#include <cstdio>

int main() {
  float q = 1.0F, k[] = {1.0F, 1.0F}, v[] = {1.0F, 2.0F}, o = 0.0F;
  const auto f32 = tilewise::DType::float32;
  tilewise::forward({.q = tilewise::Tensor::bhsd(&q, f32, 1, 1, 1, 1),
                     .k = tilewise::Tensor::bhsd(k, f32, 1, 1, 2, 1),
                     .v = tilewise::Tensor::bhsd(v, f32, 1, 1, 2, 1),
                     .o = tilewise::Tensor::bhsd(&o, f32, 1, 1, 1, 1),
                     .lse = {}},
                    {.causal = tilewise::Causal::bottom_right});
  std::printf("tilewise %s %g\n%s\n", tilewise::version(), static_cast<double>(o), FOUND);
}
