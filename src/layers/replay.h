/// A stretch of work on a CUDA stream as one graph.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "cuda/driver/stream.h"
#include "layers/run.h"

namespace tilewise::asam {

/// Runs work as it is the first time that it comes with a key, which takes the memory and loads the
/// kernels; captures it the second time, and replays what it captured from then on. Work of another
/// kind may take the memory away between two calls: then it begins again.
class Replay {
 public:
  struct Key {
    const void* x = nullptr;
    const void* y = nullptr;
    const void* lengths = nullptr;
    const void* mask = nullptr;
    std::array<std::int64_t, 4> mask_strides = {};
    std::int64_t batch = 0, tokens = 0;
    TrainOptions options;  ///< a step's: its kernels are given them
    bool operator==(const Key&) const = default;
  };

  void run(int device, void* stream, const Memory& memory, const Key& key,
           const std::function<void()>& work) {
    if (key != key_ || memory.epoch() != epoch_) {
      graph_.reset();
      key_ = key;
      work();
      epoch_ = memory.epoch();
      return;
    }
    if (!graph_) {
      graph_.emplace(device, static_cast<cuda::CUstream>(stream));
      work();
      graph_->end_capture();
    }
    graph_->launch();
  }

 private:
  Key key_;
  std::int64_t epoch_ = 0;
  std::optional<cuda::Graph> graph_;
};

}  // namespace tilewise::asam
