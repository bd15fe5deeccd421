#include <stdio.h>
#include <tilewise/tilewise.h>

static tw_tensor row(float* data, int64_t keys) {
  tw_tensor tensor = TW_INIT(tw_tensor);
  tensor.data = data;
  tensor.dtype = TW_FLOAT32;
  tensor.rank = 4;
  for (int axis = 0; axis < 4; ++axis) tensor.sizes[axis] = tensor.strides[axis] = 1;
  tensor.sizes[2] = keys;
  return tensor;
}

int main(void) {
  float q = 1, k[] = {1, 1}, v[] = {1, 2}, o = 0;
  tw_forward_args args = TW_INIT(tw_forward_args);
  args.q = row(&q, 1);
  args.k = row(k, 2);
  args.v = row(v, 2);
  args.o = row(&o, 1);
  tw_status status = tw_forward(&args, NULL, NULL, NULL);
  if (status != TW_OK) fprintf(stderr, "%s\n", tw_last_error());
  printf("tilewise %s %g\n", tw_version(), (double)o);
  printf("%d.%d.%d\n", TW_VERSION_MAJOR, TW_VERSION_MINOR, TW_VERSION_PATCH);
  return (int)status;
}
