#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/stream_timer.h"
#include "src/base/error.h"

namespace sluice::cuda {

namespace {
void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // the caller may go on: the next launch must not find it
  throw Error(ErrorKind::kDevice,
              std::string(doing) + ": " + cudaGetErrorString(status) + " (" +
                  cudaGetErrorName(status) + ")",
              "sluice doctor shows what the driver says");
}

class TimedEvent {
 public:
  TimedEvent() { check(cudaEventCreate(&event_), "making an event that keeps the time"); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  void record(Stream stream) {
    check(cudaEventRecord(event_, reinterpret_cast<cudaStream_t>(stream)), "recording an event");
  }
  cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};
}  // namespace

struct StreamTimer::Impl {
  TimedEvent begin;
  TimedEvent end;
};

StreamTimer::StreamTimer() : impl_(std::make_unique<Impl>()) {}
StreamTimer::~StreamTimer() = default;
void StreamTimer::start(Stream stream) { impl_->begin.record(stream); }
void StreamTimer::stop(Stream stream) { impl_->end.record(stream); }
double StreamTimer::seconds() const {
  check(cudaEventSynchronize(impl_->end.get()), "waiting for the GPU");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, impl_->begin.get(), impl_->end.get()),
        "asking how long the GPU took");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace sluice::cuda
