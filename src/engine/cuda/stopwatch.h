#pragma once
// How long work on a stream takes by the device's clock, for measuring kernels: the work is
// recorded as a graph and replayed, so that neither the host's launches nor its clock are in the
// figure. A driver that makes no graph of it has it launched as it is. For one thread at a time.
#include <functional>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/stream_timer.h"
#include "policy/profile.h"

namespace sluice {

/// What `amount` of bytes or operations in `seconds` makes a second, with the seconds' spread.
inline policy::Figure rate_of(double amount, const policy::Figure& seconds) {
  return {amount / seconds.value, seconds.spread, policy::FigureSource::kMeasured, ""};
}

class Stopwatch {
 public:
  /// Figures are the median of `samples` (1 or more).
  Stopwatch(cuda::Stream stream, int samples) : stream_(stream), samples_(samples) {}

  /// Queues one call; `round` counts calls up from 0, so that each can take other operands.
  using Call = std::function<void(int round)>;

  /// Seconds of one call, when `rounds` of them run one behind the other, again and again: as many
  /// as asked for, or fewer where those would take more than kMostSeconds.
  policy::Figure of_kernels(int rounds, const Call& call);
  /// The same of what can't be recorded, such as copies from pageable memory.
  policy::Figure of_work(int rounds, const Call& call);
  /// Seconds that the host waits for one call and its end: what of_kernels() leaves out.
  policy::Figure of_host(int rounds, const Call& call);

  static constexpr double kMostSeconds = 0.02;

 private:
  double seconds_of(const std::function<void()>& work);
  policy::Figure median_of(int rounds, const std::function<double()>& sample) const;

  cuda::Stream stream_;
  int samples_;
  cuda::StreamTimer timer_;
};

}  // namespace sluice
