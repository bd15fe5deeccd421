/// The few functions of the CUDA driver that an example needs, opened at run time: the program
/// builds and runs where there is no CUDA.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

class Cuda {
 public:
  /// The first device; null where there is none.
  static Cuda* here() {
    static Cuda cuda;
    return cuda.ready_ ? &cuda : nullptr;
  }

  void* stream() const { return stream_; }
  void* allocate(std::size_t bytes) {
    unsigned long long data = 0;
    require(call<int(unsigned long long*, std::size_t)>("cuMemAlloc_v2")(&data, bytes),
            "cuMemAlloc");
    return reinterpret_cast<void*>(data);
  }
  void upload(void* to, const void* from, std::size_t bytes) {
    synchronize();
    require(call<int(void*, const void*, std::size_t)>("cuMemcpyHtoD_v2")(to, from, bytes),
            "cuMemcpyHtoD");
  }
  void download(void* to, const void* from, std::size_t bytes) {
    synchronize();
    require(call<int(void*, const void*, std::size_t)>("cuMemcpyDtoH_v2")(to, from, bytes),
            "cuMemcpyDtoH");
  }
  /// On the stream.
  void copy(void* to, const void* from, std::size_t bytes) {
    require(call<int(void*, const void*, std::size_t, void*)>("cuMemcpyDtoDAsync_v2")(
                to, from, bytes, stream_),
            "cuMemcpyDtoDAsync");
  }
  void synchronize() {
    require(call<int(void*)>("cuStreamSynchronize")(stream_), "cuStreamSynchronize");
  }
  void begin_capture() {
    constexpr int kThreadLocal = 1;
    require(call<int(void*, int)>("cuStreamBeginCapture_v2")(stream_, kThreadLocal),
            "cuStreamBeginCapture");
  }
  void end_capture() {
    void* graph = nullptr;
    require(call<int(void*, void**)>("cuStreamEndCapture")(stream_, &graph), "cuStreamEndCapture");
    require(call<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(&graph_,
                                                                                        graph, 0),
            "cuGraphInstantiate");
  }
  void replay() {
    require(call<int(void*, void*)>("cuGraphLaunch")(graph_, stream_), "cuGraphLaunch");
  }

 private:
  Cuda() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {
    int count = 0;
    if (library_ == nullptr || call<int(unsigned)>("cuInit")(0) != 0) return;
    if (call<int(int*)>("cuDeviceGetCount")(&count) != 0 || count == 0) return;
    void* context = nullptr;
    require(call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0), "the primary context");
    require(call<int(void*)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    constexpr unsigned kNonBlocking = 1;
    require(call<int(void**, unsigned)>("cuStreamCreate")(&stream_, kNonBlocking),
            "cuStreamCreate");
    ready_ = true;
  }
  template <class Function>
  Function* call(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  static void require(int status, const char* what) {
    if (status == 0) return;
    std::fprintf(stderr, "%s: CUDA error %d\n", what, status);
    std::exit(1);
  }

  void* library_;
  void *stream_ = nullptr, *graph_ = nullptr;
  bool ready_ = false;
};
