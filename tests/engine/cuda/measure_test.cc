// Measuring a GPU: a stopwatch that takes the device's time, operands that are random and more than
// a cache holds, the profile that comes of it, and what the machine was like meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/int8_linear.h"
#include "kernels/cuda/quantised_linear.h"
#include "kernels/quantise.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/cuda/gpu_state.h"
#include "src/engine/cuda/measure_attention.h"
#include "src/engine/cuda/measure_gpu.h"
#include "src/engine/cuda/operands.h"
#include "src/engine/cuda/stopwatch.h"
#include "tests/kernels/cuda/device_array.h"
#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_driver.h"
#include "kernels/cuda/shim/host_grid.h"
#include "tests/engine/cuda/fake_nvml.h"
#endif

namespace sluice {
namespace {

policy::Profile host_machine() {
  policy::Profile machine = *policy::shipped_profile("t4");
  machine.device.reset();
  return machine;
}

MeasureGpuOptions small_sizes() {
  MeasureGpuOptions options = MeasureGpuOptions::for_stand_in();
  options.copy_bytes = 64 * kKiB;
  return options;
}

std::vector<std::byte> read_back(const std::byte* memory, int64_t bytes) {
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  cuda::copy_to_host(out.data(), memory, bytes, nullptr);
  cuda::synchronize(nullptr);
  return out;
}

// Mean 0 and variance 1, within what so many draws of few distinct values may be off.
void expect_normal(const std::vector<float>& values) {
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 0.2);
  EXPECT_NEAR(squares / count, 1, 0.3);
}

TEST(CudaMeasure, GivesAProfileThatAPlanCanUse) {
  CudaDevice device(0, int64_t{64} << 20);
  const policy::Profile measured = measure_gpu(host_machine(), device, small_sizes());
  EXPECT_NO_THROW(policy::validate(measured));
  ASSERT_TRUE(measured.device.has_value());
  EXPECT_EQ(measured.device_bytes, int64_t{64} << 20);
  EXPECT_GE(measured.device->matmul.size(), 18u);
  EXPECT_EQ(measured.device->attention.size(), device.properties().has_bf16 ? 5u : 4u);
  for (const policy::MatmulRate& rate : measured.device->matmul) EXPECT_GT(rate.flops.value, 0);
  if (device.properties().has_fp8) {
    EXPECT_TRUE(std::any_of(measured.device->matmul.begin(), measured.device->matmul.end(),
                            [](const policy::MatmulRate& rate) {
                              return rate.weights.encoding == Encoding::kFp8 &&
                                     rate.eight_bit_activations && rate.m >= 65;
                            }));
  }
  const policy::Profile read = policy::parse_profile(policy::profile_to_json(measured), "measured");
  EXPECT_EQ(read.device->matmul.size(), measured.device->matmul.size());
  EXPECT_EQ(device.memory().used(), 0);
}

TEST(CudaMeasure, EverySizeIsMeasuredInEveryQuantisedFormat) {
  CudaDevice device(0, int64_t{64} << 20);
  MeasureGpuOptions options = small_sizes();
  options.sizes = {{48, 64}, {64, 128}, {16, 64}};
  options.prompt_rows = 1;
  options.context_tokens = 3;
  const policy::Profile measured = measure_gpu(host_machine(), device, options);
  for (const MatrixSize& size : options.sizes)
    for (const char* format : {"int4-g64", "int8", "fp8", "f16"})
      EXPECT_TRUE(std::any_of(measured.device->matmul.begin(), measured.device->matmul.end(),
                              [&](const policy::MatmulRate& rate) {
                                return rate.n == size.n && rate.k == size.k &&
                                       rate.weights == *parse_weight_format(format);
                              }))
          << format << " " << size.n << " x " << size.k;
}

TEST(CudaMeasure, OnASmallBudgetLargeSizesAreLeftOut) {
  CudaDevice device(0, int64_t{48} << 20);
  MeasureGpuOptions options = small_sizes();
  options.copy_bytes = int64_t{1} << 40;
  options.sizes = {{1 << 14, 1 << 14}, {32, 64}};
  options.prompt_rows = 1;
  options.context_tokens = 3;
  const policy::Profile measured = measure_gpu(host_machine(), device, options);
  for (const policy::MatmulRate& rate : measured.device->matmul) EXPECT_EQ(rate.n, 32);
  EXPECT_FALSE(measured.device->matmul.empty());
}

#ifdef SLUICE_CUDA_ON_HOST
// A microsecond for each copy and each kernel, while it lives.
class TimedByWork {
 public:
  TimedByWork() { cuda::host::time_by_work(true); }
  ~TimedByWork() { cuda::host::time_by_work(false); }
};

void expect_rate(const policy::Figure& rate, double amount, int works) {
  EXPECT_NEAR(rate.value * works * 1e-6 / amount, 1, 1e-6);
  EXPECT_LT(rate.spread, 1e-6);
}

// Kernels and products of cuBLASLt: quantised rows are made anew each time, since models do.
int works_of(const policy::MatmulRate& rate) {
  if (rate.eight_bit_activations) return cuda::is_dense_codes(rate.weights, rate.m, rate.k) ? 4 : 2;
  return rate.weights.is_quantised() && rate.m >= cuda::kFewestDenseRows ? 2 : 1;
}

TEST(CudaMeasure, RatesAreWhatIsDoneOverTheTimeOfAllOfIt) {
  const TimedByWork timed;
  MeasureGpuOptions options = small_sizes();
  options.prompt_rows = cuda::kFewestDenseInt8Rows;
  CudaDevice device(0, int64_t{64} << 20);
  const policy::Profile measured = measure_gpu(host_machine(), device, options);
  expect_rate(measured.device->memory_read, 2.0 * static_cast<double>(options.copy_bytes), 1);
  expect_rate(measured.link.to_device, static_cast<double>(options.copy_bytes), 1);
  expect_rate(measured.link.to_host, static_cast<double>(options.copy_bytes), 1);
  for (const policy::MatmulRate& rate : measured.device->matmul) {
    SCOPED_TRACE(format_name(rate.weights) + ", rows " + std::to_string(rate.m));
    const auto macs = static_cast<double>(rate.m * rate.n * rate.k);
    expect_rate(rate.flops, 2 * macs, works_of(rate));
  }
}

// The stand-in does one behind the other, in either order: both are in the time.
TEST(CudaMeasure, BothWaysAtOnceAreBothMeasured) {
  const TimedByWork timed;
  MeasureGpuOptions options = small_sizes();
  options.prompt_rows = 1;
  options.context_tokens = 1;
  for (uint64_t order = 0; order < 6; ++order) {
    cuda::host::set_seed(order);
    CudaDevice device(0, int64_t{64} << 20);
    const policy::Profile measured = measure_gpu(host_machine(), device, options);
    EXPECT_NEAR(measured.link.both_share.value, 0.5, 1e-6) << order;
  }
  cuda::host::set_seed(0);
}

TEST(CudaMeasure, AttentionReadsWhatAllSequencesHave) {
  const TimedByWork timed;
  CudaDevice device(0, int64_t{64} << 20);
  Stopwatch stopwatch(device.compute_stream(), 1);
  MeasureGpuOptions options = small_sizes();
  for (const KvFormat& format : {KvFormat(DType::kF16), KvFormat(KvEncoding::kInt4)}) {
    const int64_t token_bytes = 8 * format.pair_bytes(128);
    options.context_tokens = 3;
    // Three sequences, of a page each.
    options.rotate_bytes = 2 * format.page_tokens() * token_bytes + 1;
    const policy::AttentionRate rate = measure_attention(device, options, format, stopwatch);
    expect_rate(rate.decode_bytes, static_cast<double>(3 * 3 * token_bytes), 1);
    expect_rate(rate.decode_flops, 4.0 * 32 * 128 * 3 * 3, 1);
    expect_rate(rate.prefill_flops, 4.0 * 32 * 128 * (1 + 2 + 3), 1);
  }
}

TEST(CudaStopwatch, GivesTheMedianOfACallsTime) {
  const TimedByWork timed;
  const cuda::OwnedStream stream;
  Stopwatch stopwatch(stream.get(), 3);
  int calls = 0;
  const policy::Figure figure = stopwatch.of_work(2, [&](int) {
    constexpr int kWorks[] = {9, 5, 1, 2};  // of a call of each sample; the first does not count
    for (int i = 0; i < kWorks[calls / 2]; ++i) cuda::host::enqueue_work(stream.get(), [] {});
    ++calls;
  });
  EXPECT_EQ(calls, 8);
  EXPECT_NEAR(figure.value, 2e-6, 1e-12);
  EXPECT_NEAR(figure.spread, 2, 1e-6);
}

TEST(CudaStopwatch, LongCallsAreFewer) {
  const TimedByWork timed;
  const cuda::OwnedStream stream;
  Stopwatch stopwatch(stream.get(), 1);
  for (const auto& [works, rounds] :
       {std::pair{1, 30}, std::pair{900, 22}, std::pair{8000, 4}, std::pair{40000, 4}}) {
    std::set<int> seen;
    const policy::Figure figure = stopwatch.of_kernels(30, [&, count = works](int round) {
      seen.insert(round);
      for (int i = 0; i < count; ++i) cuda::host::enqueue_work(stream.get(), [] {});
    });
    EXPECT_NEAR(figure.value, works * 1e-6, 1e-9);
    EXPECT_EQ(static_cast<int>(seen.size()), rounds) << works;
  }
}

// The stand-in runs queued work when it is waited for.
TEST(CudaStopwatch, LeavesOutWhatTheHostTakesToLaunch) {
  const cuda::OwnedStream stream;
  Stopwatch stopwatch(stream.get(), 3);
  const auto launch_slowly = [&](int) {
    volatile int spent = 0;
    for (int i = 0; i < 1000000; ++i) spent = spent + i;
    cuda::host::enqueue_work(stream.get(), [] {});
  };
  const policy::Figure device = stopwatch.of_kernels(2, launch_slowly);
  EXPECT_GT(device.value, 0);
  EXPECT_LT(device.value, stopwatch.of_host(2, launch_slowly).value);
}

TEST(CudaStopwatch, ReplaysAGraphAndGoesOnWithoutOne) {
  const cuda::OwnedStream stream;
  Stopwatch stopwatch(stream.get(), 3);
  for (const bool refuses : {false, true}) {
    cuda::host::refuse_graphs(refuses);
    const int64_t graphs = cuda::host::graphs_run();
    int runs = 0;
    std::set<int> rounds;
    stopwatch.of_kernels(5, [&](int round) {
      rounds.insert(round);
      cuda::host::enqueue_work(stream.get(), [&] { ++runs; });
    });
    cuda::synchronize(stream.get());
    EXPECT_EQ(cuda::host::graphs_run() - graphs, refuses ? 0 : 4);  // one more than is counted
    EXPECT_EQ(runs, 2 + 4 * 5);
    EXPECT_EQ(rounds.size(), 5u);
  }
  cuda::host::refuse_graphs(false);
}
#endif

TEST(CudaOperands, ValuesAreNormalAndNoneIsLeftOut) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
    for (const int64_t count : {1, 257, 300001}) {
      const int64_t bytes = count * dtype_bytes(type);
      const cuda::DeviceArray<std::byte> memory(std::vector<std::byte>(
          static_cast<size_t>(bytes + 64), std::byte{0xff}));  // NaN, also what lies behind
      fill_values(type, count, memory.data(), nullptr);
      const std::vector<std::byte> all = memory.values();
      std::vector<float> values;
      for (int64_t i = 0; i < count; ++i) {
        const std::byte* at = all.data() + i * dtype_bytes(type);
        const auto* half = reinterpret_cast<const uint16_t*>(at);
        values.push_back(type == DType::kF32    ? *reinterpret_cast<const float*>(at)
                         : type == DType::kBF16 ? bf16_to_f32(*half)
                                                : f16_to_f32(*half));
      }
      if (count > 1000) expect_normal(values);
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float x) { return x == x; }));
      EXPECT_TRUE(std::all_of(all.end() - 64, all.end(),
                              [](std::byte byte) { return byte == std::byte{0xff}; }));
    }
}

