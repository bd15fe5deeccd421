#include "harness/cuda_measure.h"

#include "cuda/driver/device.h"
#include "cuda/driver/memory.h"
#include "cuda/driver/stream.h"

namespace tilewise {
namespace {

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int index, Allocator* allocator)
      : index_(index), allocator_(allocator != nullptr ? *allocator : default_allocator()) {
    cuda::hardware(index);  // throws when there is no such device
  }
  Device device() const override { return {DeviceType::cuda, index_}; }
  void* allocate(std::int64_t bytes) override {
    return allocator_.allocate(bytes, device(), nullptr);
  }
  void release(void* data, std::int64_t bytes) noexcept override {
    allocator_.release(data, bytes, device(), nullptr);
  }
  void copy_in(void* to_device, const void* from_host, std::int64_t bytes) override {
    cuda::copy_to_device(to_device, from_host, bytes, index_, nullptr);
    synchronize();
  }
  void copy_out(void* to_host, const void* from_device, std::int64_t bytes) override {
    cuda::copy_to_host(to_host, from_device, bytes, index_, nullptr);
    synchronize();
  }
  void fill(void* data, int byte, std::int64_t bytes) override {
    cuda::fill_bytes(data, static_cast<unsigned char>(byte), bytes, index_, nullptr);
    synchronize();
  }
  void synchronize() override { cuda::synchronize(index_, nullptr); }
  bool is_host() const override { return false; }

 private:
  int index_;
  Allocator& allocator_;
};

class EventClock final : public Clock {
 public:
  explicit EventClock(int index) : start_(index), stop_(index) {}
  void start() override { start_.record(nullptr); }
  double stop_ms() override {
    stop_.record(nullptr);
    stop_.synchronize();
    return stop_.ms_since(start_);
  }

 private:
  cuda::Event start_, stop_;
};

}  // namespace

std::unique_ptr<DeviceMemory> cuda_memory(int index, Allocator* allocator) {
  return std::make_unique<CudaMemory>(index, allocator);
}

std::unique_ptr<Clock> cuda_clock(int index) { return std::make_unique<EventClock>(index); }

CudaCacheFlusher::CudaCacheFlusher(int index)
    : index_(index), bytes_(2 * cuda::hardware(index).l2_bytes) {
  buffer_ = cuda::allocate(bytes_, index, nullptr);
}

CudaCacheFlusher::~CudaCacheFlusher() { cuda::release(buffer_, index_, nullptr); }

void CudaCacheFlusher::operator()() {
  // One pass empties the cache. A few more keep the device busy until the host has queued what is
  // timed next: no host time is counted then.
  constexpr int kPasses = 4;
  for (int i = 0; i < kPasses; ++i) cuda::fill_bytes(buffer_, 0, bytes_, index_, nullptr);
}

}  // namespace tilewise
