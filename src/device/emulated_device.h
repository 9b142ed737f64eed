#pragma once
// A device that is not there: a part of this machine's memory with a limit of its own, reached over
// a link with set rates and latency. What runs on it runs for real, on the host's cores; copies are
// real copies that end no sooner than the link would let them, by sleeping, not by spinning.
// Thread safe: one thread a lane.
#include <chrono>
#include <cstdint>
#include <string_view>

#include "src/base/arena.h"
#include "src/base/mutex.h"
#include "src/device/device.h"

namespace sluice {

/// "emulated:mem=4GiB,h2d=12GB/s,d2h=6GB/s,latency=10us,flops=2TFLOP/s,host_flops=1TFLOP/s"; keys
/// left out keep these.
struct EmulatedSpec {
  int64_t memory_bytes = int64_t{4} << 30;
  double to_device = 12e9;         ///< bytes per second; 0: no limit
  double to_host = 12e9;           ///< bytes per second; 0: no limit
  double latency_seconds = 10e-6;  ///< of one copy
  double flops = 0;                ///< of products and attention on the device; 0: no limit
  double host_flops = 0;           ///< of rows that the host multiplies in place; 0: no limit
};

/// Errors: kUser naming the key, its value and what it may be.
EmulatedSpec parse_emulated_spec(std::string_view text);

/// One direction of the link. Copies queue one behind the other.
class Link {
 public:
  using Clock = std::chrono::steady_clock;
  Link(double bytes_per_second, double latency_seconds)
      : rate_(bytes_per_second), latency_(latency_seconds) {}

  /// When a copy of `bytes` that is asked for now would end; the link is taken until then. One that
  /// is asked for less than a tenth of a millisecond after the last had ended began then: whoever
  /// waited for that one has overslept, which a copy engine with a queue does not.
  Clock::time_point queue(int64_t bytes);
  /// The same for a few bytes that go between the pieces of a large copy: it does not wait for the
  /// queue, the queue waits for it.
  Clock::time_point squeeze_in(int64_t bytes);
  double rate() const noexcept { return rate_; }

 private:
  Clock::duration transfer_time(int64_t bytes) const;

  double rate_;
  double latency_;
  Mutex mutex_;
  Clock::time_point free_at_ SLUICE_GUARDED_BY(mutex_){};
};

/// Waits until `time`: sleeps through most of it, and yields through the last tenth of a
/// millisecond, which a sleep would overshoot. For the thread that computes, which has nothing else
/// to do.
void wait_until(Link::Clock::time_point time);

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(const EmulatedSpec& spec);

  Arena& memory() noexcept override { return memory_; }
  void transfer(Direction direction, int64_t bytes,
                const std::function<void(const Copy&)>& copies) override;
  void load(std::byte* to, const std::byte* from, int64_t bytes) override;
  bool is_in_host_memory() const noexcept override { return true; }
  bool has_own_cores() const noexcept override { return false; }

  const EmulatedSpec& spec() const noexcept { return spec_; }
  Link& up() noexcept { return up_; }
  Link& down() noexcept { return down_; }
  /// Sleeps until `flops` operations begun at `start` would have ended on the device.
  void finish_compute(std::chrono::steady_clock::time_point start, double flops) const;
  /// The same of the host's products.
  void finish_on_host(std::chrono::steady_clock::time_point start, double flops) const;

 private:
  EmulatedSpec spec_;
  Arena memory_;
  Link up_;
  Link down_;
};

}  // namespace sluice
