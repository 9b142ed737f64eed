// Linear layers beside oneDNN on its own packed weights and beside the read rate of the memory. The
// weights come from RAM: each product takes the next ones of a pool larger than the last-level
// cache.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "benchmarks/kernels/raw_onednn.h"
#include "benchmarks/kernels/weight_pool.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"

namespace sluice::bench {
namespace {

using kernels::Compute;

// x as a checkpoint's pass would have it, and y, of one shape.
struct Operands {
  Operands(int64_t m, int64_t n, int64_t k)
      : x(static_cast<size_t>(kernels::padded_rows(m) * k)),
        rounded(x.size()),
        y(static_cast<size_t>(kernels::padded_rows(m) * n)) {
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(static_cast<int>(i % 17) - 8) / 8;
    kernels::convert(DType::kF32, x.data(), DType::kBF16, rounded.data(),
                     static_cast<int64_t>(x.size()));
  }
  std::vector<float> x;
  std::vector<uint16_t> rounded;
  std::vector<float> y;
};

// Seconds of oneDNN's product of the shape, over a quarter of a second. Measured at the first call
// of each benchmark case: Google Benchmark calls a case several times.
double onednn_seconds(DType dtype, int64_t m, int64_t n, int64_t k, const void* x, float* y) {
  static std::tuple<DType, int64_t, int64_t, int64_t> measured;
  static double seconds = 0;
  if (measured == std::tuple(dtype, m, n, k)) return seconds;
  measured = {dtype, m, n, k};
  RawOnednn raw(dtype, m, n, k);
  WeightPool& pool = WeightPool::instance();
  raw.run(x, pool.next(raw.weight_bytes()), y);
  const double start = now_seconds();
  int64_t calls = 0;
  for (; now_seconds() - start < 0.25; ++calls) raw.run(x, pool.next(raw.weight_bytes()), y);
  seconds = (now_seconds() - start) / static_cast<double>(calls);
  return seconds;
}

void linear(benchmark::State& state, DType dtype, Compute compute) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  WeightPool& pool = WeightPool::instance();
  Operands operands(m, n, k);
  const kernels::Activations x{operands.x.data(), operands.rounded.data(), m, k, k};
  std::vector<std::byte> scratch(
      static_cast<size_t>(kernels::linear_scratch_bytes(dtype, m, n, k, compute)));
  const int64_t bytes = n * k * dtype_bytes(dtype);
  const auto product = [&] {
    kernels::linear(x, pool.next(bytes), dtype, n, k, nullptr, operands.y.data(), n, compute,
                    scratch);
  };
  const double read_rate = pool.read_rate();
  const DType raw_type = compute == Compute::kBF16 ? DType::kBF16 : DType::kF32;
  const void* raw_x = compute == Compute::kBF16 ? static_cast<const void*>(operands.rounded.data())
                                                : operands.x.data();
  const double raw_seconds = onednn_seconds(raw_type, m, n, k, raw_x, operands.y.data());
  product();
  const double start = now_seconds();
  for (auto _ : state) product();
  const double seconds = (now_seconds() - start) / static_cast<double>(state.iterations());
  state.counters["GB/s"] = static_cast<double>(bytes) / seconds / 1e9;
  state.counters["of_read"] = static_cast<double>(bytes) / seconds / read_rate;
  state.counters["GFLOP/s"] = 2.0 * static_cast<double>(m * n * k) / seconds / 1e9;
  state.counters["of_onednn"] = raw_seconds / seconds;
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m", "n", "k"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4096, 4096}, {11008, 4096}, {4096, 11008}})
    for (const int64_t m : {1, 2, 4, 8, 16, 32, 64, 128, 512}) bench->Args({m, n, k});
}

void bf16(benchmark::State& state) {
  if (!kernels::bf16_compute_supported())
    return state.SkipWithError("this CPU has no bf16 products");
  linear(state, DType::kBF16, Compute::kBF16);
}
void f16(benchmark::State& state) { linear(state, DType::kF16, Compute::kF32); }
void f32(benchmark::State& state) { linear(state, DType::kF32, Compute::kF32); }

BENCHMARK(bf16)->Name("linear/bf16")->Apply(shapes);
BENCHMARK(f16)->Name("linear/f16")->Apply(shapes);
BENCHMARK(f32)->Name("linear/f32")->Apply(shapes);

}  // namespace
}  // namespace sluice::bench
