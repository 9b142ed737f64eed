#pragma once
// Memory that does not stay in the last-level cache, and how fast it can be read: what small
// products and decode attention are held against. One pool for the whole program, made at the first
// use.
#include <cstddef>
#include <cstdint>

namespace sluice::bench {

/// 2 GiB (a quarter of the RAM where that is less), touched; every 16-bit pattern in it is a small
/// normal number as f16, as bf16 and as half of an f32.
class WeightPool {
 public:
  static WeightPool& instance();
  WeightPool(const WeightPool&) = delete;
  WeightPool& operator=(const WeightPool&) = delete;

  /// The next `bytes` of the pool, from its start again when it ends: what was handed out last
  /// comes back last.
  std::byte* next(int64_t bytes);
  int64_t size() const noexcept { return bytes_; }

  /// Bytes a second that all threads together read from the pool, best of three runs of a quarter
  /// of it, at most a few seconds ago.
  double read_rate();

 private:
  WeightPool();
  ~WeightPool();
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
  int64_t at_ = 0;
  double measured_rate_ = 0;
  double measured_at_ = 0;
};

/// Seconds on a steady clock.
double now_seconds();

}  // namespace sluice::bench
