// Choosing tokens where the logits are, against their way to the host and the sampler there. Items
// are tokens; copies of the logits take turns, so that they come from memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "kernels/cuda/driver.h"
#include "kernels/cuda/sampling.h"
#include "src/sampling/sampler.h"

namespace sluice::cuda {
namespace {

sampling::SamplingParams params_of(int64_t kind) {
  sampling::SamplingParams params;
  params.temperature = kind == 0 ? 0.0F : 0.8F;
  if (kind == 1) params.top_p = 0.95F;
  if (kind == 2) params.top_k = 50;
  if (kind == 2) params.top_p = 0.9F;
  return params;
}
// More than a GPU's cache holds.
constexpr int64_t kRotateBytes = int64_t{512} << 20;
const char* const kKinds[] = {"greedy", "top_p", "top_k_top_p", "temperature"};

// Rows as models give them: a few tokens stand out.
std::vector<float> logits_of(int64_t rows, int64_t vocab) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2.5F);
  std::vector<float> logits(static_cast<size_t>(rows * vocab));
  for (float& logit : logits) logit = normal(random);
  for (int64_t row = 0; row < rows; ++row)
    for (int i = 0; i < 20; ++i)
      logits[static_cast<size_t>(row * vocab) + random() % static_cast<size_t>(vocab)] += 8;
  return logits;
}

// Arguments: rows, vocabulary, kind.
class Rows : public benchmark::Fixture {
 public:
  void SetUp(const benchmark::State& state) override {
    use_device(0);
    own_stream.emplace();
    stream = own_stream->get();
    rows = state.range(0);
    vocab = state.range(1);
    logits = logits_of(rows, vocab);
    const int64_t bytes = rows * vocab * 4;
    copies = kRotateBytes / bytes + 1;
    device = DeviceMemory(copies * bytes);
    for (int64_t copy = 0; copy < copies; ++copy)
      copy_to_device(device.data() + copy * bytes, logits.data(), bytes, stream);
    synchronize(stream);
  }
  // Benchmarks live until after the driver has ended.
  void TearDown(const benchmark::State&) override {
    device = {};
    own_stream.reset();
  }
  /// Those of call number `round`.
  std::byte* device_logits(int64_t round) const {
    return device.data() + round % copies * rows * vocab * 4;
  }
  void finish(benchmark::State& state) {
    state.SetItemsProcessed(state.iterations() * rows);
    state.SetLabel(kKinds[state.range(2)]);
  }
  int64_t rows = 0, vocab = 0, copies = 1;
  std::vector<float> logits;
  DeviceMemory device;
  std::optional<OwnedStream> own_stream;  // there is no GPU yet where benchmarks are registered
  Stream stream = nullptr;
};

BENCHMARK_DEFINE_F(Rows, OnDevice)(benchmark::State& state) {
  const sampling::SamplingParams params = params_of(state.range(2));
  std::vector<SamplingRow> how(static_cast<size_t>(rows));
  for (size_t i = 0; i < how.size(); ++i) {
    how[i].row = static_cast<int32_t>(i);
    how[i].temperature = params.temperature;
    how[i].top_k = params.top_k;
    how[i].top_p = params.top_p;
    how[i].uniform = (static_cast<double>(i) + 0.5) / static_cast<double>(rows);
  }
  std::vector<SampledRow> out(how.size());
  const auto how_bytes = static_cast<int64_t>(how.size() * sizeof(SamplingRow));
  const auto out_bytes = static_cast<int64_t>(out.size() * sizeof(SampledRow));
  const DeviceMemory device_how(how_bytes), device_out(out_bytes);
  SamplingArguments arguments;
  arguments.vocab_size = static_cast<int32_t>(vocab);
  arguments.rows = reinterpret_cast<const SamplingRow*>(device_how.data());
  arguments.sampled = reinterpret_cast<SampledRow*>(device_out.data());
  int64_t round = 0;
  for (auto _ : state) {
    arguments.logits = reinterpret_cast<float*>(device_logits(round++));
    copy_to_device(device_how.data(), how.data(), how_bytes, stream);
    sample(arguments, rows, stream);
    copy_to_host(out.data(), device_out.data(), out_bytes, stream);
    synchronize(stream);
  }
  finish(state);
}

BENCHMARK_DEFINE_F(Rows, OnHost)(benchmark::State& state) {
  const sampling::Sampler sampler(params_of(state.range(2)), {});
  sampling::Workspace workspace;
  const PinnedRange pinned(logits.data(), rows * vocab * 4);
  int64_t round = 0;
  for (auto _ : state) {
    copy_to_host(logits.data(), device_logits(round++), rows * vocab * 4, stream);
    synchronize(stream);
    for (int64_t row = 0; row < rows; ++row)
      benchmark::DoNotOptimize(sampler.pick(
          std::span(logits).subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab)),
          {}, workspace));
  }
  finish(state);
}

void arguments(benchmark::internal::Benchmark* bench) {
  for (const int64_t vocab : {50272, 128256})
    for (const int64_t rows : {1, 16, 64})
      for (const int64_t kind : {0, 1, 2, 3}) bench->Args({rows, vocab, kind});
  bench->Unit(benchmark::kMicrosecond)->UseRealTime();
}
BENCHMARK_REGISTER_F(Rows, OnDevice)->Apply(arguments);
BENCHMARK_REGISTER_F(Rows, OnHost)->Apply(arguments);

}  // namespace
}  // namespace sluice::cuda
