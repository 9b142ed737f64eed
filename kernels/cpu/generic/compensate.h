#pragma once
// Columns of a panel rounded one after another, each with what earlier errors add to it: lanes are
// rows.
#include "kernels/cpu/generic/quantised_units.h"
#include "kernels/cpu/variant.h"
#include "kernels/k_layout.h"

namespace sluice::kernels {
namespace {

// Of a K type, by the formulas of choose_k_codes.
inline VecU compensated_k_code(Encoding encoding, VecF x, VecF scale, VecF minimum, VecF& value) {
  const KLayout layout = k_layout(encoding);
  const float low = static_cast<float>(-layout.zero);
  const float high = low + static_cast<float>((1 << layout.block_lines()) - 1);
  const VecI is_some = scale != VecF{};
  const VecF q = is_some ? (x + minimum) / (is_some ? scale : splat(1.0f)) : VecF{};
  const VecF code = round_even(min_of(max_of(q, splat(low)), splat(high)));
  value = code * scale - minimum;
  return code_of(code - low);
}

// A column's codes, by the formulas of quantise_block, and the values that they stand for.
inline VecU compensated_code(Encoding encoding, VecF x, VecF scale, VecF zero, VecF& value) {
  if (WeightFormat{encoding}.is_k()) return compensated_k_code(encoding, x, scale, zero, value);
  const VecF inverse = scale != VecF{} ? 1.0f / scale : VecF{};  // of kQ4_0 either sign
  if (has_int4_codes(encoding)) {
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
  VecU code;
  if (encoding == Encoding::kIq4) {
    code = iq4_code(x * inverse_of(scale));
    value = code_value<Encoding::kIq4>(code) * scale;
  } else if (encoding == Encoding::kMxfp4) {
    code = e2m1_code(x / scale) & 15u;
    value = code_value<Encoding::kMxfp4>(code) * scale;
  } else if (encoding == Encoding::kNf4) {
    code = nf4_code(x * narrow) & 15u;
    value = code_value<Encoding::kNf4>(code) * scale;
  } else {
    code = e4m3_code(x * narrow);
    value = code_value<Encoding::kFp8>(code) * scale;
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
