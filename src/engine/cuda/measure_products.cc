#include "src/engine/cuda/measure_products.h"

#include <algorithm>
#include <functional>

#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/int8_linear.h"
#include "kernels/cuda/quantised_linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/quantised_linear.h"
#include "src/base/bytes.h"
#include "src/engine/cuda/operands.h"

namespace sluice {

namespace {
constexpr WeightFormat kQuantised[] = {{Encoding::kInt4, DType::kBF16, 64},
                                       {Encoding::kInt8, DType::kBF16, 0},
                                       {Encoding::kFp8, DType::kBF16, 0}};

// Of f32 products only one size is measured: the models that need them are small.
bool measures(const WeightFormat& format, const MeasureGpuOptions& options,
              const MatrixSize& size) {
  return format.is_quantised() || format.dtype != DType::kF32 || size == options.sizes.front();
}

// Memory for one size of W: made once, filled for each format anew.
class SizeMeasurement {
 public:
  SizeMeasurement(CudaDevice& device, const MeasureGpuOptions& options, const MatrixSize& size,
                  Stopwatch& stopwatch, std::vector<policy::MatmulRate>& out)
      : device_(device),
        options_(options),
        n_(size.n),
        k_(size.k),
        stopwatch_(stopwatch),
        out_(out),
        narrow_(device.properties().has_bf16 ? DType::kBF16 : DType::kF16),
        w_(take(weights_bytes(options, size), "weights to measure")),
        rows_(take(options.prompt_rows * k_ * 4, "rows to measure")),
        typed_rows_(take(options.prompt_rows * k_ * 2, "rows in 16 bits to measure")),
        products_(take(options.prompt_rows * n_ * 4, "products to measure")),
        unpacked_(take(round_up(n_, WeightFormat::kPanelRows) * k_ * 2, "unpacked weights")),
        sums_(take(sums_bytes(options, size, processors()), "sums")),
        counters_(take(cuda::split_counters(processors()) * 4, "counters of split sums")),
        codes_(take(codes_bytes(options, size), "quantised rows to measure")),
        workspace_(take(cuda::DenseLinear::workspace_bytes(), "workspace")),
        pool_(w_, options.rotate_bytes),
        dense_(workspace_.data()) {
    fill_values(DType::kF32, options.prompt_rows * k_, rows_.data(), stream());
    cuda::fill_zero(counters_.data(), counters_.size(), stream());
  }

  static int64_t bytes(const MeasureGpuOptions& options, const MatrixSize& size,
                       const cuda::Multiprocessors& processors) {
    return weights_bytes(options, size) + options.prompt_rows * (size.k * 6 + size.n * 4) +
           round_up(size.n, WeightFormat::kPanelRows) * size.k * 2 +
           sums_bytes(options, size, processors) + codes_bytes(options, size) +
           cuda::split_counters(processors) * 4 + cuda::DenseLinear::workspace_bytes() + 9 * 4096;
  }

  void plain(DType type) {
    const WeightFormat format = WeightFormat::plain(type);
    pool_.fill(format, n_, k_, stream());
    const std::byte* x = rows_.data();
    if (type != DType::kF32) {
      fill_values(type, options_.prompt_rows * k_, typed_rows_.data(), stream());
      x = typed_rows_.data();
    }
    for (const int64_t m : rows({1, 16, 64, options_.prompt_rows}))
      add(format, m, false, [&](int round) {
        dense_.run(type, x, k_, m, k_, pool_.at(round), n_, nullptr, y(), n_, stream());
      });
  }

  void quantised(const WeightFormat& format) {
    pool_.fill(format, n_, k_, stream());
    fill_values(narrow_, options_.prompt_rows * k_, typed_rows_.data(), stream());
    for (const int64_t m : rows({1, 8, 32, 64})) few_rows(format, m);
    // A prompt: dequantised and multiplied.
    if (options_.prompt_rows >= cuda::kFewestDenseRows)
      add(format, options_.prompt_rows, false, [&](int round) {
        cuda::dequantise(pool_.at(round), format, n_, k_, narrow_, unpacked_.as<uint16_t>(), k_,
                         stream());
        dense_.run(narrow_, typed_rows_.data(), k_, options_.prompt_rows, k_, unpacked_.data(), n_,
                   nullptr, y(), n_, stream());
      });
    if (cuda::takes_int8_rows(format))
      for (const int64_t m : rows({1, 8, 32, 64, cuda::kFewestDenseInt8Rows, options_.prompt_rows}))
        int8_rows(format, m);
    else if (device_.properties().has_fp8)
      for (const int64_t m : rows({1, 8, 64, cuda::kFewestDenseFp8Rows, options_.prompt_rows}))
        fp8_rows(format, m);
  }

