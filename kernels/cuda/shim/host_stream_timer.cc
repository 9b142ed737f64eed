#include "kernels/cuda/driver.h"
#include "kernels/cuda/shim/host_grid.h"
#include "kernels/cuda/stream_timer.h"

namespace sluice::cuda {

// The queued work reads the clock, which may be after the timer's end.
struct StreamTimer::Impl {
  std::shared_ptr<double> begin = std::make_shared<double>();
  std::shared_ptr<double> end = std::make_shared<double>();
  Stream stream = nullptr;
};

StreamTimer::StreamTimer() : impl_(std::make_unique<Impl>()) {}
StreamTimer::~StreamTimer() = default;
void StreamTimer::start(Stream stream) {
  host::enqueue_reading(stream, [at = impl_->begin] { *at = host::timer_seconds(); });
}
void StreamTimer::stop(Stream stream) {
  impl_->stream = stream;
  host::enqueue_reading(stream, [at = impl_->end] { *at = host::timer_seconds(); });
}
double StreamTimer::seconds() const {
  synchronize(impl_->stream);
  return *impl_->end - *impl_->begin;
}

}  // namespace sluice::cuda
