#include "kernels/quantise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/k_layout.h"
#include "kernels/quantised_layout.h"
#include "src/base/dtype.h"
#include "src/base/microscaling.h"

namespace sluice::kernels {

// The quantiles of a normal distribution, as published with QLoRA (arXiv:2305.14314, appendix E).
const float kNf4Values[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};

const float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};

uint8_t f32_to_e2m1(float value) noexcept {
  const uint8_t sign = std::signbit(value) ? 8 : 0;
  const float magnitude = std::fabs(value);
  uint8_t code = 0;
  for (uint8_t next = 1; next < 8; ++next) {
    const float middle = 0.5f * (kE2m1Values[next - 1] + kE2m1Values[next]);
    if (magnitude > middle || (magnitude == middle && next % 2 == 0)) code = next;
  }
  return sign | code;
}

float mxfp4_scale(float largest) noexcept {
  if (!(largest > 0)) return 0x1p-126f;
  int exponent = 0;
  std::frexp(largest, &exponent);  // in [2^(e-1), 2^e)
  return std::ldexp(1.0f, std::clamp(exponent - 3, -126, 125));
}

uint8_t f32_to_e4m3(float value) noexcept {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7f;
  if (magnitude >= 448) return sign | 0x7e;
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);       // magnitude in [2^(e-1), 2^e)
  exponent = std::max(exponent - 1, -6);  // of the unit digit; subnormals share -6
  const float steps = std::ldexp(magnitude, 3 - exponent);       // exact
  const auto rounded = static_cast<int>(std::nearbyint(steps));  // 0..16
  // A carry past 15 steps runs into the next exponent by itself.
  return static_cast<uint8_t>(sign | ((exponent + 6) * 8 + rounded));
}

float e4m3_row_scale(float largest) noexcept {
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  if (largest == 0) return 0x1p-117f;
  int exponent = 0;
  const float fraction = std::frexp(largest, &exponent);  // in [0.5, 1); 448 = 0.875 * 2^9
  return std::ldexp(1.0f, std::max(exponent - (fraction > 0.875f ? 8 : 9), -117));
}

void pack_group(const WeightFormat& format, int64_t cols, int64_t group, const uint8_t* codes,
                const float* scales, const float* zeros, std::byte* panel) noexcept {
  const int64_t columns = format.group_columns(cols);
  auto* lines = reinterpret_cast<uint8_t*>(panel + group_offset(format, cols, group));
  for (int64_t row = 0; row < WeightFormat::kPanelRows; ++row) {
    const uint8_t* from = codes + row * columns;
    if (is_four_bit(format.encoding)) {
      for (int64_t line = 0; line < columns / 8; ++line) {
        uint32_t word = 0;
        for (int position = 0; position < 8; ++position)
          word |= static_cast<uint32_t>(from[line * 8 + nibble_column(position)] & 15)
                  << (4 * position);
        std::memcpy(lines + line * kQuantLine + row * 4, &word, 4);
      }
    } else {
      for (int64_t line = 0; line < columns / 4; ++line)
        for (int position = 0; position < 4; ++position)
          lines[line * kQuantLine + row * 4 + position] = from[line * 4 + byte_column(position)];
    }
  }
  uint8_t* meta = lines + format.group_code_bytes(cols);
  for (int64_t row = 0; row < WeightFormat::kPanelRows; ++row) {
    if (format.encoding == Encoding::kInt4) {
      const uint16_t scale = f32_to_f16(scales[row]);
      const uint16_t zero = f32_to_f16(zeros[row]);
      std::memcpy(meta + row * 2, &scale, 2);
      std::memcpy(meta + 32 + row * 2, &zero, 2);
    } else if (format.encoding == Encoding::kQ4_0) {
      const uint16_t scale = f32_to_f16(scales[row]);
      std::memcpy(meta + row * 2, &scale, 2);
    } else if (format.encoding == Encoding::kMxfp4) {
      meta[row] = e8m0_of(scales[row]);
    } else {
      std::memcpy(meta + row * 4, scales + row, 4);
    }
  }
}

