/// Streams and events that clean up after themselves.
#pragma once

#include "cuda/driver/cuda_types.h"

namespace tilewise::cuda {

/// A stream that does not synchronise with the default stream.
class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const { return stream_; }
  int device() const { return device_; }
  /// Waits for everything queued so far. Throws DeviceError.
  void synchronize() const;

 private:
  int device_;
  CUstream stream_ = nullptr;
};

/// A point in a stream's work, with a time stamp.
class Event {
 public:
  explicit Event(int device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(CUstream stream);
  void synchronize() const;
  /// Milliseconds from `start` to this event, once both have passed.
  double ms_since(const Event& start) const;

 private:
  int device_;
  CUevent event_ = nullptr;
};

/// Work captured from a stream, to be replayed.
class Graph {
 public:
  explicit Graph(const Stream& stream) : Graph(stream.device(), stream.get()) {}
  Graph(int device, CUstream stream);  ///< begins the capture
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void end_capture();
  void launch() const;

 private:
  int device_;
  CUstream stream_;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
  bool capturing_ = false;
};

}  // namespace tilewise::cuda
