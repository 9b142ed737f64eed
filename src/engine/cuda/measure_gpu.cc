#include "src/engine/cuda/measure_gpu.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/int8_linear.h"
#include "kernels/cuda/quantised_linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/quantised_linear.h"
#include "src/base/bytes.h"

namespace sluice {

namespace {
using Clock = std::chrono::steady_clock;

// Median of `samples` times of `rounds` calls each, one call's seconds; the first is not counted.
policy::Figure time_of(int samples, int rounds, cuda::Stream stream,
                       const std::function<void()>& queue) {
  std::vector<double> seconds;
  for (int sample = -1; sample < samples; ++sample) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < rounds; ++i) queue();
    cuda::synchronize(stream);
    if (sample >= 0)
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / rounds);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {median, (seconds.back() - seconds.front()) / median, policy::FigureSource::kMeasured, ""};
}

policy::Figure rate_of(double amount, const policy::Figure& seconds) {
  return {amount / seconds.value, seconds.spread, policy::FigureSource::kMeasured, ""};
}

class Measurement {
 public:
  Measurement(CudaDevice& device, const MeasureGpuOptions& options)
      : device_(device), options_(options), stream_(device.compute_stream()) {
    cuda::use_device(device.index());
  }

  void link(policy::Link& link) {
    Arena host("host memory", 4 * options_.copy_bytes, device_.host_memory_source());
    const Buffer below = host.allocate(2 * options_.copy_bytes, "copies to measure");
    const Buffer above = device_.memory().allocate(2 * options_.copy_bytes, "copies to measure");
    const auto bytes = static_cast<double>(options_.copy_bytes);
    const cuda::OwnedStream other;
    std::byte* second_above = above.data() + options_.copy_bytes;
    std::byte* second_below = below.data() + options_.copy_bytes;
    const auto up = [&] {
      cuda::copy_to_device(above.data(), below.data(), options_.copy_bytes, stream_);
    };
    const auto down = [&](cuda::Stream stream) {
      cuda::copy_to_host(second_below, second_above, options_.copy_bytes, stream);
    };
    link.to_device = rate_of(bytes, time_of(options_.samples, 2, stream_, up));
    link.to_host = rate_of(bytes, time_of(options_.samples, 2, stream_, [&] { down(stream_); }));
    const policy::Figure both = time_of(options_.samples, 1, stream_, [&] {
      down(other.get());
      up();
      cuda::synchronize(other.get());
    });
    const double alone = std::max(bytes / link.to_device.value, bytes / link.to_host.value);
    link.both_share = {std::min(1.0, alone / both.value), both.spread,
                       policy::FigureSource::kMeasured, ""};
    link.latency_seconds = time_of(options_.samples, 1, stream_, [&] {
      cuda::copy_to_device(above.data(), below.data(), 64, stream_);
    });
  }

  void processor(policy::Processor& gpu) {
    gpu.name = device_.properties().name;
    {
      const Buffer memory = device_.memory().allocate(2 * options_.copy_bytes, "memory to measure");
      // A copy reads and writes each byte.
      gpu.memory_read = rate_of(
          2 * static_cast<double>(options_.copy_bytes), time_of(options_.samples, 4, stream_, [&] {
            cuda::copy_on_device(memory.data(), memory.data() + options_.copy_bytes,
                                 options_.copy_bytes, stream_);
          }));
      auto* floats = reinterpret_cast<float*>(memory.data());
      cuda::fill_zero(floats, 4096, stream_);
      constexpr int kLaunches = 50;
      gpu.launch_seconds = time_of(options_.samples, kLaunches, stream_,
                                   [&] { cuda::add_inplace(floats, floats + 512, 512, stream_); });
      gpu.synchronise_seconds = time_of(options_.samples, 1, stream_, [&] {
        cuda::add_inplace(floats, floats + 512, 512, stream_);
      });
    }
    products(gpu);
    for (const KvFormat& format : kv_formats()) attention(gpu, format);
  }