TEST(CudaOperands, MatricesTakeTurnsAndAllAreRandom) {
  constexpr int64_t kRotate = 100 * kKiB;
  for (const char* name : {"f32", "f16", "bf16", "int4-g64", "int4-g32", "nf4-g64", "int8", "fp8"})
    for (const MatrixSize& size : {MatrixSize{64, 64}, {50, 130}, {17, 64}, {600, 128}}) {
      const WeightFormat format = *parse_weight_format(name);
      CudaDevice device(0, int64_t{16} << 20);
      const Buffer memory = device.memory().allocate(
          MatrixPool::bytes_for(format, size.n, size.k, kRotate), "matrices");
      MatrixPool pool(memory, kRotate);
      pool.fill(format, size.n, size.k, nullptr);
      EXPECT_GE(pool.matrices() * format.bytes(size.n, size.k) + pool.matrices() * 256, kRotate);
      std::set<const std::byte*> seen;
      for (int round = 0; round < 2 * pool.matrices(); ++round) seen.insert(pool.at(round));
      EXPECT_EQ(static_cast<int>(seen.size()), pool.matrices());
      EXPECT_LE(*seen.rbegin() + format.bytes(size.n, size.k), memory.data() + memory.size());
      if (!format.is_quantised()) continue;
      const auto bytes = read_back(*seen.rbegin(), format.bytes(size.n, size.k));
      std::vector<float> values(static_cast<size_t>(size.n * size.k));
      for (int64_t row = 0; row < size.n; ++row)
        for (int64_t col = 0; col < size.k; ++col)
          values[static_cast<size_t>(row * size.k + col)] =
              kernels::reference::quantised_value(format, bytes.data(), size.k, row, col);
      expect_normal(values);
    }
}

