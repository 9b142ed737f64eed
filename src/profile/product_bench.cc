#include "src/profile/product_bench.h"

#include <algorithm>
#include <chrono>

#include "kernels/linear.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/device/memory_probe.h"

namespace sluice {

namespace {
// As bf16 0.01, as f32 0.01, as f16 1.04: no sum overflows or meets subnormal arithmetic. Any bits
// are codes, and these are small numbers as scales too.
constexpr uint16_t kWeightBits = 0x3c24;
constexpr int64_t kLeastSize = 256;
constexpr int64_t kLine = 4096;
}  // namespace

ProductMemory::ProductMemory(int64_t bytes)
    : arena_("profile", std::max(bytes, kMiB) + kLine),
      buffer_(arena_.allocate(std::max(bytes, kMiB), "products to measure")) {
  std::fill_n(buffer_.as<uint16_t>(), buffer_.size() / 2, kWeightBits);
}

ProductBench::ProductBench(const ProductMemory& memory, const WeightFormat& format,
                           kernels::ActivationFormat activations, int64_t n, int64_t k,
                           int64_t most_rows)
    : format_(format), n_(n), k_(k), most_rows_(most_rows) {
  const bool is_bf16 =
      (format.is_quantised() || format.dtype == DType::kBF16) && kernels::bf16_compute_supported();
  options_ = {is_bf16 ? kernels::Compute::kBF16 : kernels::Compute::kF32, activations};
  while (!lay_out(memory.span())) {
    if (most_rows_ > 16)
      most_rows_ /= 2;
    else if (std::max(n_, k_) > kLeastSize)
      (n_ >= k_ ? n_ : k_) /= 2;
    else if (most_rows_ > 1)
      most_rows_ /= 2;
    else
      SLUICE_ASSERT(false, "the smallest product fits a MiB");
  }
  auto* x = reinterpret_cast<float*>(x_.data());
  std::fill_n(x, x_.size() / 4, 0.5f);
  std::fill_n(reinterpret_cast<uint16_t*>(x16_.data()), x16_.size() / 2, f32_to_bf16(0.5f));
}

bool ProductBench::lay_out(std::span<std::byte> memory) {
  const int64_t rows = kernels::padded_rows(most_rows_);
  matrix_bytes_ = round_up(format_.bytes(n_, k_), kLine);
  const int64_t scratch =
      format_.is_quantised()
          ? kernels::quantised_scratch_bytes(format_, most_rows_, k_, options_)
          : kernels::linear_scratch_bytes(format_.dtype, most_rows_, n_, k_, options_.compute);
  const auto take = [&](std::span<std::byte>& area, int64_t bytes) {
    const auto size = static_cast<size_t>(round_up(std::max<int64_t>(bytes, 64), kLine));
    if (size > memory.size()) return false;
    area = memory.last(size);
    memory = memory.first(memory.size() - size);
    return true;
  };
  if (!take(x_, rows * k_ * 4) || !take(x16_, rows * k_ * 2) || !take(y_, rows * n_ * 4) ||
      !take(scratch_, scratch))
    return false;
  matrices_ = static_cast<int64_t>(memory.size()) / matrix_bytes_;
  if (matrices_ < 1) return false;
  weights_ = memory.first(static_cast<size_t>(matrices_ * matrix_bytes_));
  evicts_ = matrices_ * matrix_bytes_ < kBeyondCaches;
  return true;
}

double ProductBench::run(int64_t m) {
  const kernels::Activations x{reinterpret_cast<const float*>(x_.data()),
                               reinterpret_cast<const uint16_t*>(x16_.data()), m, k_, k_};
  const std::span<std::byte> w = weights_.subspan(
      static_cast<size_t>(next_++ % matrices_ * matrix_bytes_), static_cast<size_t>(matrix_bytes_));
  if (evicts_) evict_from_caches(w);
  auto* y = reinterpret_cast<float*>(y_.data());
  const auto start = std::chrono::steady_clock::now();
  if (format_.is_quantised())
    kernels::linear_quantised(x, w.data(), format_, n_, nullptr, y, n_, options_, scratch_);
  else
    kernels::linear(x, w.data(), format_.dtype, n_, k_, nullptr, y, n_, options_.compute, scratch_);
  return seconds_since(start);
}

double ProductBench::flops_in(int64_t m, double seconds) const noexcept {
  return 2.0 * static_cast<double>(m * n_ * k_) / std::max(seconds, 1e-9);
}

double ProductBench::flops(int64_t m, double least_seconds) {
  constexpr size_t kLeastCalls = 3;
  constexpr size_t kMostCalls = 4096;
  std::vector<double> calls;
  const auto start = std::chrono::steady_clock::now();
  if (least_seconds > 0) run(m);
  double seconds = 0;
  // Of long calls fewer say enough.
  while (calls.empty() || (calls.size() < kMostCalls &&
                           (seconds < least_seconds ||
                            (calls.size() < kLeastCalls && seconds < 4 * least_seconds)))) {
    calls.push_back(run(m));
    seconds = seconds_since(start);
  }
  const auto fast = calls.begin() + static_cast<int64_t>(calls.size() / 8);
  std::nth_element(calls.begin(), fast, calls.end());
  return flops_in(m, *fast);
}

double ProductBench::mean_flops(int64_t m, double least_seconds) {
  run(m);
  double sum = 0;
  int64_t calls = 0;
  const auto start = std::chrono::steady_clock::now();
  while (calls == 0 || seconds_since(start) < least_seconds) {
    sum += run(m);
    ++calls;
  }
  return flops_in(m, sum / static_cast<double>(calls));
}

}  // namespace sluice
