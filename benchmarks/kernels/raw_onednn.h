#pragma once
// oneDNN's matmul called directly on its own packed layout: the yardstick for our linear layers.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/base/dtype.h"

namespace sluice::bench {

class RawOnednn {
 public:
  /// y [m, n] f32 = x [m, k] times packed weights of `dtype` (f32 or bf16; x has the same type).
  RawOnednn(DType dtype, int64_t m, int64_t n, int64_t k);
  ~RawOnednn();
  int64_t weight_bytes() const;
  void run(const void* x, const std::byte* weights, float* y);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice::bench
