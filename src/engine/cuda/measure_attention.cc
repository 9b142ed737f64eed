#include "src/engine/cuda/measure_attention.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/attention.h"
#include "src/base/bytes.h"
#include "src/engine/cuda/operands.h"

namespace sluice {

namespace {
constexpr int64_t kMostSequences = 512;

// Sequences alike, each with pages of its own: `count` new tokens from `first_position` on.
struct Sequences {
  int32_t sequences = 1;
  int32_t first_position = 0;
  int32_t count = 1;
};

class AttentionMeasurement {
 public:
  AttentionMeasurement(CudaDevice& device, const kernels::AttentionShape& shape,
                       const Sequences& of)
      : device_(device), shape_(shape) {
    const int64_t pages_each =
        (of.first_position + of.count + shape.page_tokens - 1) / shape.page_tokens;
    std::vector<cuda::AttentionRun> runs;
    for (int32_t i = 0; i < of.sequences; ++i)
      runs.push_back({int64_t{i} * of.count, i * pages_each, of.first_position, of.count});
    plan_ = cuda::plan_attention(shape, runs, device.properties().multiprocessors);
    const int64_t pages = of.sequences * pages_each;
    std::byte* const kv = take(pages * shape.page_bytes(), "KV to measure");
    fill_pages(shape, pages, kv, stream());
    std::vector<std::byte*> table;
    for (int64_t page = 0; page < pages; ++page) table.push_back(kv + page * shape.page_bytes());
    const int64_t cols = int64_t{shape.num_heads} * shape.head_dim;
    const int64_t values = of.sequences * of.count * cols;
    std::byte* const q = take(values * 4, "queries");
    fill_values(DType::kF32, values, q, stream());
    arguments_.q = reinterpret_cast<const float*>(q);
    arguments_.q_stride = cols;
    arguments_.out = reinterpret_cast<float*>(take(values * 4, "outputs"));
    arguments_.out_stride = cols;
    arguments_.runs = sent(plan_.runs);
    arguments_.pages = sent(table);
    arguments_.items = sent(plan_.items);
    arguments_.merges = sent(plan_.merges);
    arguments_.workspace = reinterpret_cast<float*>(take(plan_.workspace_floats * 4, "sums"));
  }

  policy::Figure seconds(Stopwatch& stopwatch) {
    return stopwatch.of_kernels(4,
                                [&](int) { cuda::attention(shape_, plan_, arguments_, stream()); });
  }

 private:
  cuda::Stream stream() const noexcept { return device_.compute_stream(); }
  std::byte* take(int64_t bytes, const char* what) {
    kept_.push_back(device_.memory().allocate(std::max<int64_t>(bytes, 4), what));
    return kept_.back().data();
  }
  template <class T>
  const T* sent(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    std::byte* const memory = take(bytes, "tables");
    if (bytes > 0) cuda::copy_to_device(memory, values.data(), bytes, stream());
    cuda::synchronize(stream());
    return reinterpret_cast<const T*>(memory);
  }

  CudaDevice& device_;
  const kernels::AttentionShape& shape_;
  cuda::AttentionPlan plan_;
  cuda::AttentionArguments arguments_;
  std::vector<Buffer> kept_;
};

}  // namespace

policy::AttentionRate measure_attention(CudaDevice& device, const MeasureGpuOptions& options,
                                        const KvFormat& format, Stopwatch& stopwatch) {
  kernels::AttentionShape shape;
  shape.num_heads = 32;
  shape.num_kv_heads = 8;
  shape.head_dim = 128;
  shape.page_tokens = static_cast<int>(format.page_tokens());
  shape.scale = 0.08f;
  shape.kv_dtype = format;
  const auto context = static_cast<int32_t>(options.context_tokens);
  const int64_t kv_each =
      (context + shape.page_tokens - 1) / shape.page_tokens * shape.page_bytes();
  const int64_t most =
      std::clamp<int64_t>(device.memory().limit() / 4 / kv_each, 1, kMostSequences);
  const auto sequences = static_cast<int32_t>(
      std::clamp<int64_t>((options.rotate_bytes + kv_each - 1) / kv_each, 1, most));
  const policy::Figure decode =
      AttentionMeasurement(device, shape, {sequences, context - 1, 1}).seconds(stopwatch);
  const policy::Figure prefill =
      AttentionMeasurement(device, shape, {1, 0, context}).seconds(stopwatch);
  const double kv_bytes = static_cast<double>(sequences) * context * shape.num_kv_heads *
                          static_cast<double>(format.pair_bytes(shape.head_dim));
  const double pair_flops = 4.0 * shape.num_heads * shape.head_dim;
  policy::AttentionRate rate;
  rate.kv_dtype = format;
  rate.decode_bytes = rate_of(kv_bytes, decode);
  rate.decode_flops = rate_of(pair_flops * sequences * context, decode);
  rate.prefill_flops = rate_of(pair_flops * context * (context + 1) / 2, prefill);
  return rate;
}

}  // namespace sluice
