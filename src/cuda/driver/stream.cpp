#include "cuda/driver/stream.h"

#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/memory.h"

namespace tilewise::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;        // CU_STREAM_NON_BLOCKING
constexpr int kCaptureModeThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

}  // namespace

Stream::Stream(int device) : device_(device) {
  const ContextScope scope(device);
  check(driver().cuStreamCreate(&stream_, kNonBlocking), "cuStreamCreate", device);
}

Stream::~Stream() { driver().cuStreamDestroy(stream_); }

void Stream::synchronize() const { cuda::synchronize(device_, stream_); }

Event::Event(int device) : device_(device) {
  const ContextScope scope(device);
  check(driver().cuEventCreate(&event_, 0), "cuEventCreate", device);
}

Event::~Event() { driver().cuEventDestroy(event_); }

void Event::record(CUstream stream) {
  const ContextScope scope(device_);
  check(driver().cuEventRecord(event_, stream), "cuEventRecord", device_);
}

void Event::synchronize() const {
  check(driver().cuEventSynchronize(event_), "cuEventSynchronize", device_);
}

double Event::ms_since(const Event& start) const {
  float ms = 0.0F;
  check(driver().cuEventElapsedTime(&ms, start.event_, event_), "cuEventElapsedTime", device_);
  return static_cast<double>(ms);
}

Graph::Graph(int device, CUstream stream) : device_(device), stream_(stream) {
  const ContextScope scope(device);
  check(driver().cuStreamBeginCapture(stream, kCaptureModeThreadLocal), "cuStreamBeginCapture",
        device);
  capturing_ = true;
}

Graph::~Graph() {
  const Driver& d = driver();
  if (capturing_) d.cuStreamEndCapture(stream_, &graph_);
  if (exec_ != nullptr) d.cuGraphExecDestroy(exec_);
  if (graph_ != nullptr) d.cuGraphDestroy(graph_);
}

void Graph::end_capture() {
  const ContextScope scope(device_);
  capturing_ = false;
  check(driver().cuStreamEndCapture(stream_, &graph_), "cuStreamEndCapture", device_);
  check(driver().cuGraphInstantiateWithFlags(&exec_, graph_, 0), "cuGraphInstantiateWithFlags",
        device_);
}

void Graph::launch() const {
  const ContextScope scope(device_);
  check(driver().cuGraphLaunch(exec_, stream_), "cuGraphLaunch", device_);
}

}  // namespace tilewise::cuda
