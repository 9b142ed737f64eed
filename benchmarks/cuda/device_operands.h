#pragma once
// What benchmarks of kernels give them, and how they are timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/engine/cuda/cuda_device.h"
#include "src/engine/cuda/operands.h"
#include "src/engine/cuda/stopwatch.h"

namespace sluice {

/// Operands that take turns are more than an L2 holds.
constexpr int64_t kRotateBytes = int64_t{512} << 20;

/// Buffers of the device, filled with normal values.
class Operands {
 public:
  Operands() : device_(0, 0) {}
  cuda::Stream stream() const { return device_.compute_stream(); }
  const cuda::Multiprocessors& multiprocessors() const {
    return device_.properties().multiprocessors;
  }
  std::byte* filled(DType type, int64_t count) {
    std::byte* const memory = take(count * dtype_bytes(type));
    fill_values(type, count, memory, stream());
    return memory;
  }
  float* floats(int64_t count) { return reinterpret_cast<float*>(filled(DType::kF32, count)); }
  template <class T>
  const T* sent(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    std::byte* const memory = take(bytes);
    if (bytes > 0) cuda::copy_to_device(memory, values.data(), bytes, stream());
    cuda::synchronize(stream());
    return reinterpret_cast<const T*>(memory);
  }
  std::byte* take(int64_t bytes) {
    kept_.push_back(device_.memory().allocate(std::max<int64_t>(bytes, 4), "operands"));
    return kept_.back().data();
  }

 private:
  CudaDevice device_;
  std::vector<Buffer> kept_;
};

/// Times call(round) and says the bytes a second of `bytes` a call.
inline void measure(benchmark::State& state, Operands& operands, int rounds, int64_t bytes,
                    const Stopwatch::Call& call) {
  Stopwatch stopwatch(operands.stream(), 1);
  for (auto _ : state) state.SetIterationTime(stopwatch.of_kernels(rounds, call).value);
  state.SetBytesProcessed(state.iterations() * bytes);
}

}  // namespace sluice
