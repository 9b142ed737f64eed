// Products with quantised matrices beside the read rate of the memory: packed bytes a second where
// few rows of x make them the limit, operations where many do. The weights come from RAM, as in
// linear_bench.
#include <benchmark/benchmark.h>

#include <vector>

#include "benchmarks/kernels/weight_pool.h"
#include "kernels/elementwise.h"
#include "kernels/quantised_linear.h"

namespace sluice::bench {
namespace {

using kernels::ActivationFormat;
using kernels::Compute;

void product(benchmark::State& state, const char* name, ActivationFormat activations) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const WeightFormat format = parse_weight_format(name).value();
  const kernels::QuantisedOptions options{
      kernels::bf16_compute_supported() ? Compute::kBF16 : Compute::kF32, activations};
  WeightPool& pool = WeightPool::instance();
  const int64_t rows = kernels::padded_rows(m);
  std::vector<float> x(static_cast<size_t>(rows * k)), y(static_cast<size_t>(rows * n));
  std::vector<uint16_t> rounded(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i % 17) - 8) / 8;
  kernels::convert(DType::kF32, x.data(), DType::kBF16, rounded.data(),
                   static_cast<int64_t>(x.size()));
  std::vector<std::byte> scratch(
      static_cast<size_t>(kernels::quantised_scratch_bytes(format, m, k, options)));
  const kernels::Activations input{x.data(), rounded.data(), m, k, k};
  const int64_t bytes = format.bytes(n, k);
  const auto run = [&] {
    kernels::linear_quantised(input, pool.next(bytes), format, n, nullptr, y.data(), n, options,
                              scratch);
  };
  const double read_rate = pool.read_rate();
  run();
  const double start = now_seconds();
  for (auto _ : state) run();
  const double seconds = (now_seconds() - start) / static_cast<double>(state.iterations());
  state.counters["GB/s"] = static_cast<double>(bytes) / seconds / 1e9;
  state.counters["of_read"] = static_cast<double>(bytes) / seconds / read_rate;
  state.counters["Gop/s"] = 2.0 * static_cast<double>(m * n * k) / seconds / 1e9;
}

constexpr const char* kKTypes[] = {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m", "n", "k"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const int64_t m : {1, 2, 4, 8, 16, 32, 128, 512}) bench->Args({m, 11008, 4096});
  bench->Args({512, 28672, 7168})->Args({512, 7168, 28672})->Args({512, 2048, 5632});
}

void int4_16(benchmark::State& state) { product(state, "int4-g64", ActivationFormat::k16Bit); }
void int4_8(benchmark::State& state) { product(state, "int4-g64", ActivationFormat::kInt8); }
void int4_32_8(benchmark::State& state) { product(state, "int4-g32", ActivationFormat::kInt8); }
void int8_16(benchmark::State& state) { product(state, "int8", ActivationFormat::k16Bit); }
void int8_8(benchmark::State& state) { product(state, "int8", ActivationFormat::kInt8); }
void nf4_16(benchmark::State& state) { product(state, "nf4-g64", ActivationFormat::k16Bit); }
void int8_32_8(benchmark::State& state) { product(state, "int8-g32", ActivationFormat::kInt8); }
void int8_32_16(benchmark::State& state) { product(state, "int8-g32", ActivationFormat::k16Bit); }
template <int kBits>
void k_16(benchmark::State& state) {
  product(state, kKTypes[kBits - 2], ActivationFormat::k16Bit);
}
template <int kBits>
void k_8(benchmark::State& state) {
  product(state, kKTypes[kBits - 2], ActivationFormat::kInt8);
}

void q4_1_16(benchmark::State& state) { product(state, "q4_1", ActivationFormat::k16Bit); }
void q4_1_8(benchmark::State& state) { product(state, "q4_1", ActivationFormat::kInt8); }
void q5_1_16(benchmark::State& state) { product(state, "q5_1", ActivationFormat::k16Bit); }
void q5_1_8(benchmark::State& state) { product(state, "q5_1", ActivationFormat::kInt8); }
void iq2_16(benchmark::State& state) { product(state, "iq2", ActivationFormat::k16Bit); }
void iq2_8(benchmark::State& state) { product(state, "iq2", ActivationFormat::kInt8); }

BENCHMARK(int4_16)->Name("quantised/int4-g64/16bit")->Apply(shapes);
BENCHMARK(int4_8)->Name("quantised/int4-g64/int8")->Apply(shapes);
BENCHMARK(int4_32_8)->Name("quantised/int4-g32/int8")->Apply(shapes);
BENCHMARK(int8_16)->Name("quantised/int8/16bit")->Apply(shapes);
BENCHMARK(int8_8)->Name("quantised/int8/int8")->Apply(shapes);
BENCHMARK(nf4_16)->Name("quantised/nf4-g64/16bit")->Apply(shapes);
BENCHMARK(int8_32_8)->Name("quantised/int8-g32/int8")->Apply(shapes);
BENCHMARK(int8_32_16)->Name("quantised/int8-g32/16bit")->Apply(shapes);
BENCHMARK(k_16<6>)->Name("quantised/q6_k/16bit")->Apply(shapes);
BENCHMARK(k_8<6>)->Name("quantised/q6_k/int8")->Apply(shapes);
BENCHMARK(k_16<4>)->Name("quantised/q4_k/16bit")->Apply(shapes);
BENCHMARK(k_8<4>)->Name("quantised/q4_k/int8")->Apply(shapes);
BENCHMARK(k_8<5>)->Name("quantised/q5_k/int8")->Apply(shapes);
BENCHMARK(k_8<3>)->Name("quantised/q3_k/int8")->Apply(shapes);
BENCHMARK(k_8<2>)->Name("quantised/q2_k/int8")->Apply(shapes);
BENCHMARK(q4_1_16)->Name("quantised/q4_1/16bit")->Apply(shapes);
BENCHMARK(q4_1_8)->Name("quantised/q4_1/int8")->Apply(shapes);
BENCHMARK(q5_1_16)->Name("quantised/q5_1/16bit")->Apply(shapes);
BENCHMARK(q5_1_8)->Name("quantised/q5_1/int8")->Apply(shapes);
BENCHMARK(iq2_16)->Name("quantised/iq2/16bit")->Apply(shapes);
BENCHMARK(iq2_8)->Name("quantised/iq2/int8")->Apply(shapes);

}  // namespace
}  // namespace sluice::bench
