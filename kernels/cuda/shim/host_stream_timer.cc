#include <chrono>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/shim/host_grid.h"
#include "kernels/cuda/stream_timer.h"

namespace sluice::cuda {

namespace {
using Clock = std::chrono::steady_clock;
}

// The queued work reads the clock, which may be after the timer's end.
struct StreamTimer::Impl {
  std::shared_ptr<Clock::time_point> begin = std::make_shared<Clock::time_point>();
  std::shared_ptr<Clock::time_point> end = std::make_shared<Clock::time_point>();
  Stream stream = nullptr;
};

StreamTimer::StreamTimer() : impl_(std::make_unique<Impl>()) {}
StreamTimer::~StreamTimer() = default;
void StreamTimer::start(Stream stream) {
  host::enqueue_work(stream, [at = impl_->begin] { *at = Clock::now(); });
}
void StreamTimer::stop(Stream stream) {
  impl_->stream = stream;
  host::enqueue_work(stream, [at = impl_->end] { *at = Clock::now(); });
}
double StreamTimer::seconds() const {
  synchronize(impl_->stream);
  return std::chrono::duration<double>(*impl_->end - *impl_->begin).count();
}

}  // namespace sluice::cuda
