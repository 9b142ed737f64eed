#pragma once
// Random operands for measuring kernels. A GPU's cache holds some tens of MiB, so matrices take
// turns until more has been read than it holds; and arithmetic on zeros takes less power, so that
// clocks rise: values are those of a normal distribution. Memory is the device's; calls wait until
// it is filled. Errors: kDevice, kResource.
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/driver.h"
#include "src/base/arena.h"
#include "src/base/weight_format.h"

namespace sluice {

/// [count] values of `type` (f32, f16, bf16).
void fill_values(DType type, int64_t count, std::byte* memory, cuda::Stream stream);
/// Pages of KV, all with the same tokens.
void fill_pages(const kernels::AttentionShape& shape, int64_t pages, std::byte* memory,
                cuda::Stream stream);

/// Matrices [n, k] of one format, read in turn.
class MatrixPool {
 public:
  /// As many matrices as fit `memory`, one at least: bytes_for() says how much that takes.
  MatrixPool(const Buffer& memory, int64_t rotate_bytes) : memory_(memory), rotate_(rotate_bytes) {}
  /// What matrices take that are `rotate_bytes` together, or one that is larger.
  static int64_t bytes_for(const WeightFormat& format, int64_t n, int64_t k, int64_t rotate_bytes);

  /// Makes them; those of an earlier call are gone.
  void fill(const WeightFormat& format, int64_t n, int64_t k, cuda::Stream stream);
  int matrices() const noexcept { return matrices_; }
  /// Number `round` of them, counted on from the last to the first.
  const std::byte* at(int round) const noexcept {
    return memory_.data() + int64_t{round % matrices_} * matrix_bytes_;
  }

 private:
  const Buffer& memory_;
  int64_t rotate_;
  int64_t matrix_bytes_ = 0;
  int matrices_ = 1;
};

}  // namespace sluice
