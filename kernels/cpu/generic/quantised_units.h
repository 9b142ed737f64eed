#pragma once
// Units of quantised matrices: kLanes rows of a panel. A vector register holds one column of them,
// so sums need no turning and a group's scales are one multiply-add.
#include "kernels/cpu/generic/k_units.h"
#include "kernels/cpu/generic/quantise.h"
#include "kernels/cpu/variant.h"

namespace sluice::kernels {
namespace {

struct UnitScales {
  VecF scale, zero;  // w = scale (code - zero)
};

// Powers of two from their e8m0 bytes.
inline VecF e8m0_values(const std::byte* bytes) {
  VecU exponent;
  for (int i = 0; i < kLanes; ++i) exponent[i] = static_cast<uint32_t>(bytes[i]);
  return (VecF)(exponent << 23 | ((VecU)(exponent == 0u) & (1u << 22)));
}

inline UnitScales load_scales(Encoding encoding, const std::byte* meta, int part) {
  if (encoding == Encoding::kInt4)
    return {load_f16(meta + part * kLanes * 2), load_f16(meta + 32 + part * kLanes * 2)};
  if (encoding == Encoding::kQ4_0) return {load_f16(meta + part * kLanes * 2), splat(kQ4Zero)};
  if (encoding == Encoding::kMxfp4) return {e8m0_values(meta + part * kLanes), VecF{}};
  return {load(reinterpret_cast<const float*>(meta) + part * kLanes),
          splat(encoding == Encoding::kInt8 ? 128.0f : 0.0f)};
}

// Of 4-bit codes that stand for values of a table.
template <Encoding kEncoding>
constexpr bool kLooksUp = is_four_bit(kEncoding) && !has_int4_codes(kEncoding);
template <Encoding kEncoding>
constexpr const float (&code_values())[16] {
  return kEncoding == Encoding::kNf4   ? kNf4Values
         : kEncoding == Encoding::kIq4 ? kIq4Values
                                       : kE2m1Values;
}
template <Encoding kEncoding>
inline VecF table_value(VecU code) {
  return look_up(code_values<kEncoding>(), code);
}

// The value of a code before its scale; of kInt4, kQ4_0 and kInt8 before the zero is taken off.
template <Encoding kEncoding>
inline VecF code_value(VecU code) {
  if constexpr (kLooksUp<kEncoding>) {
    return table_value<kEncoding>(code);
  } else if constexpr (kEncoding == Encoding::kFp8) {
    const VecF magnitude = (VecF)((code & 0x7fu) << 20) * 0x1p120f;
    return (VecF)((VecU)magnitude | ((code & 0x80u) << 24));
  } else {
    return __builtin_convertvector((VecI)code, VecF);
  }
}

template <Encoding kEncoding>
constexpr int kLineColumns = static_cast<int>(line_columns(kEncoding));

template <Encoding kEncoding>
inline VecU code_at(VecU word, int position) {
  return is_four_bit(kEncoding) ? (word >> (4 * position)) & 15u : (word >> (8 * position)) & 255u;
}

template <Encoding kEncoding>
void unpack_typed(const WeightFormat& format, const std::byte* panel, int64_t cols, int part,
                  int64_t begin, int64_t count, float* block, int64_t stride) {
  constexpr int kColumns = kLineColumns<kEncoding>;
  const int64_t columns = format.group_columns(cols);
  const int64_t code_bytes = format.group_code_bytes(cols);
  for (int64_t column = begin; column < begin + count;) {
    const int64_t group = column / columns;
    const int64_t group_end =
        (group + 1) * columns < begin + count ? (group + 1) * columns : begin + count;
    const std::byte* lines = panel + group * (code_bytes + format.scale_bytes());
    const UnitScales scales = load_scales(kEncoding, lines + code_bytes, part);
    const std::byte* line =
        lines + (column - group * columns) / kColumns * kQuantLine + part * kLanes * 4;
    for (; column < group_end; column += kColumns, line += kQuantLine) {
      VecU word;
      __builtin_memcpy(&word, line, sizeof word);
      for (int position = 0; position < kColumns; ++position) {
        const int at = kColumns == 8 ? nibble_column(position) : byte_column(position);
        if (column + at < begin + count)
          store(block + (column + at - begin) * stride,
                (code_value<kEncoding>(code_at<kEncoding>(word, position)) - scales.zero) *
                    scales.scale);
      }
    }
  }
}

inline void unpack_unit(const WeightFormat& format, const std::byte* panel, int64_t cols, int part,
                        int64_t begin, int64_t count, float* block, int64_t stride) {
  switch (format.encoding) {
    case Encoding::kInt4:
      return unpack_typed<Encoding::kInt4>(format, panel, cols, part, begin, count, block, stride);
    case Encoding::kQ4_0:
      return unpack_typed<Encoding::kQ4_0>(format, panel, cols, part, begin, count, block, stride);
    case Encoding::kInt8:
      return unpack_typed<Encoding::kInt8>(format, panel, cols, part, begin, count, block, stride);
    case Encoding::kNf4:
      return unpack_typed<Encoding::kNf4>(format, panel, cols, part, begin, count, block, stride);
    case Encoding::kMxfp4:
      return unpack_typed<Encoding::kMxfp4>(format, panel, cols, part, begin, count, block, stride);
    case Encoding::kIq4:
      return unpack_typed<Encoding::kIq4>(format, panel, cols, part, begin, count, block, stride);
    case Encoding::kQ2K: return unpack_k<Encoding::kQ2K>(panel, part, begin, count, block, stride);
    case Encoding::kQ3K: return unpack_k<Encoding::kQ3K>(panel, part, begin, count, block, stride);
    case Encoding::kQ4K: return unpack_k<Encoding::kQ4K>(panel, part, begin, count, block, stride);
    case Encoding::kQ5K: return unpack_k<Encoding::kQ5K>(panel, part, begin, count, block, stride);
    case Encoding::kQ6K: return unpack_k<Encoding::kQ6K>(panel, part, begin, count, block, stride);
    case Encoding::kQ4_1:
      return unpack_k<Encoding::kQ4_1>(panel, part, begin, count, block, stride);
    case Encoding::kQ5_1:
      return unpack_k<Encoding::kQ5_1>(panel, part, begin, count, block, stride);
    case Encoding::kIq1: return unpack_k<Encoding::kIq1>(panel, part, begin, count, block, stride);
    case Encoding::kIq2: return unpack_k<Encoding::kIq2>(panel, part, begin, count, block, stride);
    default:
      return unpack_typed<Encoding::kFp8>(format, panel, cols, part, begin, count, block, stride);
  }
}

void unpack_panel(const WeightFormat& format, const std::byte* panel, int64_t cols, int64_t begin,
                  int64_t count, float* block) {
  for (int part = 0; part < kPanelParts; ++part)
    unpack_unit(format, panel, cols, part, begin, count, block + part * kLanes, kPanelRows);
}

// Unit `unit` of a matrix: its lines begin here.
inline const std::byte* unit_panel(const QuantisedCall& call, int64_t row) {
  return call.w + row / kPanelRows * call.panel_bytes;
}
inline int part_of(int64_t row) { return static_cast<int>(row % kPanelRows / kLanes); }

inline void put_unit(const QuantisedCall& call, int64_t row, int64_t i, VecF value) {
  float* to = call.y + i * call.ldy + row;
  if (row + kLanes <= call.n) {
    store(to, value);
  } else {
    for (int64_t lane = 0; row + lane < call.n; ++lane) to[lane] = value[lane];
  }
}
inline VecF get_unit(const float* from, int64_t row, int64_t n) {
  if (row + kLanes <= n) return load(from);
  VecF value = {};
  for (int64_t lane = 0; row + lane < n; ++lane) value[lane] = from[lane];
  return value;
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// What will be read of kPanels panels once all tiles have been multiplied: a tile fetches its part
// of the lines, evenly spread over its steps.
template <int kPanels>
struct NextLines {
  NextLines(const std::byte* const (&at)[kPanels], int64_t bytes, int64_t tile, int64_t tiles,
            int64_t steps) {
    for (int panel = 0; panel < kPanels; ++panel) panels[panel] = at[panel];
    const int64_t lines = bytes / kQuantLine;
    line = lines * tile / tiles;
    end = lines * (tile + 1) / tiles;
    of_step = (end - line + steps - 1) / steps;
  }
  void fetch() {
    for (const int64_t to = least(end, line + of_step); line < to; ++line)
      for (const std::byte* panel : panels) __builtin_prefetch(panel + line * kQuantLine);
  }

  const std::byte* panels[kPanels];
  int64_t line, end, of_step;
};

// More rows of x than kRows pass the codes a few at a time, as many in a block as stay in the
// cache: decoding codes again costs no more than laying them out for larger tiles (but for many
// rows of bf16, avx512_bf16/quantised_panels.h and ARM's, and of int8 beside K types,
// generic/k_panels.h). few(row_begin, row_end, first, count): up to kRows of x.
template <typename Element, int kRows, typename Few>
inline void few_at_a_time(const QuantisedCall& call, int64_t row_begin, int64_t row_end,
                          const Few& few) {
  constexpr int64_t kBlockBytes = 384 * 1024;
  if (call.m <= kRows) return few(row_begin, row_end, 0, call.m);
  const int64_t row_bytes = call.ld * static_cast<int64_t>(sizeof(Element));
  const int64_t fitting = kBlockBytes / row_bytes / kRows * kRows;
  const int64_t block = fitting < kRows ? kRows : fitting;
  for (int64_t begin = 0; begin < call.m; begin += block) {
    const int64_t end = begin + block < call.m ? begin + block : call.m;
    for (int64_t row = row_begin; row < row_end; row += kPanelRows) {
      const int64_t last = row + kPanelRows < row_end ? row + kPanelRows : row_end;
      int64_t left = (end - begin + kRows - 1) / kRows;
      for (int64_t first = begin; first < end; --left) {
        const int64_t count = (end - first + left - 1) / left;
        few(row, last, first, count);
        first += count;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
