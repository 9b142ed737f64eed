#pragma once
// Rows to quantised panels: lanes are rows, so every statistic of a group is a vector.
#include "kernels/cpu/generic/linear.h"
#include "kernels/quantise.h"
#include "kernels/quantised_layout.h"
#include "src/base/microscaling.h"

namespace sluice::kernels {
namespace {

constexpr int kPanelRows = 16;
constexpr int kPanelParts = kPanelRows / kLanes;  // vectors that hold one column of a panel
constexpr int64_t kBlockColumns = 128;            // turned at a time

inline VecF min_of(VecF a, VecF b) { return a < b ? a : b; }
inline VecF round_even(VecF v) { return (v + 12582912.0f) - 12582912.0f; }  // |v| < 2^22
inline VecF through_f16(VecF v) {
  alignas(32) uint16_t half[kLanes];
  store_f16(half, v);
  return load_f16(half);
}
inline VecU load_codes(const std::byte* p) {
  VecU word;
  __builtin_memcpy(&word, p, sizeof word);
  return word;
}
// Of scales of either sign; 0 of next to nothing.
inline VecF inverse_of(VecF scale) {
  return (VecF)((VecU)scale & 0x7fffffffu) > splat(1e-38f) ? 1.0f / scale : VecF{};
}
inline VecU code_of(VecF v) { return (VecU) __builtin_convertvector(v, VecI); }

// Columns [begin, begin + count) of up to 16 rows, turned: block[column][row]; zeros past the rows,
// and past the columns up to a whole number of kLanes. Returns false when a value is not finite.
inline bool turn_rows(const float* rows, int64_t ld, int64_t row_count, int64_t begin,
                      int64_t count, float* block) {
  const int64_t whole = row_count == kPanelRows ? count / kLanes * kLanes : 0;
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  const char* address[kPanelRows];
  for (int64_t row = 0; row < row_count; ++row)
    address[row] = (const char*)(rows + row * ld + begin);
  for (int64_t column = 0; column < whole; column += kLanes)
    for (int part = 0; part < kPanelParts; ++part)
      turn<FromF32>(address + part * kLanes, column * 4,
                    block + column * kPanelRows + part * kLanes, kPanelRows);
  for (int64_t column = whole; column < padded; ++column)
    for (int64_t row = 0; row < kPanelRows; ++row)
      block[column * kPanelRows + row] =
          row < row_count && column < count ? scalar_f32(address[row] + column * 4) : 0.0f;
  VecF check = {};
  for (int64_t i = 0; i < padded * kPanelRows; i += kLanes) check += load(block + i) * 0.0f;
  return sum_lanes(check) == 0.0f;  // infinity and NaN times 0 are NaN
}

struct Int4Range {
  VecF scale, zero;
};

inline Int4Range int4_range(VecF low, VecF high, float share) {
  const VecF scale = through_f16((high - low) * (share / 15.0f));
  const VecF zero = through_f16(low * -share / scale);
  return {scale, scale > VecF{} ? zero : VecF{}};
}

inline VecF int4_code(VecF x, VecF inverse, VecF zero) {
  return min_of(max_of(round_even(x * inverse + zero), VecF{}), splat(15.0f));
}

// The range of one group of kLanes rows; block columns are kPanelRows apart.
inline Int4Range search_int4(const float* block, int64_t count, const float* importance,
                             int steps) {
  VecF low = {}, high = {};
  for (int64_t i = 0; i < count; ++i) {
    const VecF x = load(block + i * kPanelRows);
    low = min_of(low, x);
    high = max_of(high, x);
  }
  Int4Range best = int4_range(low, high, 1.0f);
  if (steps <= 1) return best;
  VecF least = splat(3e38f);
  for (int step = 0; step < steps; ++step) {
    const Int4Range range = int4_range(low, high, 1.0f - static_cast<float>(step) * kClipStep);
    const VecF inverse = range.scale > VecF{} ? 1.0f / range.scale : VecF{};
    VecF error = {};
    for (int64_t i = 0; i < count; ++i) {
      const VecF x = load(block + i * kPanelRows);
      const VecF off = (int4_code(x, inverse, range.zero) - range.zero) * range.scale - x;
      error += importance ? off * off * importance[i] : off * off;
    }
    const VecI better = error < least;
    least = better ? error : least;
    best.scale = better ? range.scale : best.scale;
    best.zero = better ? range.zero : best.zero;
  }
  return best;
}

inline VecU nf4_code(VecF x) {
  VecI code = {};
  for (int i = 0; i < 15; ++i)
    code -= x > splat(0.5f * (kNf4Values[i] + kNf4Values[i + 1]));  // true is -1
  return (VecU)code;
}

inline VecU iq4_code(VecF x) {
  VecI code = {};
  for (int i = 0; i < 15; ++i) code -= x > splat(0.5f * (kIq4Values[i] + kIq4Values[i + 1]));
  return (VecU)code;
}

// Codes that stand for values on both sides of zero, of which the first's magnitude is largest, and
// the value of x / scale's.
struct Q4Codes {
  static constexpr float kFirst = -kQ4Zero, kLast = 15 - kQ4Zero;
  static VecF stored(VecF scale) { return through_f16(scale); }
  static VecF value(VecF x) { return min_of(max_of(round_even(x), splat(kFirst)), splat(kLast)); }
};
struct Iq4Codes {
  static constexpr float kFirst = -127, kLast = 113;
  static VecF stored(VecF scale) { return scale; }
  static VecF value(VecF x) { return look_up(kIq4Values, iq4_code(x)); }
};

// The scale of a group of kLanes rows; block columns are kPanelRows apart. The value of largest
// magnitude is the first code's or the last one's, or past them.
template <typename Codes>
inline VecF search_scale(const float* block, int64_t count, const float* importance, int steps) {
  VecF low = {}, high = {};
  for (int64_t i = 0; i < count; ++i) {
    const VecF x = load(block + i * kPanelRows);
    low = min_of(low, x);
    high = max_of(high, x);
  }
  const VecF largest = high > -low ? high : low;
  VecF best = Codes::stored(largest / Codes::kFirst);
  if (steps <= 1) return best;
  VecF least = splat(3e38f);
  for (int step = 0; step < 2 * steps; ++step) {
    const float share = 1.0f - static_cast<float>(step / 2) * kClipStep;
    const VecF scale =
        Codes::stored(largest * (share / (step % 2 == 0 ? Codes::kFirst : Codes::kLast)));
    const VecF inverse = inverse_of(scale);
    VecF error = {};
    for (int64_t i = 0; i < count; ++i) {
      const VecF x = load(block + i * kPanelRows);
      const VecF off = Codes::value(x * inverse) * scale - x;
      error += importance ? off * off * importance[i] : off * off;
    }
    const VecI better = error < least;
    least = better ? error : least;
    best = better ? scale : best;
  }
  return best;
}

// Ties go to even codes; the sign stays with what becomes 0.
inline VecU e2m1_code(VecF x) {
  const VecF magnitude = (VecF)((VecU)x & 0x7fffffffu);
  VecI code = {};
  for (int next = 1; next < 8; ++next) {
    const VecF middle = splat(0.5f * (kE2m1Values[next - 1] + kE2m1Values[next]));
    code -= next % 2 == 0 ? magnitude >= middle : magnitude > middle;  // true is -1
  }
  return (VecU)code | ((VecU)x >> 28 & 8u);
}

inline VecU e4m3_code(VecF x) {
  const VecU bits = (VecU)x;
  const VecF magnitude = min_of((VecF)(bits & 0x7fffffffu), splat(448.0f));
  const VecU wide = (VecU)magnitude;
  const VecU normal = ((wide + 0x7ffffu + ((wide >> 20) & 1u)) >> 20) - (120u << 3);
  const VecU small = code_of(round_even(magnitude * 512.0f));
  const VecI is_small = magnitude < splat(0.015625f);
  return (is_small ? small : normal) | (bits >> 24 & 0x80u);
}

// Words of the lines of `count` columns (whole lines) from codes of a column at a time.
template <int kColumns, typename Code>
inline void put_lines(int64_t count, std::byte* lines, const Code& code) {
  constexpr int kBits = 32 / kColumns;
  for (int64_t line = 0; line < count / kColumns; ++line) {
    VecU word = {};
    for (int position = 0; position < kColumns; ++position)
      word |=
          code(line * kColumns + (kColumns == 8 ? nibble_column(position) : byte_column(position)))
          << (kBits * position);
    __builtin_memcpy(lines + line * kQuantLine, &word, sizeof word);
  }
}

// mxfp4_scale() of each, and its e8m0 bytes.
inline VecF put_mxfp4_scale(VecF most, std::byte* meta) {
  VecF scale = {};
  for (int i = 0; i < kLanes; ++i) {
    scale[i] = mxfp4_scale(most[i]);
    meta[i] = static_cast<std::byte>(e8m0_of(scale[i]));
  }
  return scale;
}

// One group that fits a block: the 4-bit encodings, and the 8-bit encodings with groups.
inline void quantise_block(Encoding encoding, const float* block, int64_t columns, int64_t count,
                           const float* importance, int steps, VecF known_scale,
                           bool scale_is_known, std::byte* lines, std::byte* meta) {
  const auto at = [&](int64_t column) { return load(block + column * kPanelRows); };
  if (encoding == Encoding::kInt4) {
    const Int4Range range = search_int4(block, count, importance, steps);
    const VecF inverse = range.scale > VecF{} ? 1.0f / range.scale : VecF{};
    put_lines<8>(columns, lines,
                 [&](int64_t i) { return code_of(int4_code(at(i), inverse, range.zero)); });
    store_f16(meta, range.scale);
    store_f16(meta + 32, range.zero);
    return;
  }
  if (encoding == Encoding::kQ4_0) {
    const VecF scale = search_scale<Q4Codes>(block, count, importance, steps);
    const VecF inverse = inverse_of(scale);
    put_lines<8>(columns, lines,
                 [&](int64_t i) { return code_of(int4_code(at(i), inverse, splat(kQ4Zero))); });
    store_f16(meta, scale);
    return;
  }
  if (encoding == Encoding::kIq4) {
    const VecF scale = search_scale<Iq4Codes>(block, count, importance, steps);
    put_lines<8>(columns, lines, [&](int64_t i) { return iq4_code(at(i) * inverse_of(scale)); });
    __builtin_memcpy(meta, &scale, sizeof scale);
    return;
  }
  VecF scale = known_scale;
  if (!scale_is_known) {
    VecF most = {};
    for (int64_t i = 0; i < count; ++i) most = max_of(most, (VecF)((VecU)at(i) & 0x7fffffffu));
    scale = encoding == Encoding::kInt8  ? most / 127.0f
            : encoding == Encoding::kNf4 ? most
                                         : most / 448.0f;
    if (encoding == Encoding::kMxfp4)
      scale = put_mxfp4_scale(most, meta);
    else
      __builtin_memcpy(meta, &scale, sizeof scale);
  }
  const VecF inverse = scale > splat(1e-38f) ? 1.0f / scale : VecF{};
  if (encoding == Encoding::kInt8)
    put_lines<4>(columns, lines, [&](int64_t i) {
      const VecF q = min_of(max_of(round_even(at(i) * inverse), splat(-127.0f)), splat(127.0f));
      return code_of(q + 128.0f);
    });
  else if (encoding == Encoding::kMxfp4)
    put_lines<8>(columns, lines, [&](int64_t i) { return e2m1_code(at(i) / scale); });
  else if (encoding == Encoding::kNf4)
    put_lines<8>(columns, lines, [&](int64_t i) { return nf4_code(at(i) * inverse); });
  else
    put_lines<4>(columns, lines, [&](int64_t i) { return e4m3_code(at(i) * inverse); });
}

constexpr int lane_scale_bytes(Encoding encoding) {
  return has_int4_codes(encoding) ? 2 : encoding == Encoding::kMxfp4 ? 1 : 4;
}

bool quantise_rows(const WeightFormat& format, const QuantiseOptions& options, const float* rows,
                   int64_t ld, int64_t row_count, int64_t cols, std::byte* panel) {
  alignas(64) float block[kBlockColumns * kPanelRows];
  const int64_t columns = format.group_columns(cols);
  const int steps = options.search == RangeSearch::kClip ? kClipSteps : 1;
  float importance[kBlockColumns] = {};
  for (int64_t group = 0; group < format.groups(cols); ++group) {
    std::byte* lines = panel + group_offset(format, cols, group);
    std::byte* meta = lines + format.group_code_bytes(cols);
    const int64_t begin = group * columns;
    if (columns <= kBlockColumns) {
      const int64_t count = cols - begin < columns ? cols - begin : columns;
      __builtin_memset(block, 0, static_cast<size_t>(columns) * kPanelRows * 4);
      if (!turn_rows(rows, ld, row_count, begin, count, block)) return false;
      if (options.importance)
        for (int64_t i = 0; i < count; ++i) importance[i] = options.importance[begin + i];
      for (int part = 0; part < kPanelParts; ++part)
        quantise_block(format.encoding, block + part * kLanes, columns, count,
                       options.importance ? importance : nullptr, steps, VecF{}, false,
                       lines + part * kLanes * 4,
                       meta + part * kLanes * lane_scale_bytes(format.encoding));
      if (has_int4_codes(format.encoding))
        for (int row = 0; row < kPanelRows; ++row)
          if ((scalar_f16(meta + row * 2) - scalar_f16(meta + row * 2)) != 0.0f) return false;
      continue;
    }
    // One scale for the whole row: its largest value first.
    VecF most[kPanelParts] = {};
    constexpr int64_t kChunk = 64;
    for (int64_t at = 0; at < cols; at += kChunk) {
      const int64_t count = cols - at < kChunk ? cols - at : kChunk;
      if (!turn_rows(rows, ld, row_count, at, count, block)) return false;
      for (int64_t i = 0; i < count; ++i)
        for (int part = 0; part < kPanelParts; ++part)
          most[part] = max_of(
              most[part], (VecF)((VecU)load(block + i * kPanelRows + part * kLanes) & 0x7fffffffu));
    }
    for (int part = 0; part < kPanelParts; ++part) {
      most[part] = most[part] / (format.encoding == Encoding::kInt8 ? 127.0f : 448.0f);
      __builtin_memcpy(meta + part * kLanes * 4, &most[part], sizeof most[part]);
    }
    for (int64_t at = 0; at < columns; at += kChunk) {
      const int64_t count = cols - at < kChunk ? cols - at : kChunk;
      __builtin_memset(block, 0, kChunk * kPanelRows * 4);
      turn_rows(rows, ld, row_count, at, count, block);
      for (int part = 0; part < kPanelParts; ++part)
        quantise_block(format.encoding, block + part * kLanes, kChunk, count, nullptr, 1,
                       most[part], true, lines + at / 4 * kQuantLine + part * kLanes * 4, meta);
    }
  }
  return true;
}

}  // namespace
}  // namespace sluice::kernels