 private:
  std::vector<KvFormat> kv_formats() const {
    std::vector<KvFormat> out{DType::kF16, KvFormat(KvEncoding::kInt8),
                              KvFormat(KvEncoding::kInt4)};
    if (device_.properties().has_bf16) out.insert(out.begin(), KvFormat(DType::kBF16));
    return out;
  }

  void products(policy::Processor& gpu) {
    const int64_t size = options_.matrix_size;
    const int64_t most_rows = std::max<int64_t>(options_.prompt_rows, 64);
    const auto bytes_of = [&](int64_t rows) { return round_up(rows * size * 4, 4096); };
    const Buffer w = device_.memory().allocate(bytes_of(size), "weights to measure");
    const Buffer x = device_.memory().allocate(bytes_of(most_rows), "rows to measure");
    const Buffer y = device_.memory().allocate(bytes_of(most_rows), "products to measure");
    const Buffer workspace =
        device_.memory().allocate(cuda::DenseLinear::workspace_bytes(), "workspace");
    for (const Buffer* buffer : {&w, &x, &y})
      cuda::fill_zero(buffer->data(), buffer->size(), stream_);
    cuda::DenseLinear dense(workspace.data());
    const auto add = [&](const WeightFormat& format, int64_t m, const std::function<void()>& queue,
                         bool eight_bit_activations = false) {
      const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(size * size);
      gpu.matmul.push_back({format, m, size, size,
                            rate_of(flops, time_of(options_.samples, 8, stream_, queue)),
                            eight_bit_activations});
    };
    const DType narrow = device_.properties().has_bf16 ? DType::kBF16 : DType::kF16;
    for (const DType type : {DType::kF16, narrow, DType::kF32})
      for (const int64_t m : {int64_t{1}, int64_t{16}, int64_t{64}, most_rows}) {
        if (type == narrow && narrow == DType::kF16 && !gpu.matmul.empty() &&
            gpu.matmul.back().m == most_rows && gpu.matmul.back().weights.dtype == DType::kF16)
          break;  // Turing: f16 has been measured
        add(WeightFormat::plain(type), m, [&, m, type] {
          dense.run(type, x.data(), size, m, size, w.data(), size, nullptr, y.as<float>(), size,
                    stream_);
        });
      }
    for (const char* name : {"int4-g64", "int8", "fp8"}) {
      const WeightFormat format = *parse_weight_format(name);
      const cuda::Rows16 rows{x.as<uint16_t>(), size, narrow};
      for (const int64_t m : {1, 8, 32, 64}) {
        const cuda::LinearPlan plan = cuda::plan_linear_quantised(
            format, m, size, size, device_.properties().multiprocessors);
        const Buffer sums =
            device_.memory().allocate(std::max<int64_t>(plan.workspace_floats * 4, 4), "sums");
        add(format, m, [&] {
          cuda::linear_quantised(rows, m, size, w.data(), format, size, nullptr, y.as<float>(),
                                 size, plan, sums.as<float>(), stream_);
        });
      }
      // A prompt: dequantised and multiplied.
      const Buffer plain = device_.memory().allocate(size * size * 2, "dequantised weights");
      add(format, most_rows, [&] {
        cuda::dequantise(w.data(), format, size, size, narrow, plain.as<uint16_t>(), size, stream_);
        dense.run(narrow, x.data(), size, most_rows, size, plain.data(), size, nullptr,
                  y.as<float>(), size, stream_);
      });
      if (kernels::takes_int8_activations(format))
        products_of_int8(format, most_rows, x, w, y, add);
      else if (device_.properties().has_fp8)
        products_of_fp8(format, most_rows, x, w, y, dense, add);
    }
  }

