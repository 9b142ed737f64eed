#pragma once
// Memory for a product's split sums: what nobody has written is NaN, the counters zeros before and
// after.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/cuda/split_space.h"
#include "tests/kernels/cuda/device_array.h"

namespace sluice::cuda {

class SplitMemory {
 public:
  SplitMemory(int64_t floats, int multiprocessors)
      : sums_(std::vector<float>(static_cast<size_t>(floats),
                                 std::numeric_limits<float>::quiet_NaN())),
        counters_(std::vector<uint32_t>(static_cast<size_t>(split_counters({multiprocessors})))) {}

  SplitSpace space() const { return {sums_.data(), counters_.data()}; }
  void expect_zeros() const {
    for (const uint32_t count : counters_.values()) ASSERT_EQ(count, 0u);
  }

 private:
  DeviceArray<float> sums_;
  DeviceArray<uint32_t> counters_;
};

}  // namespace sluice::cuda
