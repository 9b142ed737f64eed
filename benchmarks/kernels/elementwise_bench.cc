// Norms, activations, rotary positions and conversions on a prefill's rows: all should run at cache
// or memory speed.
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace sluice::bench {
namespace {

constexpr int64_t kRows = 512;
constexpr int64_t kCols = 4096;

void set_rate(benchmark::State& state, int64_t bytes) {
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(bytes * state.iterations()) / 1e9,
                                              benchmark::Counter::kIsRate);
}

void rms_norm(benchmark::State& state) {
  std::vector<float> x(kRows * kCols, 0.5f), gain(kCols, 1.0f), y(x.size());
  for (auto _ : state) kernels::rms_norm(x.data(), gain.data(), 1e-6f, y.data(), kRows, kCols);
  set_rate(state, kRows * kCols * 8);
}

void gated(benchmark::State& state) {
  std::vector<float> gate(kRows * kCols, 0.5f), up(gate), y(gate.size());
  for (auto _ : state)
    kernels::gated(Activation::kSilu, gate.data(), kCols, up.data(), kCols, y.data(), kCols, kRows,
                   kCols);
  set_rate(state, kRows * kCols * 12);
}

void gelu(benchmark::State& state) {
  std::vector<float> x(kRows * kCols, 0.5f);
  for (auto _ : state) kernels::activate(Activation::kGelu, x.data(), kRows * kCols);
  set_rate(state, kRows * kCols * 8);
}

void rope(benchmark::State& state) {
  std::vector<float> x(kRows * kCols, 0.5f), frequencies(64, 0.01f);
  std::vector<int32_t> positions(kRows);
  for (int64_t i = 0; i < kRows; ++i) positions[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  for (auto _ : state)
    kernels::rope_inplace(x.data(), kRows, kCols, kCols / 128, 128, 128, positions.data(),
                          frequencies.data(), 1.0f);
  set_rate(state, kRows * kCols * 8);
}

void convert(benchmark::State& state, DType from, DType to) {
  std::vector<float> source(kRows * kCols), target(kRows * kCols);
  for (auto _ : state) kernels::convert(from, source.data(), to, target.data(), kRows * kCols);
  set_rate(state, kRows * kCols * (dtype_bytes(from) + dtype_bytes(to)));
}
void f32_to_bf16(benchmark::State& state) { convert(state, DType::kF32, DType::kBF16); }
void f16_to_f32(benchmark::State& state) { convert(state, DType::kF16, DType::kF32); }

BENCHMARK(rms_norm)->Name("rms_norm")->UseRealTime();
BENCHMARK(gated)->Name("gated")->UseRealTime();
BENCHMARK(gelu)->Name("gelu")->UseRealTime();
BENCHMARK(rope)->Name("rope")->UseRealTime();
BENCHMARK(f32_to_bf16)->Name("convert/f32/bf16")->UseRealTime();
BENCHMARK(f16_to_f32)->Name("convert/f16/f32")->UseRealTime();

}  // namespace
}  // namespace sluice::bench