  // As the engine makes them, from rounding x on: of 16-bit values for few rows, of codes for many.
  template <class Add>
  void products_of_fp8(const WeightFormat& format, int64_t most_rows, const Buffer& x,
                       const Buffer& w, const Buffer& y, cuda::DenseLinear& dense, const Add& add) {
    const int64_t size = options_.matrix_size;
    const int processors = device_.properties().multiprocessors;
    const Buffer memory = device_.memory().allocate(
        std::max(cuda::fp8_rows_bytes(format, most_rows, size), most_rows * size * 2),
        "rounded rows to measure");
    const Buffer codes = device_.memory().allocate(size * size, "codes to measure");
    const Buffer sums = device_.memory().allocate(
        std::max(most_rows * size, cuda::linear_int8_workspace_floats(processors)) * 4, "sums");
    const cuda::Rows16 narrow{memory.as<uint16_t>(), size, DType::kBF16};
    for (const int64_t m :
         {int64_t{1}, int64_t{8}, int64_t{64}, cuda::kFewestDenseFp8Rows, most_rows}) {
      if (m > most_rows) continue;
      const cuda::RowsShape shape{m, size, size};
      const cuda::Fp8Rows rows = cuda::fp8_rows(format, m, size, memory.data());
      const cuda::LinearPlan plan = cuda::plan_linear_quantised(format, m, size, size, processors);
      const auto multiply_codes = [&] {
        cuda::round_rows_to_fp8(x.as<float>(), shape, rows, {}, stream_);
        cuda::unpack_codes(w.data(), format, size, size, codes.data(), stream_);
        dense.run_fp8(rows.codes, m, rows.columns, codes.as<uint8_t>(), size, sums.as<float>(),
                      stream_);
        cuda::scale_products(sums.as<float>(), rows.token_scales(), m, size, w.data(), format, size,
                             nullptr, y.as<float>(), size, stream_);
      };
      const auto multiply_values = [&] {
        cuda::round_rows_to_fp8(x.as<float>(), shape, {}, narrow, stream_);
        cuda::linear_quantised(narrow, m, size, w.data(), format, size, nullptr, y.as<float>(),
                               size, plan, sums.as<float>(), stream_);
      };
      if (cuda::is_dense_codes(format, m, size))
        add(format, m, multiply_codes, true);
      else
        add(format, m, multiply_values, true);
    }
  }

  // With what quantising the rows takes.
  template <class Add>
  void products_of_int8(const WeightFormat& format, int64_t most_rows, const Buffer& x,
                        const Buffer& w, const Buffer& y, const Add& add) {
    const int64_t size = options_.matrix_size;
    const int processors = device_.properties().multiprocessors;
    const Buffer codes = device_.memory().allocate(cuda::int8_rows_bytes(format, most_rows, size),
                                                   "quantised rows to measure");
    const Buffer sums =
        device_.memory().allocate(cuda::linear_int8_workspace_floats(processors) * 4, "sums");
    for (const int64_t m : {int64_t{1}, int64_t{8}, int64_t{32}, int64_t{64}, most_rows}) {
      const cuda::Int8Rows rows = cuda::int8_rows(format, m, size, codes.data());
      const cuda::Int8LinearPlan plan = cuda::plan_linear_int8(format, m, size, size, processors);
      const auto multiply = [&] {
        cuda::copy_rows_for_products(x.as<float>(), {m, size, size}, {{}, rows}, stream_);
        cuda::linear_int8(rows, m, size, w.data(), format, size, nullptr, y.as<float>(), size, plan,
                          sums.as<float>(), stream_);
      };
      add(format, m, multiply, true);
    }
  }

  // Many sequences of single tokens, and one prompt, with heads that share K and V by fours.
  void attention(policy::Processor& gpu, const KvFormat& format) {
    kernels::AttentionShape shape;
    shape.num_heads = 32;
    shape.num_kv_heads = 8;
    shape.head_dim = 128;
    shape.page_tokens = 32;
    shape.scale = 0.08f;
    shape.kv_dtype = format;
    const auto context = static_cast<int32_t>(options_.context_tokens);
    const int64_t page_bytes =
        2 * int64_t{shape.num_kv_heads} * shape.page_tokens * format.row_bytes(shape.head_dim);
    const int64_t pages = (context + shape.page_tokens - 1) / shape.page_tokens;
    const int32_t sequences = static_cast<int32_t>(
        std::clamp<int64_t>(device_.memory().limit() / 8 / (pages * page_bytes), 1, 32));
    const policy::Figure decode = run_attention(shape, sequences, context - 1, 1);
    const double kv_bytes = static_cast<double>(sequences) * context * 2 * shape.num_kv_heads *
                            static_cast<double>(format.row_bytes(shape.head_dim));
    const double pair_flops = 4.0 * shape.num_heads * shape.head_dim;
    const policy::Figure prefill = run_attention(shape, 1, 0, context);
    policy::AttentionRate rate;
    rate.kv_dtype = format;
    rate.decode_bytes = rate_of(kv_bytes, decode);
    rate.decode_flops = rate_of(pair_flops * sequences * context, decode);
    rate.prefill_flops = rate_of(pair_flops * context * (context + 1) / 2, prefill);
    gpu.attention.push_back(rate);
  }

