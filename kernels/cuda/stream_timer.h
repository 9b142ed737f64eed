#pragma once
// Seconds between two points of a stream's work by the device's own clock: what the host does
// meanwhile is not in them. Two sources define it, as driver.h: stream_timer_cuda.cc with CUDA's
// events, shim/host_stream_timer.cc on the host's stand-in. For one thread at a time. Errors:
// kDevice.
#include <memory>

#include "kernels/cuda/types.h"

namespace sluice::cuda {

class StreamTimer {
 public:
  StreamTimer();
  ~StreamTimer();
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  /// After all that `stream` has been given so far. Not while the stream is being recorded.
  void start(Stream stream);
  void stop(Stream stream);
  /// From the last start() to the last stop(), which it waits for; what went wrong in the stream is
  /// thrown.
  double seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::cuda
