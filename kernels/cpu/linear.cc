#include "kernels/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/onednn_matmul.h"
#include "kernels/cpu/variant.h"
#include "src/base/error.h"

namespace sluice::kernels {

namespace {
// Up to here the bytes of W bound the product and our own kernels read them once, at memory speed; above, oneDNN's
// blocking wins (docs/perf-notes.md#small-m).
constexpr int64_t kOwnKernelRows = 8;
constexpr int64_t kMostOwnRows = 16;
// Below so many multiply-adds a product takes less time than oneDNN's code generation for its shape, which ragged passes
// would ask for again and again; a matrix with fewer elements than kSmallMatrix is never worth packing.
constexpr int64_t kSmallProduct = int64_t{1} << 23;
constexpr int64_t kSmallMatrix = int64_t{1} << 19;
// 16-bit weights multiplied in f32 are widened so many rows at a time: small enough to stay in L2 with k = 16384.
constexpr int64_t kWidenRows = 64;

#ifdef SLUICE_NO_ONEDNN
constexpr bool kHasOnednn = false;
#else
constexpr bool kHasOnednn = true;
#endif

bool multiplies_bf16(DType dtype, Compute compute) { return compute == Compute::kBF16 && dtype == DType::kBF16; }

// AMX brings plain weights into its tiles as fast as blocked ones; AVX-512 and AVX2 gain 10-25 % from blocking.
bool packs(DType dtype, int64_t n, int64_t k, Compute compute) {
  if (!kHasOnednn || n * k < kSmallMatrix || active_isa() == Isa::kAmx || active_isa() == Isa::kGeneric) return false;
  return dtype == DType::kF32 || multiplies_bf16(dtype, compute);
}

int64_t bucket(int64_t m) noexcept {
  if (m <= kMostOwnRows) return m;
  const int64_t step = m <= 256 ? 16 : 64;
  return (m + step - 1) / step * step;
}

// Rows of W dealt to threads in contiguous runs; `work` gets (row_begin, row_end).
template <typename Work>
void over_rows(int64_t n, int64_t bytes, const Work& work) {
  constexpr int64_t kRun = 32;
  const int64_t runs = (n + kRun - 1) / kRun;
#pragma omp parallel for schedule(static) if (bytes > 64 * 1024)
  for (int64_t run = 0; run < runs; ++run) work(run * kRun, std::min(n, (run + 1) * kRun));
}

void own_kernels(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k, const float* bias, float* y,
                 int64_t ldy, Compute compute) {
  const Variant& variant = active_variant();
  const bool use_bf16 = multiplies_bf16(dtype, compute) && variant.linear_rows_bf16;
  over_rows(n, n * k * dtype_bytes(dtype), [&](int64_t begin, int64_t end) {
    for (int64_t done = 0; done < x.m; done += kMostOwnRows) {
      const int64_t m = std::min(kMostOwnRows, x.m - done);
      if (use_bf16)
        variant.linear_rows_bf16(static_cast<const uint16_t*>(w), begin, end, k, x.bf16 + done * x.ld, x.ld, m, bias,
                                 y + done * ldy, ldy);
      else
        variant.linear_rows(w, dtype, begin, end, k, x.f32 + done * x.ld, x.ld, m, bias, y + done * ldy, ldy);
    }
  });
}

// f32 products with 16-bit weights: a few rows at a time become f32 in the scratch and go through oneDNN's f32 matmul.
bool widened(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k, const float* bias, float* y,
             int64_t ldy, std::span<std::byte> scratch) {
  const int64_t tile_bytes = kWidenRows * k * 4;
  if (static_cast<int64_t>(scratch.size()) < tile_bytes) return false;
  auto* tile = reinterpret_cast<float*>(scratch.data());
  const std::span<std::byte> rest = scratch.subspan(static_cast<size_t>(tile_bytes));
  const Variant& variant = active_variant();
  const int64_t row_bytes = k * dtype_bytes(dtype);
  for (int64_t begin = 0; begin < n; begin += kWidenRows) {
    const int64_t rows = std::min(kWidenRows, n - begin);
    const auto* source = static_cast<const std::byte*>(w) + begin * row_bytes;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) variant.to_f32(dtype, source + row * row_bytes, tile + row * k, k);
    if (!onednn_matmul({DType::kF32, WeightLayout::kPlain, bucket(x.m), rows, k, x.ld, ldy, bias != nullptr}, x.f32, tile,
                       bias ? bias + begin : nullptr, y + begin, rest))
      return false;
  }
  return true;
}
}  // namespace

bool bf16_compute_supported() { return active_isa() >= Isa::kAvx512Bf16; }