 private:
  static int64_t weights_bytes(const MeasureGpuOptions& options, const MatrixSize& size) {
    int64_t most = 0;
    for (const DType type : {DType::kF16, DType::kF32})
      if (measures(WeightFormat::plain(type), options, size))
        most = std::max(most, MatrixPool::bytes_for(WeightFormat::plain(type), size.n, size.k,
                                                    options.rotate_bytes));
    for (const WeightFormat& format : kQuantised)
      most = std::max(most, MatrixPool::bytes_for(format, size.n, size.k, options.rotate_bytes));
    return most;
  }
  static int64_t sums_bytes(const MeasureGpuOptions& options, const MatrixSize& size,
                            const cuda::Multiprocessors& processors) {
    return 4 * std::max({options.prompt_rows * round_up(size.n, WeightFormat::kPanelRows),
                         cuda::linear_workspace_floats(cuda::kFewestDenseRows - 1, processors),
                         cuda::linear_int8_workspace_floats(processors)});
  }
  static int64_t codes_bytes(const MeasureGpuOptions& options, const MatrixSize& size) {
    int64_t bytes = options.prompt_rows * size.k * 2;  // fp8 values in 16 bits
    for (const WeightFormat& format : kQuantised)
      bytes = std::max(bytes, cuda::takes_int8_rows(format)
                                  ? cuda::int8_rows_bytes(format, options.prompt_rows, size.k)
                                  : cuda::fp8_rows_bytes(format, options.prompt_rows, size.k));
    return bytes;
  }

  Buffer take(int64_t bytes, const char* what) { return device_.memory().allocate(bytes, what); }
  cuda::Stream stream() const noexcept { return device_.compute_stream(); }
  const cuda::Multiprocessors& processors() const noexcept {
    return device_.properties().multiprocessors;
  }
  float* y() const noexcept { return products_.as<float>(); }
  float* x() const noexcept { return rows_.as<float>(); }
  cuda::SplitSpace split_space() const noexcept {
    return {sums_.as<float>(), counters_.as<uint32_t>()};
  }

  // Those that there is room for, rising, each once.
  std::vector<int64_t> rows(std::vector<int64_t> counts) const {
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    std::erase_if(counts, [&](int64_t m) { return m > options_.prompt_rows; });
    return counts;
  }

  void add(const WeightFormat& format, int64_t m, bool eight_bit_activations,
           const Stopwatch::Call& call) {
    const policy::Figure seconds =
        stopwatch_.of_kernels(std::min(pool_.matrices(), kMostRounds), call);
    const double flops =
        2.0 * static_cast<double>(m) * static_cast<double>(n_) * static_cast<double>(k_);
    out_.push_back({format,
                    m,
                    n_,
                    k_,
                    {flops / seconds.value, seconds.spread, policy::FigureSource::kMeasured, ""},
                    eight_bit_activations});
  }

  void few_rows(const WeightFormat& format, int64_t m) {
    const cuda::LinearPlan plan = cuda::plan_linear_quantised(format, m, n_, k_, processors());
    const cuda::Rows16 in{typed_rows_.as<uint16_t>(), k_, narrow_};
    add(format, m, false, [&](int round) {
      cuda::linear_quantised(in, m, k_, pool_.at(round), format, n_, nullptr, y(), n_, plan,
                             split_space(), stream());
    });
  }

