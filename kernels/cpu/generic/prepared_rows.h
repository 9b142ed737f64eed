#pragma once
// Rows of x as products with quantised matrices take them: in the order of the codes, quantised or
// rounded where asked for.
#include "kernels/cpu/generic/code_steps.h"
#include "kernels/cpu/generic/rows.h"

namespace sluice::kernels {
namespace {

// One row of f32 x as quantised_f32 takes it: padded with zeros, in the order of the codes of a
// line, times what their places ask for; and the sums of its groups. `to` may be x. (Values below
// 2^-102 lose bits beside int4.)
void arrange_f32_codes(const WeightFormat& format, const float* x, int64_t k, float* to,
                       float* sums) {
  typedef float Eight __attribute__((vector_size(32), aligned(1), may_alias));
  typedef int32_t Order __attribute__((vector_size(32)));
  const bool is_four = is_four_bit(format.encoding);
  Order order;
  Eight factors;
  for (int i = 0; i < 8; ++i) {
    order[i] = is_four ? nibble_column(i) : i / 4 * 4 + byte_column(i % 4);
    factors[i] = F32Step::place_factor(format.encoding, i);
  }
  const int64_t padded = format.padded_columns(k), columns = sum_columns(format, k);
  for (int64_t begin = 0; begin < padded; begin += columns) {
    Eight sum = {};
    for (int64_t i = begin; i < begin + columns; i += 8) {
      Eight values = {};
      if (i + 8 <= k)
        __builtin_memcpy(&values, x + i, sizeof values);
      else if (i < k)
        __builtin_memcpy(&values, x + i, static_cast<size_t>(k - i) * 4);
      sum += values;
      *reinterpret_cast<Eight*>(to + i) = shuffled(values, order) * factors;
    }
    float total = 0;
    for (int j = 0; j < 8; ++j) total += sum[j];
    *sums++ = total;
  }
}

// x to int8, symmetric, one scale a group; the order of columns is that of the codes' vectors.
// (Widened: theirs is x's.)
template <bool kFourBit, typename Dots>
void quantise_row(const WeightFormat& format, const float* x, int64_t k, int8_t* to, float* scales,
                  float* sums) {
  typedef int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
  constexpr int kLine = kFourBit ? 8 : 4;
  const int64_t columns = format.group_columns(k);
  for (int64_t group = 0; group < format.groups(k); ++group) {
    const float* from = x + group * columns;
    const int64_t count = k - group * columns < columns ? k - group * columns : columns;
    VecF most = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      most = max_of(most, (VecF)((VecU)load(from + i) & 0x7fffffffu));
    float largest = max_range(reinterpret_cast<const float*>(&most), kLanes);
    for (; i < count; ++i) {
      const float magnitude = from[i] < 0 ? -from[i] : from[i];
      largest = magnitude > largest ? magnitude : largest;
    }
    const float scale = largest / 127.0f;
    const VecF inverse = splat(scale > 1e-38f ? 1.0f / scale : 0.0f);
    VecF sum = {};
    int8_t* out = to + group * columns;
    for (i = 0; i < columns; i += 16) {
      float part[16] = {};
      const float* source = from + i;
      if (count - i < 16) {
        for (int64_t j = 0; j < count - i; ++j) part[j] = from[i + j];
        source = part;
      }
      Bytes codes;
      for (int half = 0; half < 16 / kLanes; ++half) {
        const VecF code = round_even(load(source + half * kLanes) * inverse);
        sum += code;
        store_bytes(reinterpret_cast<int8_t*>(&codes) + half * kLanes,
                    __builtin_convertvector(code, VecI));
      }
      if constexpr (!kFourBit && !std::is_void_v<Dots>) {
        Dots::put_bytes(to + 2 * (group * columns + i), codes);
        continue;
      }
      Bytes order;
      for (int byte = 0; byte < 16; ++byte)
        order[byte] =
            static_cast<int8_t>(byte / kLine * kLine + unpacked_column(kFourBit, byte % kLine));
      *reinterpret_cast<Bytes*>(out + i) = shuffled(codes, order);
    }
    scales[group] = scale;
    sums[group] = scale * sum_lanes(sum);
  }
}

// The same beside a K type: a scale for each group, sums of parts as QuantisedCall has them.
void quantise_k_row(const WeightFormat& format, const float* x, int64_t k, int8_t* to,
                    float* scales, float* sums) {
  typedef int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
  const KLayout layout = k_layout(format.encoding);
  Bytes order;
  for (int byte = 0; byte < 16; ++byte)
    order[byte] = static_cast<int8_t>(byte / 4 * 4 + byte_column(byte % 4));
  for (int64_t begin = 0; begin < format.padded_columns(k); begin += layout.columns) {
    alignas(64) float part[kMostKColumns] = {};
    const int64_t count = k - begin < layout.columns ? k - begin : layout.columns;
    __builtin_memcpy(part, x + begin, static_cast<size_t>(count) * 4);
    VecF most = {};
    for (int i = 0; i < layout.columns; i += kLanes)
      most = max_of(most, (VecF)((VecU)load(part + i) & 0x7fffffffu));
    const float scale = max_range(reinterpret_cast<const float*>(&most), kLanes) / 127.0f;
    const VecF inverse = splat(scale > 1e-38f ? 1.0f / scale : 0.0f);
    VecF sum = {};
    for (int i = 0; i < layout.columns; i += 16) {
      Bytes codes;
      for (int half = 0; half < 16; half += kLanes) {
        const VecF code = round_even(load(part + i + half) * inverse);
        sum += code;
        store_bytes(reinterpret_cast<int8_t*>(&codes) + half, __builtin_convertvector(code, VecI));
      }
      *reinterpret_cast<Bytes*>(to + begin + i) = shuffled(codes, order);
      if ((i + 16) % layout.part_columns != 0) continue;
      const float total = sum_lanes(sum);
      const bool is_number = total < 32768.0f && total > -32768.0f;  // not of NaN in x
      const int32_t less_zero = is_number ? -layout.zero * static_cast<int32_t>(total) : 0;
      __builtin_memcpy(sums++, layout.has_minima ? static_cast<const void*>(&total) : &less_zero,
                       4);
      sum = VecF{};
    }
    *scales++ = scale;
  }
}

void quantise_activations(const WeightFormat& format, const float* x, int64_t k, int8_t* to,
                          float* scales, float* sums) {
  if (format.is_k()) return quantise_k_row(format, x, k, to, scales, sums);
  if (is_four_bit(format.encoding))
    quantise_row<true, ShortDots>(format, x, k, to, scales, sums);
  else
    quantise_row<false, ShortDots>(format, x, k, to, scales, sums);
}

inline VecF e4m3_value(VecF x, float scale, float inverse) {
  const VecU bits = (VecU)(x * inverse);
  const VecF magnitude = (VecF)(bits & 0x7fffffffu);
  const VecU normal = ((VecU)magnitude + 0x7ffffu + (((VecU)magnitude >> 20) & 1u)) & 0xfff00000u;
  const VecU small = (VecU)(round_even(magnitude * 512.0f) / 512.0f);
  const VecI is_small = magnitude < splat(0.015625f);
  return (VecF)((is_small ? small : normal) | (bits & 0x80000000u)) * scale;
}

// e4m3's values times a power of two have nothing in the lower halves of their words: bf16 is the
// upper ones.
void round_e4m3(const float* x, int64_t k, float* f32, uint16_t* bf16) {
  const auto over_vectors = [&](const auto& take) {
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes) take(i, load(x + i), int64_t{kLanes});
    if (i == k) return;
    float rest[kLanes] = {};
    __builtin_memcpy(rest, x + i, static_cast<size_t>(k - i) * 4);
    take(i, load(rest), k - i);
  };
  VecI most = {};  // bits of magnitudes, so that a NaN is the largest
  over_vectors([&](int64_t, VecF value, int64_t) {
    const VecI magnitude = (VecI)((VecU)value & 0x7fffffffu);
    most = magnitude > most ? magnitude : most;
  });
  int32_t largest_bits = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    largest_bits = most[lane] > largest_bits ? most[lane] : largest_bits;
  float largest;
  __builtin_memcpy(&largest, &largest_bits, 4);
  const float scale = e4m3_row_scale(largest);
  const float inverse = 1.0f / scale;
  over_vectors([&](int64_t i, VecF value, int64_t count) {
    const VecF rounded = e4m3_value(value, scale, inverse);
    const VecH upper = narrow_halves((VecU)rounded >> 16);
    if (f32)
      __builtin_memcpy(f32 + i, &rounded, static_cast<size_t>(count) * 4);
    else
      __builtin_memcpy(bf16 + i, &upper, static_cast<size_t>(count) * 2);
  });
}

// sums[group] of a row of bf16 values.
void sum_groups(const uint16_t* x, int64_t k, int64_t columns, float* sums) {
  for (int64_t begin = 0; begin < k; begin += columns) {
    const int64_t end = begin + columns < k ? begin + columns : k;
    VecF sum = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) sum += load_bf16(x + i);
    float rest = 0;
    for (; i < end; ++i) rest += scalar_bf16(x + i);
    *sums++ = sum_lanes(sum) + rest;
  }
}

}  // namespace
}  // namespace sluice::kernels
