#include "src/profile/measure_delay.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "src/base/bytes.h"
#include "src/profile/product_bench.h"

namespace sluice {

namespace {
using Clock = std::chrono::steady_clock;

// Calls `move` on a thread of its own until it dies.
class Mover {
 public:
  explicit Mover(const std::function<int64_t()>& move)
      : thread_([this, &move](std::stop_token stop) {
          try {
            while (!stop.stop_requested()) moved_ += move();
          } catch (...) {
            error_ = std::current_exception();
          }
        }) {}
  /// Bytes a second since it was made. Errors: those of `move`.
  double finish() {
    thread_.request_stop();
    thread_.join();
    if (error_) std::rethrow_exception(error_);
    return static_cast<double>(moved_) /
           std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  Clock::time_point start_ = Clock::now();
  std::atomic<int64_t> moved_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;
};
}  // namespace

Delay measure_delay(const MeasureLimits& limits, const std::function<int64_t()>& move,
                    const char* note) {
  constexpr int kTurns = 3;
  const double seconds = limits.quick ? 0.12 : 0.25;
  std::vector<double> delays;  // of each kind of product
  std::vector<double> rates;
  for (const int64_t m : {1, 64}) {
    ProductMemory memory(limits.memory_bytes / 2);
    ProductBench bench(memory, WeightFormat::plain(DType::kBF16), kernels::ActivationFormat::k16Bit,
                       4096, 2048, m);
    const int64_t rows = std::min(m, bench.most_rows());
    std::vector<double> turns;
    std::vector<double> turn_rates;
    for (int turn = 0; turn < kTurns; ++turn) {
      stop_if_asked(limits.cancel);
      const double alone = bench.mean_flops(rows, seconds);
      Mover mover(move);
      const double beside = bench.mean_flops(rows, seconds);
      const double rate = mover.finish();
      turn_rates.push_back(rate);
      turns.push_back(rate > 0 ? std::max(0.0, (alone / beside - 1) / rate) : 0);
    }
    delays.push_back(median_of(turns, "").value);
    rates.push_back(median_of(turn_rates, "").value);
  }
  Delay out;
  out.seconds_per_byte = median_of({(delays[0] + delays[1]) / 2}, note);
  out.moved_rate = median_of({(rates[0] + rates[1]) / 2}, "while the cores compute");
  return out;
}

namespace {
// Copies from one part of memory to another, block by block, larger than caches where it may be.
class CopyBench {
 public:
  explicit CopyBench(int64_t memory_bytes)
      : bytes_(round_down(std::clamp(memory_bytes / 8, kMiB, 128 * kMiB), 4096)),
        block_(std::min(4 * kMiB, bytes_)),
        arena_("profile", 2 * bytes_ + 2 * kMiB),
        from_(arena_.allocate(bytes_, "copies")),
        to_(arena_.allocate(bytes_, "copies")) {
    std::memset(from_.data(), 1, static_cast<size_t>(from_.size()));
    std::memset(to_.data(), 1, static_cast<size_t>(to_.size()));
  }
  /// The next block's bytes.
  int64_t copy() {
    if (at_ + block_ > bytes_) at_ = 0;
    std::memcpy(to_.data() + at_, from_.data() + at_, static_cast<size_t>(block_));
    at_ += block_;
    return block_;
  }

 private:
  int64_t bytes_;
  int64_t block_;
  Arena arena_;
  Buffer from_;
  Buffer to_;
  int64_t at_ = 0;
};
}  // namespace

void measure_copies(const MeasureLimits& limits, policy::Profile& out) {
  constexpr double kRate = 3e9;
  constexpr int kTurns = 3;
  const std::chrono::duration<double> turn(limits.quick ? 0.05 : 0.2);
  CopyBench bench(limits.memory_bytes);
  std::vector<double> rates;
  for (int i = 0; i < kTurns; ++i) {
    stop_if_asked(limits.cancel);
    const auto start = Clock::now();
    std::chrono::duration<double> took{};
    double copied = 0;
    while (took < turn) {
      copied += static_cast<double>(bench.copy());
      took = Clock::now() - start;
    }
    rates.push_back(copied / took.count());
  }
  out.copy_rate = median_of(rates, "one core, alone");
  auto due = Clock::now();
  const auto copy = [&] {
    const int64_t copied = bench.copy();
    due = std::max(due, Clock::now() - std::chrono::milliseconds(1)) +
          std::chrono::duration_cast<Clock::duration>(
              std::chrono::duration<double>(static_cast<double>(copied) / kRate));
    std::this_thread::sleep_until(due);
    return copied;
  };
  out.copy_delay = measure_delay(limits, copy, "products beside copies at 3 GB/s").seconds_per_byte;
}

}  // namespace sluice
