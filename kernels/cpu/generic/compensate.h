#pragma once
// Columns of a panel rounded one after another, each with what earlier errors add to it: lanes are
// rows.
#include "kernels/cpu/generic/quantise.h"
#include "kernels/cpu/variant.h"

namespace sluice::kernels {
namespace {

// A column's codes, by the formulas of quantise_block, and the values that they stand for.
inline VecU compensated_code(Encoding encoding, VecF x, VecF scale, VecF zero, VecF& value) {
  const VecF inverse = scale > VecF{} ? 1.0f / scale : VecF{};
  if (encoding == Encoding::kInt4) {
    const VecF code = int4_code(x, inverse, zero);
    value = (code - zero) * scale;
    return code_of(code);
  }
  const VecF narrow = scale > splat(1e-38f) ? inverse : VecF{};
  if (encoding == Encoding::kInt8) {
    const VecF q = min_of(max_of(round_even(x * narrow), splat(-127.0f)), splat(127.0f));
    value = q * scale;
    return code_of(q + 128.0f);
  }
  const VecU code = encoding == Encoding::kMxfp4 ? e2m1_code(x / scale)
                    : encoding == Encoding::kNf4 ? nf4_code(x * narrow)
                                                 : e4m3_code(x * narrow);
  for (int i = 0; i < kLanes; ++i) {
    if (encoding == Encoding::kMxfp4) value[i] = kE2m1Values[code[i] & 15] * scale[i];
    if (encoding == Encoding::kNf4) value[i] = kNf4Values[code[i] & 15] * scale[i];
    if (encoding == Encoding::kFp8) {
      const unsigned exponent = code[i] >> 3 & 15, mantissa = code[i] & 7;
      const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                            : static_cast<float>(8 + mantissa) *
                                                  __builtin_bit_cast(float, (exponent + 117) << 23);
      value[i] = (code[i] & 0x80 ? -magnitude : magnitude) * scale[i];
    }
  }
  return code;
}

void compensate_columns(const CompensatedColumns& call) {
  for (int part = 0; part < kPanelParts; ++part) {
    const int64_t lane = part * kLanes;
    const VecF scale = load(call.scale + lane), zero = load(call.zero + lane);
    for (int64_t k = 0; k < call.count; ++k) {
      const int64_t at = k * kPanelRows + lane;
      const float* feedback = call.triangle + k * call.stride;
      VecF x = load(call.values + at);
      for (int64_t j = 0; j < k; ++j) x += load(call.errors + j * kPanelRows + lane) * feedback[j];
      if (call.expected) {
        store(call.expected + at, x);
        store(call.errors + at, load(call.originals + at) - x);
        continue;
      }
      VecF value = {};
      const VecU code = compensated_code(call.encoding, x, scale, zero, value);
      store(call.errors + at, load(call.originals + at) - value);
      for (int i = 0; i < kLanes; ++i)
        call.codes[(lane + i) * call.code_stride + k] = static_cast<uint8_t>(code[i]);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
