#pragma once
// Times products of one weight format and size, over weights that the caches don't hold. One thread
// at a time.
#include <chrono>
#include <span>
#include <vector>

#include "kernels/quantised_linear.h"
#include "src/base/arena.h"

namespace sluice {

/// From `start` to now.
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What products of every format and size share. Its contents are numbers in all of them.
class ProductMemory {
 public:
  /// Takes `bytes`, at least 1 MiB. Errors: kResource.
  explicit ProductMemory(int64_t bytes);
  std::span<std::byte> span() const noexcept { return buffer_.span(); }

 private:
  Arena arena_;
  Buffer buffer_;
};

class ProductBench {
 public:
  /// y[m, n] = x[m, k] W[n, k]^T for m up to `most_rows`. Where `memory` is too small for that,
  /// n, k and most_rows shrink.
  ProductBench(const ProductMemory& memory, const WeightFormat& format,
               kernels::ActivationFormat activations, int64_t n, int64_t k, int64_t most_rows);

  int64_t n() const noexcept { return n_; }
  int64_t k() const noexcept { return k_; }
  int64_t most_rows() const noexcept { return most_rows_; }

  /// Operations per second: of calls in `least_seconds` (three calls, unless they are long; one of
  /// 0), the one that an eighth are faster than. What interrupts most calls does not show.
  double flops(int64_t m, double least_seconds);
  /// The mean over at least `least_seconds`.
  double mean_flops(int64_t m, double least_seconds);

 private:
  bool lay_out(std::span<std::byte> memory);
  double run(int64_t m);  // seconds of a call
  double flops_in(int64_t m, double seconds) const noexcept;

  WeightFormat format_;
  kernels::QuantisedOptions options_;
  int64_t n_, k_, most_rows_;
  int64_t matrix_bytes_ = 0, matrices_ = 0;
  bool evicts_ = false;
  std::span<std::byte> weights_, x_, x16_, y_, scratch_;
  int64_t next_ = 0;
};

}  // namespace sluice