  policy::Figure run_attention(const kernels::AttentionShape& shape, int32_t sequences,
                               int32_t first_position, int32_t count) {
    const int64_t pages_each = (first_position + count + shape.page_tokens - 1) / shape.page_tokens;
    const int64_t page_bytes = 2 * int64_t{shape.num_kv_heads} * shape.page_tokens *
                               shape.kv_dtype.row_bytes(shape.head_dim);
    const int64_t cols = int64_t{shape.num_heads} * shape.head_dim;
    std::vector<cuda::AttentionRun> runs;
    for (int32_t i = 0; i < sequences; ++i)
      runs.push_back({int64_t{i} * count, i * pages_each, first_position, count});
    const int processors = device_.properties().multiprocessors;
    const cuda::AttentionPlan plan = cuda::plan_attention(shape, runs, processors);
    Arena& memory = device_.memory();
    const Buffer kv = memory.allocate(sequences * pages_each * page_bytes, "KV to measure");
    const Buffer q = memory.allocate(int64_t{sequences} * count * cols * 4, "queries");
    const Buffer out = memory.allocate(int64_t{sequences} * count * cols * 4, "outputs");
    const Buffer sums = memory.allocate(std::max<int64_t>(plan.workspace_floats * 4, 4), "sums");
    cuda::fill_zero(kv.data(), kv.size(), stream_);
    cuda::fill_zero(q.data(), q.size(), stream_);
    std::vector<std::byte*> table;
    for (int64_t page = 0; page < sequences * pages_each; ++page)
      table.push_back(kv.data() + page * page_bytes);
    std::vector<Buffer> kept;
    const auto send = [&](const auto& values) {
      const auto bytes = static_cast<int64_t>(values.size() * sizeof(values[0]));
      kept.push_back(memory.allocate(std::max<int64_t>(bytes, 4), "tables"));
      if (bytes > 0) cuda::copy_to_device(kept.back().data(), values.data(), bytes, stream_);
      return kept.back().data();
    };
    cuda::AttentionArguments arguments;
    arguments.q = q.as<float>();
    arguments.q_stride = cols;
    arguments.out = out.as<float>();
    arguments.out_stride = cols;
    arguments.runs = reinterpret_cast<const cuda::AttentionRun*>(send(runs));
    arguments.pages = reinterpret_cast<const std::byte* const*>(send(table));
    arguments.items = reinterpret_cast<const cuda::AttentionItem*>(send(plan.items));
    arguments.merges = reinterpret_cast<const cuda::AttentionMerge*>(send(plan.merges));
    arguments.workspace = sums.as<float>();
    cuda::synchronize(stream_);
    return time_of(options_.samples, 2, stream_,
                   [&] { cuda::attention(shape, plan, arguments, stream_); });
  }

  CudaDevice& device_;
  const MeasureGpuOptions& options_;
  cuda::Stream stream_;
};
}  // namespace

policy::Profile measure_gpu(const policy::Profile& machine, CudaDevice& device,
                            const MeasureGpuOptions& options) {
  policy::Profile out = machine;
  out.name = machine.name + " with " + device.properties().name;
  Measurement measurement(device, options);
  out.device.emplace();
  measurement.link(out.link);
  measurement.processor(*out.device);
  out.device_bytes = device.memory().limit();
  return out;
}

}  // namespace sluice
