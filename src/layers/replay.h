/// A stretch of work on a CUDA stream as one graph.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "cuda/driver/stream.h"

namespace tilewise::asam {

/// Runs work as it is the first time that it comes with a key, which takes the memory and loads the
/// kernels; captures it the second time, and replays what it captured from then on.
class Replay {
 public:
  struct Key {
    const void* x = nullptr;
    const void* y = nullptr;
    const void* lengths = nullptr;
    const void* mask = nullptr;
    std::int64_t batch = 0, tokens = 0;
    bool operator==(const Key&) const = default;
  };

  void run(int device, void* stream, const Key& key, const std::function<void()>& work) {
    if (key != key_) {
      graph_.reset();
      key_ = key;
      return work();
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
  std::optional<cuda::Graph> graph_;
};

}  // namespace tilewise::asam