TEST(CudaOperands, PagesHoldRandomTokens) {
  for (const KvFormat& format : {KvFormat(DType::kF16), KvFormat(KvEncoding::kInt8),
                                 KvFormat(KvEncoding::kInt4), kInt8KeysInt4Values}) {
    kernels::AttentionShape shape;
    shape.num_heads = shape.num_kv_heads = 2;
    shape.head_dim = 64;
    shape.page_tokens = 20;
    shape.kv_dtype = format;
    const int64_t page_bytes = 2 * 20 * format.pair_bytes(64);
    const cuda::DeviceArray<std::byte> memory(static_cast<size_t>(3 * page_bytes));
    fill_pages(shape, 3, memory.data(), nullptr);
    const std::vector<std::byte> pages = memory.values();
    EXPECT_TRUE(
        std::equal(pages.begin(), pages.begin() + page_bytes, pages.begin() + 2 * page_bytes));
    EXPECT_GT(std::set<std::byte>(pages.begin(), pages.begin() + page_bytes).size(), 64u);
  }
}

#ifdef SLUICE_CUDA_ON_HOST
TEST(CudaGpuState, SaysClocksHeatAndWhatHoldsThemBack) {
  const FakeNvml nvml;
  nvml->sm_mhz = 1755;
  nvml->bits = 0x4 | 0x40;
  const auto state = read_gpu_state("0000:3b:00.0", nvml.path().c_str());
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(describe(GpuState{.sm_mhz = 345, .celsius = 38}, state),
            "SM 1755 of 1980 MHz, memory 2619 MHz, 61 C (38 before), 689 W, held back by power and "
            "heat");
  EXPECT_EQ(nvml->open, 0);
}

TEST(CudaGpuState, WhatIsNotKnownIsLeftOut) {
  const FakeNvml nvml;
  EXPECT_FALSE(read_gpu_state("0000:3b:00.0", "libnone-such.so.1").has_value());
  EXPECT_FALSE(read_gpu_state("0000:ff:00.0", nvml.path().c_str()).has_value());
  EXPECT_FALSE(read_gpu_state("", nvml.path().c_str()).has_value());
  nvml->knows_only_clock = true;
  const auto state = read_gpu_state("0000:3b:00.0", nvml.path().c_str());
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(describe(std::nullopt, state), "SM 1980 MHz");
  nvml->knows_no_clock = true;
  EXPECT_FALSE(read_gpu_state("0000:3b:00.0", nvml.path().c_str()).has_value());
  nvml->knows_no_clock = false;
  nvml->refuses = true;
  EXPECT_FALSE(read_gpu_state("0000:3b:00.0", nvml.path().c_str()).has_value());
  EXPECT_EQ(describe(std::nullopt, std::nullopt), "");
}
#endif

}  // namespace
}  // namespace sluice
