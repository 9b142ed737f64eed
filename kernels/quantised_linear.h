#pragma once
// y = x W^T (+ bias) with W in quantised panels (src/base/weight_format.h), computed on without
// unpacking it to memory first: codes are decoded in registers (for few rows of x: bound by the
// bytes of W), for many rows of 16-bit x into a slab in the cache. Runs on the calling
// thread's team (src/base/team.h).
//
// With 16-bit activations the codes are exact in the product and a group's scale is applied to its
// f32 sum: the result is that of dequantising and multiplying, within f32 rounding (NF4 on bf16: of
// its values rounded to bf16). With int8 activations x is quantised on the fly, symmetric, one
// scale for each row and group of W (W8A8 with one group: per token times per channel), and
// products are exact in int32. With fp8 activations each row of x is rounded to e4m3 times a power
// of two (e4m3_row_scale in kernels/quantise.h), which 16 bits hold exactly: the result is that of
// 16-bit activations on the rounded x.
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/linear.h"
#include "src/base/weight_format.h"

namespace sluice::kernels {

/// What x is rounded to before it is multiplied.
enum class ActivationFormat : uint8_t { k16Bit, kInt8, kFp8 };

/// How products with quantised weights are computed.
struct QuantisedOptions {
  Compute compute = Compute::kF32;
  ActivationFormat activations = ActivationFormat::k16Bit;
  /// With int8 activations: columns of x that hold a value of at least this magnitude are
  /// multiplied in f32 (LLM.int8(), arXiv:2208.07339, section 3.2; 6 there); 0: none.
  float outlier_threshold = 0;
  /// By row, columns with such values are each row's own.
  SumOrder order = SumOrder::kFastest;
};

/// Whether `format` multiplies int8 activations: kInt4, kQ4_0, kInt8 and K types do.
bool takes_int8_activations(const WeightFormat& format) noexcept;
/// Whether `format` multiplies fp8 activations: kFp8 does.
bool takes_fp8_activations(const WeightFormat& format) noexcept;
/// Either, as asked; all formats take 16-bit activations.
bool takes_activations(const WeightFormat& format, ActivationFormat activations) noexcept;

/// `options` as products with `format` take them: with 16-bit activations where they do not
/// multiply those that are asked for.
QuantisedOptions options_for(const WeightFormat& format, const QuantisedOptions& options) noexcept;

/// x.m rows of x.k columns; w [n, k] panels; y [m, n] f32, row stride ldy; bias [n] or null;
/// `options` as options_for() has them.
/// `scratch`: quantised_scratch_bytes(). `is_prepared`: it is as a call with the same x, format and
/// options left it, so that x is not laid out (or quantised) again; has no effect above
/// kMostPreparedRows.
void linear_quantised(const Activations& x, const std::byte* w, const WeightFormat& format,
                      int64_t n, const float* bias, float* y, int64_t ldy,
                      const QuantisedOptions& options, std::span<std::byte> scratch,
                      bool is_prepared = false);
constexpr int64_t kMostPreparedRows = 512;

/// What linear_quantised() makes of int8 activations first, made row by row by who writes x, while
/// a row is in the cache; linear_quantised() is then told that it is prepared. Rows may be prepared
/// on any threads.
class RowPreparer {
 public:
  /// Arguments as linear_quantised()'s; x.f32 may be written later.
  RowPreparer(const Activations& x, const WeightFormat& format, const QuantisedOptions& options,
              std::span<std::byte> scratch);
  /// Whether such products take their rows so: int8, without outliers, kMostPreparedRows at most.
  static bool is_for(const WeightFormat& format, int64_t m,
                     const QuantisedOptions& options) noexcept;
  void prepare(int64_t row) const noexcept;

 private:
  Activations x_;
  WeightFormat format_;
  int8_t* codes_;
  int64_t ld_;
  float* scales_;
  float* sums_;
};

int64_t quantised_scratch_bytes(const WeightFormat& format, int64_t max_m, int64_t k,
                                const QuantisedOptions& options) noexcept;

namespace reference {
/// The plainest: dequantised weights, f64 sums; x as Compute takes it; int8 activations quantised
/// the same way.
void linear_quantised(const Activations& x, const std::byte* w, const WeightFormat& format,
                      int64_t n, const float* bias, float* y, int64_t ldy,
                      const QuantisedOptions& options);
}  // namespace reference

}  // namespace sluice::kernels