  // With what quantising the rows takes; as the engine (CudaRunner::multiply_quantised) chooses.
  void int8_rows(const WeightFormat& format, int64_t m) {
    const cuda::Int8Rows in = cuda::int8_rows(format, m, k_, codes_.data());
    const auto quantise = [&] {
      cuda::copy_rows_for_products(x(), {m, k_, k_}, {{}, in}, stream());
    };
    if (!cuda::is_dense_codes(format, m, k_)) {
      const cuda::Int8LinearPlan plan = cuda::plan_linear_int8(format, m, n_, k_, processors());
      return add(format, m, true, [&](int round) {
        quantise();
        cuda::linear_int8(in, m, k_, pool_.at(round), format, n_, nullptr, y(), n_, plan,
                          split_space(), stream());
      });
    }
    add(format, m, true, [&](int round) {
      quantise();
      cuda::unpack_codes(pool_.at(round), format, n_, k_, unpacked_.data(), stream());
      dense_.run_int8(in.codes, m, in.columns, unpacked_.as<int8_t>(),
                      round_up(n_, WeightFormat::kPanelRows), sums_.as<int32_t>(), stream());
      cuda::scale_products(sums_.as<int32_t>(), in.token_scales(), m, k_, pool_.at(round), format,
                           n_, nullptr, y(), n_, stream());
    });
  }

  void fp8_rows(const WeightFormat& format, int64_t m) {
    const cuda::RowsShape shape{m, k_, k_};
    if (!cuda::is_dense_codes(format, m, k_)) {
      const cuda::Rows16 in{codes_.as<uint16_t>(), k_, narrow_};
      const cuda::LinearPlan plan = cuda::plan_linear_quantised(format, m, n_, k_, processors());
      return add(format, m, true, [&](int round) {
        cuda::round_rows_to_fp8(x(), shape, {}, in, nullptr, stream());
        cuda::linear_quantised(in, m, k_, pool_.at(round), format, n_, nullptr, y(), n_, plan,
                               split_space(), stream());
      });
    }
    const cuda::Fp8Rows in = cuda::fp8_rows(format, m, k_, codes_.data());
    add(format, m, true, [&](int round) {
      cuda::round_rows_to_fp8(x(), shape, in, {}, nullptr, stream());
      cuda::unpack_codes(pool_.at(round), format, n_, k_, unpacked_.data(), stream());
      dense_.run_fp8(in.codes, m, in.columns, unpacked_.as<uint8_t>(),
                     round_up(n_, WeightFormat::kPanelRows), sums_.as<float>(), stream());
      cuda::scale_products(sums_.as<float>(), in.token_scales(), m, k_, pool_.at(round), format, n_,
                           nullptr, y(), n_, stream());
    });
  }

  static constexpr int kMostRounds = 256;  // of one graph

  CudaDevice& device_;
  const MeasureGpuOptions& options_;
  int64_t n_;
  int64_t k_;
  Stopwatch& stopwatch_;
  std::vector<policy::MatmulRate>& out_;
  DType narrow_;
  Buffer w_;
  Buffer rows_;
  Buffer typed_rows_;
  Buffer products_;
  Buffer unpacked_;
  Buffer sums_;
  Buffer counters_;
  Buffer codes_;
  Buffer workspace_;
  MatrixPool pool_;
  cuda::DenseLinear dense_;
};
}  // namespace

std::vector<policy::MatmulRate> measure_products(CudaDevice& device,
                                                 const MeasureGpuOptions& options,
                                                 Stopwatch& stopwatch) {
  std::vector<policy::MatmulRate> out;
  const int64_t free = device.memory().limit() - device.memory().used();
  for (const MatrixSize& size : options.sizes) {
    const cuda::Multiprocessors& processors = device.properties().multiprocessors;
    const bool fits = SizeMeasurement::bytes(options, size, processors) <= free;
    if (!fits && size != options.sizes.back()) continue;
    SizeMeasurement measurement(device, options, size, stopwatch, out);
    std::vector<DType> types{DType::kF16};
    if (device.properties().has_bf16) types.push_back(DType::kBF16);
    types.push_back(DType::kF32);
    for (const DType type : types)
      if (measures(WeightFormat::plain(type), options, size)) measurement.plain(type);
    for (const WeightFormat& format : kQuantised) measurement.quantised(format);
  }
  return out;
}

}  // namespace sluice
