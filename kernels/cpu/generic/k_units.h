#pragma once
// Panels of GGUF's K types (kernels/k_layout.h) as vectors: scales of a group's parts, and codes, a
// byte each, four columns a vector.
#include "kernels/cpu/generic/quantise.h"
#include "kernels/k_layout.h"

namespace sluice::kernels {
namespace {

template <Encoding kEncoding>
constexpr KLayout kKLayout = k_layout(kEncoding);

inline VecF k_number(VecI v) { return __builtin_convertvector(v, VecF); }

// w = scale code - minimum, both exact in f32.
template <Encoding kEncoding>
struct KScales {
  static constexpr KLayout kLayout = kKLayout<kEncoding>;
  VecF scale[kLayout.parts()], minimum[kLayout.has_minima ? kLayout.parts() : 1];

  // Of rows from `part` times kLanes on, of the group that begins at `lines`.
  void load(const std::byte* lines, int part) {
    VecU words[4] = {};
    for (int i = 0; i < kLayout.scale_words; ++i)
      words[i] = load_codes(lines + i * kQuantLine + part * kLanes * 4);
    const std::byte* const meta = lines + kLayout.scale_words * kQuantLine;
    VecF d, m = {};
    if constexpr (kLayout.has_minima) {
      d = load_f16(meta + part * kLanes * 2);
      m = load_f16(meta + 32 + part * kLanes * 2);
    } else {
      d = kernels::load(reinterpret_cast<const float*>(meta) + part * kLanes);
    }
    if constexpr (kLayout.scale_words == 0) {  // w = d code + m
      scale[0] = d;
      minimum[0] = -m;
      return;
    }
#pragma GCC unroll 4
    for (int four = 0; four < kLayout.parts() / 4; ++four) {
      const auto [scales, minima] = bytes_of(words, four);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        if constexpr (kAreBytes)
          scale[4 * four + i] = d * k_number((VecI)(scales << (24 - 8 * i)) >> 24);
        else
          scale[4 * four + i] = d * k_number((VecI)(scales >> (8 * i) & 255u) -
                                             (kEncoding == Encoding::kQ3K ? 32 : 0));
        if constexpr (kLayout.has_minima)
          minimum[4 * four + i] = m * k_number((VecI)(minima >> (8 * i) & 255u));
      }
    }
  }

 private:
  // Small scales are bytes with a sign.
  static constexpr bool kAreBytes = kLayout.scale_words == 4 && !kLayout.has_minima;
  struct Four {
    VecU scales, minima;
  };
  // Small scales of four parts, a byte each.
  static Four bytes_of(const VecU (&words)[4], int four) {
    if constexpr (kAreBytes) return {words[four], VecU{}};
    if constexpr (kEncoding == Encoding::kQ2K)
      return {words[four] & 0x0f0f0f0fu, words[four] >> 4 & 0x0f0f0f0fu};
    if constexpr (kEncoding == Encoding::kQ3K)
      return {(words[four % 2] >> (four / 2 * 4) & 0x0f0f0f0fu) |
                  (words[2] >> (2 * four) & 0x03030303u) << 4,
              VecU{}};
    if (four == 0) return {words[0] & 0x3f3f3f3fu, words[1] & 0x3f3f3f3fu};
    return {(words[2] & 0x0f0f0f0fu) | (words[0] >> 2 & 0x30303030u),
            (words[2] >> 4 & 0x0f0f0f0fu) | (words[1] >> 2 & 0x30303030u)};
  }
};

// Bits of quad v of a plane, of kWidth each from bit 0 of a byte on, moved to bit kTo.
template <int kWidth, int kTo>
inline VecU k_plane(VecU plane, int v) {
  constexpr uint32_t kMask = ((1u << kWidth) - 1) << kTo;
  const int from = kWidth * v;
  return (from < kTo ? plane << (kTo - from) : plane >> (from - kTo)) & (kMask * 0x01010101u);
}

// The codes of 32 columns.
template <Encoding kEncoding>
struct KBlock {
  static constexpr KLayout kLayout = kKLayout<kEncoding>;
  VecU planes[kLayout.block_lines()];

  explicit KBlock(const std::byte* at) {
#pragma GCC unroll 8
    for (int i = 0; i < kLayout.block_lines(); ++i) planes[i] = load_codes(at + i * kQuantLine);
  }
  // Of columns 4 v to 4 v + 3, a byte each.
  VecU quad(int v) const {
    if constexpr (kLayout.has_nibbles) {
      const VecU low = planes[v / 2] >> (4 * (v % 2)) & 0x0f0f0f0fu;
      if constexpr (kLayout.has_pairs) return low | k_plane<2, 4>(planes[4 + v / 4], v % 4);
      if constexpr (kLayout.has_bits) return low | k_plane<1, 4>(planes[4], v);
      return low;
    } else {
      const VecU low = k_plane<2, 0>(planes[v / 4], v % 4);
      if constexpr (kLayout.has_bits) return low | k_plane<1, 2>(planes[2], v);
      return low;
    }
  }
};

inline const std::byte* k_lines(const KLayout& layout, const std::byte* group, int64_t block,
                                int part) {
  return group + layout.scale_bytes() + block * layout.block_lines() * kQuantLine +
         part * kLanes * 4;
}

// As unpack_typed (generic/quantised_units.h).
template <Encoding kEncoding>
void unpack_k(const std::byte* panel, int part, int64_t begin, int64_t count, float* block,
              int64_t stride) {
  constexpr KLayout kLayout = kKLayout<kEncoding>;
  KScales<kEncoding> scales;
  int64_t loaded = -1;
  for (int64_t column = begin; column < begin + count;) {
    const int64_t group = column / kLayout.columns, of_group = column % kLayout.columns;
    const std::byte* const lines = panel + group * kLayout.bytes();
    if (group != loaded) scales.load(lines, part);
    loaded = group;
    const KBlock<kEncoding> codes(k_lines(kLayout, lines, of_group / 32, part));
    const auto end = static_cast<int>(of_group % 32 + (begin + count - column));
    for (auto at = static_cast<int>(of_group % 32); at < 32 && at < end; at += 4, column += 4) {
      const VecU quad = k_code_value<kEncoding>(codes.quad(at / 4));
      const int64_t of = (of_group / 32 * 32 + at) / kLayout.part_columns;
      for (int byte = 0; byte < 4; ++byte) {
        const int64_t to = column + byte_column(byte);
        if (to >= begin + count) continue;
        VecF value = k_number((VecI)(quad >> (8 * byte) & 255u) - kLayout.zero) * scales.scale[of];
        if constexpr (kLayout.has_minima) value -= scales.minimum[of];
        store(block + (to - begin) * stride, value);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
