// Products of few rows with quantised weights, of the matrices that models have: bound by reading
// the weights, whose bytes a second are the figure.
#include <benchmark/benchmark.h>

#include "kernels/cuda/quantised_linear.h"
#include "src/base/bytes.h"
#include "src/engine/cuda/cuda_device.h"
#include "src/engine/cuda/operands.h"
#include "src/engine/cuda/stopwatch.h"

namespace sluice {
namespace {
constexpr int64_t kRotateBytes = int64_t{512} << 20;
const char* const kFormats[] = {"int4-g64", "int4-g128", "nf4-g64", "int8", "fp8", "mxfp4"};

// Arguments: format, rows of x, n, k.
void few_rows(benchmark::State& state) {
  const WeightFormat format = *parse_weight_format(kFormats[state.range(0)]);
  const int64_t m = state.range(1);
  const int64_t n = state.range(2);
  const int64_t k = state.range(3);
  CudaDevice device(0, 0);
  const cuda::Stream stream = device.compute_stream();
  const auto take = [&](int64_t bytes) { return device.memory().allocate(bytes, "operands"); };
  const Buffer w = take(MatrixPool::bytes_for(format, n, k, kRotateBytes));
  MatrixPool pool(w, kRotateBytes);
  pool.fill(format, n, k, stream);
  const Buffer x = take(m * k * 2);
  fill_values(DType::kF16, m * k, x.data(), stream);
  const Buffer y = take(m * n * 4);
  const cuda::LinearPlan plan =
      cuda::plan_linear_quantised(format, m, n, k, device.properties().multiprocessors);
  const Buffer sums = take(std::max<int64_t>(plan.workspace_floats * 4, 4));
  const Buffer counters = take(cuda::split_counters(device.properties().multiprocessors) * 4);
  cuda::fill_zero(counters.data(), counters.size(), stream);
  const cuda::SplitSpace space{sums.as<float>(), counters.as<uint32_t>()};
  const auto multiply = [&](int round) {
    cuda::linear_quantised({x.as<uint16_t>(), k, DType::kF16}, m, k, pool.at(round), format, n,
                           nullptr, y.as<float>(), n, plan, space, stream);
  };
  Stopwatch stopwatch(stream, 1);
  for (auto _ : state)
    state.SetIterationTime(stopwatch.of_kernels(std::min(pool.matrices(), 256), multiply).value);
  state.SetBytesProcessed(state.iterations() * format.bytes(n, k));
  state.SetLabel(kFormats[state.range(0)]);
}

// Llama 7B, 8B and 70B: a square, the MLP's two, K and V of few heads, the head of 128 thousand
// tokens.
void arguments(benchmark::internal::Benchmark* bench) {
  constexpr int64_t kSizes[][2] = {{4096, 4096},  {14336, 4096}, {4096, 14336}, {1024, 8192},
                                   {28672, 8192}, {8192, 28672}, {128256, 4096}};
  for (const auto& [n, k] : kSizes)
    for (int64_t format = 0; format < static_cast<int64_t>(std::size(kFormats)); ++format)
      for (const int64_t m : {1, 8, 64}) bench->Args({format, m, n, k});
  bench->Unit(benchmark::kMicrosecond)->UseManualTime()->Iterations(5);
}
BENCHMARK(few_rows)->Apply(arguments);

}  // namespace
}  // namespace sluice
