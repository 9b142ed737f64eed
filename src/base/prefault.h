#pragma once
// Gives fresh anonymous memory its pages ahead of use, on threads of its own. The first touch of a
// page costs more than copying into it (the kernel zeroes it, a hypervisor may have to find it), so
// a loader that touches pages itself runs at that rate, on one core. Contents are not changed;
// where the kernel can't do it (Linux before 5.14) nothing happens and the first touch pays.
#include <atomic>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace sluice {

class Prefault {
 public:
  /// Starts at once, first range first, each from the front, with `threads` threads. The memory
  /// outlives the object.
  Prefault(const std::vector<std::span<std::byte>>& ranges, int threads);
  /// Stops after the pieces at hand.
  ~Prefault() = default;
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  /// Waits for all of it.
  void finish();

 private:
  void run(std::stop_token stop);

  std::vector<std::span<std::byte>> pieces_;
  std::atomic<size_t> next_ = 0;
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

}  // namespace sluice