void pack_k_codes(Encoding encoding, const uint8_t* codes, int64_t stride,
                  std::byte* group) noexcept {
  const KLayout layout = k_layout(encoding);
  const int of_pairs = layout.has_nibbles ? 4 : 0, of_bits = of_pairs + (layout.has_pairs ? 2 : 0);
  std::memset(group + layout.scale_bytes(), 0,
              static_cast<size_t>(layout.bytes() - layout.scale_bytes()));
  const auto add = [](std::byte* line, int64_t row, uint32_t bits) {
    uint32_t word = 0;
    std::memcpy(&word, line + row * 4, 4);
    word |= bits;
    std::memcpy(line + row * 4, &word, 4);
  };
  for (int64_t row = 0; row < WeightFormat::kPanelRows; ++row)
    for (int64_t quad = 0; quad < layout.columns / 4; ++quad) {
      uint32_t four = 0;
      std::memcpy(&four, codes + row * stride + 4 * quad, 4);
      four = (four & 0xff0000ffU) | (four & 0xff00U) << 8 | (four >> 8 & 0xff00U);  // byte_column
      std::byte* line = group + layout.scale_bytes() + quad / 8 * layout.block_lines() * kQuantLine;
      const int64_t v = quad % 8;
      if (layout.has_nibbles)
        add(line + v / 2 * kQuantLine, row, (four & 0x0f0f0f0fU) << (4 * (v % 2)));
      line += of_pairs * kQuantLine;
      if (layout.has_pairs)
        add(line + v / 4 * kQuantLine, row, (four >> of_pairs & 0x03030303U) << (2 * (v % 4)));
      line += (of_bits - of_pairs) * kQuantLine;
      if (layout.has_bits) add(line, row, (four >> of_bits & 0x01010101U) << v);
    }
}

void pack_parts(const WeightFormat& format, const uint8_t* codes, const int8_t* scales,
                const float* d, std::byte* group) noexcept {
  const KLayout layout = k_layout(format.encoding);
  for (int64_t row = 0; row < WeightFormat::kPanelRows; ++row) {
    for (int64_t word = 0; word < layout.scale_words; ++word)
      std::memcpy(group + word * kQuantLine + row * 4, scales + row * layout.parts() + 4 * word, 4);
    std::memcpy(group + layout.scale_words * kQuantLine + row * 4, d + row, 4);
  }
  pack_k_codes(format.encoding, codes, layout.columns, group);
}