int64_t padded_rows(int64_t m) noexcept { return bucket(m); }

void linear_plain(const Activations& x, const void* w, DType dtype, int64_t n, int64_t k, const float* bias, float* y,
                  int64_t ldy, Compute compute, std::span<std::byte> scratch) {
  if (x.m == 0 || n == 0) return;
  if (kHasOnednn && x.m > kOwnKernelRows && x.m * n * k > kSmallProduct) {
    if (multiplies_bf16(dtype, compute)) {
      if (onednn_matmul({DType::kBF16, WeightLayout::kPlain, bucket(x.m), n, k, x.ld, ldy, bias != nullptr}, x.bf16, w, bias,
                        y, scratch))
        return;
    } else if (dtype == DType::kF32) {
      if (onednn_matmul({DType::kF32, WeightLayout::kPlain, bucket(x.m), n, k, x.ld, ldy, bias != nullptr}, x.f32, w, bias, y,
                        scratch))
        return;
    } else if (widened(x, w, dtype, n, k, bias, y, ldy, scratch)) {
      return;
    }
  }
  own_kernels(x, w, dtype, n, k, bias, y, ldy, compute);
}

int64_t packed_bytes(DType dtype, int64_t n, int64_t k, Compute compute) {
  if (!packs(dtype, n, k, compute)) return n * k * dtype_bytes(dtype);
  return onednn_blocked_bytes(dtype, n, k);
}

void pack_rows(const void* rows, DType dtype, int64_t row_begin, int64_t row_count, int64_t n, int64_t k, Compute compute,
               std::byte* packed) {
  const int64_t row_bytes = k * dtype_bytes(dtype);
  if (packs(dtype, n, k, compute))
    onednn_pack_rows(dtype, rows, row_begin, row_count, n, k, packed);
  else
    std::memcpy(packed + row_begin * row_bytes, rows, static_cast<size_t>(row_count * row_bytes));
}

void linear_packed(const Activations& x, const std::byte* packed, DType dtype, int64_t n, int64_t k, const float* bias,
                   float* y, int64_t ldy, Compute compute, std::span<std::byte> scratch) {
  if (!packs(dtype, n, k, compute)) return linear_plain(x, packed, dtype, n, k, bias, y, ldy, compute, scratch);
  if (x.m == 0 || n == 0) return;
  const bool is_bf16 = dtype == DType::kBF16;
  const void* input = is_bf16 ? static_cast<const void*>(x.bf16) : x.f32;
  const bool is_done = onednn_matmul({dtype, WeightLayout::kBlocked, bucket(x.m), n, k, x.ld, ldy, bias != nullptr}, input,
                                     packed, bias, y, scratch);
  SLUICE_ASSERT(is_done, "linear_scratch_bytes covers every bucket");
}

int64_t linear_scratch_bytes(DType dtype, int64_t max_m, int64_t n, int64_t k, Compute compute) {
  if (!kHasOnednn || (max_m * n * k <= kSmallProduct && !packs(dtype, n, k, compute))) return 0;
  const bool is_widened = dtype != DType::kF32 && !multiplies_bf16(dtype, compute);
  const DType type = is_widened ? DType::kF32 : dtype;
  const int64_t rows = is_widened ? std::min(n, kWidenRows) : n;
  int64_t bytes = 0;
  // A few sizes stand for all: the scratch grows with m; half as much again covers buckets between them.
  for (const int64_t m : {int64_t{1}, int64_t{16}, int64_t{64}, int64_t{256}, max_m}) {
    if (m > max_m) continue;
    for (const WeightLayout layout : {WeightLayout::kPlain, WeightLayout::kBlocked}) {
      if (layout == WeightLayout::kBlocked && !packs(dtype, n, k, compute)) continue;
      bytes = std::max(bytes, onednn_scratch_bytes({type, layout, bucket(m), rows, k, k, n, true}));
    }
  }
  return bytes + bytes / 2 + (is_widened ? kWidenRows * k * 4 : 0);
}

std::string describe_linear() {
  const bool bf16 = bf16_compute_supported();
  const WeightLayout layout = packs(bf16 ? DType::kBF16 : DType::kF32, 4096, 4096, bf16 ? Compute::kBF16 : Compute::kF32)
                                  ? WeightLayout::kBlocked
                                  : WeightLayout::kPlain;
  return fmt::format("{} products, own kernels up to {} rows, oneDNN {} above; resident weights {}", bf16 ? "bf16" : "f32",
                     kOwnKernelRows, onednn_implementation(bf16 ? DType::kBF16 : DType::kF32, layout),
                     layout == WeightLayout::kBlocked ? "packed" : "plain");
}

}  // namespace sluice::kernels
