#pragma once
// Times the kernels that a run calls on the host's cores, by class, for the profile to learn from.
// Costs two looks at the clock a call. Thread safe, as the tally is.
#include <chrono>
#include <span>

#include "kernels/attention.h"
#include "kernels/quantised_linear.h"
#include "policy/kernel_times.h"

namespace sluice {

class KernelWatch {
 public:
  /// `tally` may be null: nothing is kept. Products that compute in another way than a profile's
  /// (other element types than the CPU's best, outliers apart) are not kept either.
  KernelWatch(policy::KernelTally* tally, const kernels::QuantisedOptions& compute);

  template <typename Work>
  void product(const WeightFormat& weights, int64_t m, int64_t n, int64_t k, const Work& work) {
    const auto start = Clock::now();
    work();
    keep_product(weights, m, n, k, seconds_since(start));
  }
  template <typename Work>
  void attention(const kernels::AttentionShape& shape,
                 std::span<const kernels::AttentionSequence> sequences, const Work& work) {
    const auto start = Clock::now();
    work();
    keep_attention(shape, sequences, seconds_since(start));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void keep_product(const WeightFormat& weights, int64_t m, int64_t n, int64_t k, double seconds);
  void keep_attention(const kernels::AttentionShape& shape,
                      std::span<const kernels::AttentionSequence> sequences, double seconds);

  policy::KernelTally* tally_;
  kernels::QuantisedOptions compute_;
};

}  // namespace sluice