namespace reference {

namespace {
// Of a K type, as kernels/k_layout.h says. Byte `byte` of a lane's word in a line.
uint32_t byte_of(const std::byte* line, int64_t lane, int64_t byte) {
  return static_cast<uint32_t>(line[lane * 4 + byte]);
}

float half_of(const std::byte* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return f16_to_f32(bits);
}

// The small scale and minimum of a part, from `lines` of words.
std::pair<int, int> k_scales(Encoding encoding, const std::byte* lines, int64_t lane,
                             int64_t part) {
  const auto at = [&](int64_t byte) {
    return byte_of(lines + byte / 4 * kQuantLine, lane, byte % 4);
  };
  uint32_t scale = 0, minimum = 0;
  switch (encoding) {
    case Encoding::kQ2K: return {at(part) & 15, at(part) >> 4};
    case Encoding::kQ3K:
      scale = (at(part % 8) >> (part / 8 * 4) & 15) | (at(8 + part % 4) >> (part / 4 * 2) & 3) << 4;
      return {static_cast<int>(scale) - 32, 0};
    case Encoding::kQ6K:
    case Encoding::kIq1:
    case Encoding::kIq2: return {static_cast<int8_t>(at(part)), 0};
    case Encoding::kQ4_1:
    case Encoding::kQ5_1: return {1, -1};  // less -m
    default: break;
  }
  if (part < 4) {
    scale = at(part) & 63;
    minimum = at(part + 4) & 63;
  } else {
    scale = (at(part + 4) & 15) | (at(part - 4) >> 6) << 4;
    minimum = at(part + 4) >> 4 | (at(part) >> 6) << 4;
  }
  return {scale, minimum};
}

float k_value(Encoding encoding, const std::byte* group, int64_t lane, int64_t column) {
  const KLayout layout = k_layout(encoding);
  const std::byte* line =
      group + layout.scale_bytes() + column / 32 * layout.block_lines() * kQuantLine;
  const int64_t v = column % 32 / 4;
  int64_t byte = 0;
  while (byte_column(static_cast<int>(byte)) != column % 4) ++byte;
  uint32_t code = 0;
  int bits = 0;
  if (layout.has_nibbles) {
    code = byte_of(line + v / 2 * kQuantLine, lane, byte) >> (4 * (v % 2)) & 15;
    line += 4 * kQuantLine;
    bits = 4;
  }
  if (layout.has_pairs) {
    code |= (byte_of(line + v / 4 * kQuantLine, lane, byte) >> (2 * (v % 4)) & 3) << bits;
    line += 2 * kQuantLine;
    bits += 2;
  }
  if (layout.has_bits) code |= (byte_of(line, lane, byte) >> v & 1) << bits;
  if (encoding == Encoding::kIq1) code = k_code_value<Encoding::kIq1>(code);
  if (encoding == Encoding::kIq2) code = k_code_value<Encoding::kIq2>(code);
  const std::byte* meta = group + layout.scale_words * kQuantLine;
  const auto [scale, minimum] = k_scales(encoding, group, lane, column / layout.part_columns);
  float d = 0;
  std::memcpy(&d, meta + lane * 4, 4);
  if (layout.has_minima) d = half_of(meta + lane * 2);
  const float value =
      d * static_cast<float>(scale) * static_cast<float>(static_cast<int>(code) - layout.zero);
  if (!layout.has_minima) return value;
  return value - half_of(meta + 32 + lane * 2) * static_cast<float>(minimum);
}
}  // namespace

float quantised_value(const WeightFormat& format, const std::byte* w, int64_t cols, int64_t row,
                      int64_t col) {
  const std::byte* panel = w + row / WeightFormat::kPanelRows * format.panel_bytes(cols);
  const int64_t lane = row % WeightFormat::kPanelRows;
  const int64_t columns = format.group_columns(cols);
  const std::byte* lines = panel + group_offset(format, cols, col / columns);
  if (format.is_k()) return k_value(format.encoding, lines, lane, col % columns);
  const int64_t in_group = col % columns;
  const int64_t per_line = line_columns(format.encoding);
  const auto at = static_cast<int>(in_group % per_line);
  uint32_t word = 0;
  std::memcpy(&word, lines + in_group / per_line * kQuantLine + lane * 4, 4);
  uint32_t code = 0;
  if (is_four_bit(format.encoding)) {
    for (int position = 0; position < 8; ++position)
      if (nibble_column(position) == at) code = word >> (4 * position) & 15;
  } else {
    for (int position = 0; position < 4; ++position)
      if (byte_column(position) == at) code = word >> (8 * position) & 255;
  }
  const std::byte* meta = lines + format.group_code_bytes(cols);
  if (format.encoding == Encoding::kInt4) {
    uint16_t scale = 0, zero = 0;
    std::memcpy(&scale, meta + lane * 2, 2);
    std::memcpy(&zero, meta + 32 + lane * 2, 2);
    return f16_to_f32(scale) * (static_cast<float>(code) - f16_to_f32(zero));
  }
  if (format.encoding == Encoding::kQ4_0)
    return half_of(meta + lane * 2) * (static_cast<float>(code) - kQ4Zero);
  if (format.encoding == Encoding::kMxfp4)
    return e8m0_value(static_cast<uint8_t>(meta[lane])) * kE2m1Values[code];
  float scale = 0;
  std::memcpy(&scale, meta + lane * 4, 4);
  if (format.encoding == Encoding::kInt8) return scale * (static_cast<float>(code) - 128.0f);
  if (format.encoding == Encoding::kNf4) return scale * kNf4Values[code];
  if (format.encoding == Encoding::kIq4) return scale * kIq4Values[code];
  return scale * e4m3_to_f32(static_cast<uint8_t>(code));
}

void quantise_panel(const WeightFormat& format, const float* rows, int64_t ld, int64_t row_count,
                    int64_t cols, std::byte* panel) {
  constexpr int64_t kRows = WeightFormat::kPanelRows;
  const int64_t columns = format.group_columns(cols);
  std::vector<uint8_t> codes(static_cast<size_t>(kRows * columns));
  for (int64_t group = 0; group < format.groups(cols); ++group) {
    float scales[kRows] = {}, zeros[kRows] = {};
    std::fill(codes.begin(), codes.end(), format.encoding == Encoding::kInt8 ? 128 : 0);
    if (format.encoding == Encoding::kNf4) std::fill(codes.begin(), codes.end(), 7);
    if (format.encoding == Encoding::kQ4_0) std::fill(codes.begin(), codes.end(), 8);
    for (int64_t row = 0; row < row_count; ++row) {
      const float* x = rows + row * ld + group * columns;
      const int64_t count = std::min(columns, cols - group * columns);
      uint8_t* to = codes.data() + row * columns;
      const float high = std::max(0.0f, *std::max_element(x, x + count));
      const float low = std::min(0.0f, *std::min_element(x, x + count));
      const float most = std::max(high, -low);
      switch (format.encoding) {
        case Encoding::kInt4: {
          const float scale = f16_to_f32(f32_to_f16((high - low) / 15));
          const float zero = scale > 0 ? f16_to_f32(f32_to_f16(-low / scale)) : 0;
          for (int64_t i = 0; i < count; ++i)
            to[i] = scale > 0 ? static_cast<uint8_t>(
                                    std::clamp(std::nearbyint(x[i] / scale + zero), 0.0f, 15.0f))
                              : 0;
          scales[row] = scale;
          zeros[row] = zero;
          break;
        }
        case Encoding::kQ4_0: {
          const float scale = f16_to_f32(f32_to_f16((high > -low ? high : low) / -kQ4Zero));
          for (int64_t i = 0; i < count; ++i)
            to[i] = scale != 0 ? static_cast<uint8_t>(std::clamp(
                                     std::nearbyint(x[i] / scale + kQ4Zero), 0.0f, 15.0f))
                               : 8;
          scales[row] = scale;
          break;
        }
        case Encoding::kIq4:
          scales[row] = (high > -low ? high : low) / kIq4Values[0];
          for (int64_t i = 0; i < count && most > 0; ++i) {
            int best = 0;
            for (int code = 1; code < 16; ++code)
              if (std::fabs(x[i] / scales[row] - kIq4Values[code]) <
                  std::fabs(x[i] / scales[row] - kIq4Values[best]))
                best = code;
            to[i] = static_cast<uint8_t>(best);
          }
          break;
        case Encoding::kInt8:
          scales[row] = most / 127;
          for (int64_t i = 0; i < count; ++i)
            to[i] = static_cast<uint8_t>(
                128 + (most > 0 ? std::clamp(std::nearbyint(x[i] / scales[row]), -127.0f, 127.0f)
                                : 0.0f));
          break;
        case Encoding::kNf4:
          scales[row] = most;
          for (int64_t i = 0; i < count && most > 0; ++i) {
            int best = 0;
            for (int code = 1; code < 16; ++code)
              if (std::fabs(x[i] / most - kNf4Values[code]) <
                  std::fabs(x[i] / most - kNf4Values[best]))
                best = code;
            to[i] = static_cast<uint8_t>(best);
          }
          break;
        case Encoding::kMxfp4:
          scales[row] = mxfp4_scale(most);
          for (int64_t i = 0; i < count; ++i) to[i] = f32_to_e2m1(x[i] / scales[row]);
          break;
        default:
          scales[row] = most / 448;
          for (int64_t i = 0; i < count && most > 0; ++i) to[i] = f32_to_e4m3(x[i] / scales[row]);
      }
    }
    pack_group(format, cols, group, codes.data(), scales, zeros, panel);
  }
}

}  // namespace reference
}  // namespace sluice::kernels
