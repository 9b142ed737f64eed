// What stands between products: norms with the residual and the 16-bit copy, KV written to pages.
// Bound by memory; the bytes a second that each must move are the figure.
#include <benchmark/benchmark.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/norm.h"
#include "src/engine/cuda/cuda_device.h"
#include "src/engine/cuda/operands.h"
#include "src/engine/cuda/stopwatch.h"

namespace sluice {
namespace {
constexpr int64_t kRotateBytes = int64_t{512} << 20;
constexpr int kMostRounds = 256;

int rounds_for(int64_t bytes) {
  return static_cast<int>(std::min<int64_t>(kRotateBytes / bytes + 1, kMostRounds));
}

// Arguments: rows, columns.
void norm_with_residual(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t cols = state.range(1);
  CudaDevice device(0, 0);
  const cuda::Stream stream = device.compute_stream();
  const int64_t values = rows * cols;
  const int rounds = rounds_for(values * 8);
  const auto take = [&](int64_t bytes) { return device.memory().allocate(bytes, "operands"); };
  const Buffer x = take(rounds * values * 4);
  const Buffer addend = take(rounds * values * 4);
  const Buffer copy = take(values * 2);
  const Buffer gain = take(cols * 4);
  fill_values(DType::kF32, rounds * values, x.data(), stream);
  fill_values(DType::kF32, rounds * values, addend.data(), stream);
  fill_values(DType::kF32, cols, gain.data(), stream);
  Stopwatch stopwatch(stream, 1);
  for (auto _ : state) {
    const auto norm = [&](int round) {
      float* const added = addend.as<float>() + round * values;
      cuda::rms_norm({x.as<float>() + round * values,
                      added,
                      added,
                      {rows, cols, cols},
                      {{copy.as<uint16_t>(), cols, DType::kF16}, {}}},
                     gain.as<float>(), 1e-5F, stream);
    };
    state.SetIterationTime(stopwatch.of_kernels(rounds, norm).value);
  }
  // x and the addend are read, x, y and the copy written.
  state.SetBytesProcessed(state.iterations() * values * 18);
}
BENCHMARK(norm_with_residual)
    ->ArgsProduct({{1, 16, 1024}, {4096, 8192}})
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(5);

const KvFormat kKvFormats[] = {DType::kF16, KvFormat(KvEncoding::kInt8),
                               KvFormat(KvEncoding::kInt4), kInt8KeysInt4Values};

// Arguments: type of KV, rows; each row into a page of its own, as sequences of single tokens do.
void kv_write(benchmark::State& state) {
  kernels::AttentionShape shape;
  shape.num_heads = 32;
  shape.num_kv_heads = 8;
  shape.head_dim = 128;
  shape.kv_dtype = kKvFormats[state.range(0)];
  shape.page_tokens = static_cast<int>(shape.kv_dtype.page_tokens());
  const int64_t rows = state.range(1);
  const int64_t cols = int64_t{shape.num_kv_heads} * shape.head_dim;
  const int64_t page_bytes = shape.page_bytes();
  CudaDevice device(0, 0);
  const cuda::Stream stream = device.compute_stream();
  const auto take = [&](int64_t bytes) { return device.memory().allocate(bytes, "operands"); };
  const Buffer k = take(rows * cols * 4);
  const Buffer v = take(rows * cols * 4);
  fill_values(DType::kF32, rows * cols, k.data(), stream);
  fill_values(DType::kF32, rows * cols, v.data(), stream);
  const Buffer pages = take(rows * page_bytes);
  std::vector<cuda::KvPlace> places(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row)
    places[static_cast<size_t>(row)] = {pages.data() + row * page_bytes,
                                        static_cast<int32_t>(row % shape.page_tokens)};
  const auto place_bytes = static_cast<int64_t>(places.size() * sizeof(cuda::KvPlace));
  const Buffer device_places = take(place_bytes);
  cuda::copy_to_device(device_places.data(), places.data(), place_bytes, stream);
  cuda::synchronize(stream);
  Stopwatch stopwatch(stream, 1);
  for (auto _ : state) {
    const auto write = [&](int) {
      cuda::kv_write(shape, k.as<float>(), v.as<float>(), cols, device_places.as<cuda::KvPlace>(),
                     0, rows, {}, stream);
    };
    state.SetIterationTime(stopwatch.of_kernels(16, write).value);
  }
  state.SetBytesProcessed(state.iterations() * rows * (cols * 8 + page_bytes / shape.page_tokens));
  state.SetLabel(kv_format_name(shape.kv_dtype));
}
BENCHMARK(kv_write)
    ->ArgsProduct({{0, 1, 2}, {16, 1024}})
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(5);

}  // namespace
}  // namespace sluice
