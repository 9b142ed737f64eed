#include "src/model/foreign/ggml_blocks.h"

#include <cmath>
#include <cstring>

#include "src/base/dtype.h"
#include "src/base/microscaling.h"
#include "src/model/foreign/ggml_grid_blocks.h"

namespace sluice {

namespace {

const uint8_t* bytes_of(const std::byte* block) { return reinterpret_cast<const uint8_t*>(block); }

float half_at(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return f16_to_f32(bits);
}

// Code of element i of 32, the low nibbles first.
uint8_t nibble(const uint8_t* codes, int64_t i) {
  return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
}

uint8_t fifth_bit(const uint8_t* high, int64_t i) {
  return static_cast<uint8_t>((high[i / 8] >> (i % 8) & 1) << 4);
}

struct ScaleAndOffset {
  float scale, offset;
};

// The 6-bit scale and offset of part 0..7 of a q4_k or q5_k block: 12 bytes.
ScaleAndOffset six_bits(const uint8_t* block, int64_t part) {
  const uint8_t* packed = block + 4;
  int scale, offset;
  if (part < 4) {
    scale = packed[part] & 63;
    offset = packed[part + 4] & 63;
  } else {
    scale = (packed[part + 4] & 15) | (packed[part - 4] >> 6) << 4;
    offset = packed[part + 4] >> 4 | (packed[part] >> 6) << 4;
  }
  return {half_at(block) * static_cast<float>(scale),
          half_at(block + 2) * static_cast<float>(offset)};
}

void decode_q2_k(const uint8_t* block, float* out) {
  const uint8_t *scales = block, *codes = block + 16;
  const float d = half_at(block + 80), m = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, shift = i % 128 / 32 * 2, byte = half * 32 + i % 32;
    const uint8_t scale = scales[i / 16];
    out[i] = d * static_cast<float>(scale & 15) * static_cast<float>(codes[byte] >> shift & 3) -
             m * static_cast<float>(scale >> 4);
  }
}

// 16 scales of 6 bits: low nibbles in 8 bytes, high pairs in 4.
int q3_scale(const uint8_t* packed, int part) {
  const int low = part < 8 ? packed[part] & 15 : packed[part - 8] >> 4;
  const int high = packed[8 + part % 4] >> (part / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

void decode_q3_k(const uint8_t* block, float* out) {
  const uint8_t *high = block, *codes = block + 32, *scales = block + 96;
  const float d = half_at(block + 108);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, shift = i % 128 / 32 * 2, byte = half * 32 + i % 32;
    const int low = codes[byte] >> shift & 3;
    const int is_upper = high[i % 32] >> (i / 32) & 1;
    out[i] = d * static_cast<float>(q3_scale(scales, i / 16)) *
             static_cast<float>(low - (is_upper ? 0 : 4));
  }
}

uint8_t q4_k_code(const uint8_t* block, int64_t i) {
  const uint8_t byte = block[16 + i / 64 * 32 + i % 32];
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}

void decode_q4_or_q5_k(const uint8_t* block, bool is_five, float* out) {
  const uint8_t* codes = block + (is_five ? 48 : 16);
  for (int i = 0; i < 256; ++i) {
    const auto [scale, offset] = six_bits(block, i / 32);
    const uint8_t byte = codes[i / 64 * 32 + i % 32];
    int code = i % 64 < 32 ? byte & 15 : byte >> 4;
    if (is_five) code |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
    out[i] = scale * static_cast<float>(code) - offset;
  }
}

void decode_q6_k(const uint8_t* block, float* out) {
  const uint8_t *low = block, *high = block + 128;
  const float d = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
    const uint8_t byte = low[half * 64 + (quarter % 2) * 32 + at];
    const int nibble = quarter < 2 ? byte & 15 : byte >> 4;
    const int pair = high[half * 32 + at] >> (2 * quarter) & 3;
    const auto scale = static_cast<int8_t>(block[192 + i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((nibble | pair << 4) - 32);
  }
}
}  // namespace

namespace {
// Of whole numbers times scales.
void decode_parts(BlockType type, const uint8_t* block, float* out) {
  int8_t codes[16];
  float scale = 0;
  for (int64_t part = 0; part < block_layout(type).elements / 16; ++part) {
    if (!part_codes(type, block, part, codes, scale)) return;
    for (int i = 0; i < 16; ++i) out[16 * part + i] = scale * static_cast<float>(codes[i]);
  }
}

// The same as codes of kInt8, of 32 elements with one scale.
bool int8_codes(BlockType type, const uint8_t* block, int64_t part, uint8_t* codes, float& scale) {
  int8_t signed_codes[32];
  if (!are_scales_of_32(type)) return false;
  for (int64_t half = 0; half < 2; ++half)
    part_codes(type, block, 2 * part + half, signed_codes + 16 * half, scale);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(signed_codes[i] + 128);
  return true;
}
}  // namespace

void decode_block(BlockType type, const std::byte* data, float* out) noexcept {
  const uint8_t* block = bytes_of(data);
  const float d = half_at(block);
  switch (type) {
    case BlockType::kQ4_0:
      for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
      break;
    case BlockType::kQ4_1:
      for (int i = 0; i < 32; ++i)
        out[i] = d * static_cast<float>(nibble(block + 4, i)) + half_at(block + 2);
      break;
    case BlockType::kQ5_0:
      for (int i = 0; i < 32; ++i)
        out[i] = d * static_cast<float>((nibble(block + 6, i) | fifth_bit(block + 2, i)) - 16);
      break;
    case BlockType::kQ5_1:
      for (int i = 0; i < 32; ++i)
        out[i] = d * static_cast<float>(nibble(block + 8, i) | fifth_bit(block + 4, i)) +
                 half_at(block + 2);
      break;
    case BlockType::kQ8_0:
      for (int i = 0; i < 32; ++i)
        out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
      break;
    case BlockType::kQ2_K: decode_q2_k(block, out); break;
    case BlockType::kQ3_K: decode_q3_k(block, out); break;
    case BlockType::kQ4_K: decode_q4_or_q5_k(block, false, out); break;
    case BlockType::kQ5_K: decode_q4_or_q5_k(block, true, out); break;
    case BlockType::kQ6_K: decode_q6_k(block, out); break;
    case BlockType::kNone: break;
    default: decode_parts(type, block, out); break;
  }
}

std::optional<WeightFormat> k_type_format(BlockType type) noexcept {
  switch (type) {
    case BlockType::kQ2_K: return WeightFormat{Encoding::kQ2K, DType::kBF16, 256};
    case BlockType::kQ3_K: return WeightFormat{Encoding::kQ3K, DType::kBF16, 256};
    case BlockType::kQ4_K: return WeightFormat{Encoding::kQ4K, DType::kBF16, 256};
    case BlockType::kQ5_K: return WeightFormat{Encoding::kQ5K, DType::kBF16, 256};
    case BlockType::kQ6_K: return WeightFormat{Encoding::kQ6K, DType::kBF16, 256};
    case BlockType::kQ4_1: return WeightFormat{Encoding::kQ4_1, DType::kBF16, 32};
    case BlockType::kQ5_1: return WeightFormat{Encoding::kQ5_1, DType::kBF16, 32};
    case BlockType::kIQ1_S:
    case BlockType::kIQ1_M: return WeightFormat{Encoding::kIq1, DType::kBF16, 256};
    case BlockType::kIQ2_XXS:
    case BlockType::kIQ2_XS:
    case BlockType::kIQ2_S: return WeightFormat{Encoding::kIq2, DType::kBF16, 256};
    default: return std::nullopt;
  }
}

std::optional<WeightFormat> format_of_blocks(BlockType type) noexcept {
  switch (type) {
    case BlockType::kQ4_0: return WeightFormat{Encoding::kQ4_0, DType::kBF16, 32};
    case BlockType::kQ4_1:
    case BlockType::kQ4_K: return WeightFormat{Encoding::kInt4, DType::kBF16, 32};
    case BlockType::kMXFP4: return WeightFormat{Encoding::kMxfp4, DType::kBF16, 32};
    case BlockType::kIQ4_NL:
    case BlockType::kIQ4_XS: return WeightFormat{Encoding::kIq4, DType::kBF16, 32};
    case BlockType::kQ5_0:
    case BlockType::kQ8_0: return WeightFormat{Encoding::kInt8, DType::kBF16, 32};
    default: break;
  }
  if (are_scales_of_32(type)) return WeightFormat{Encoding::kInt8, DType::kBF16, 32};
  return std::nullopt;
}

bool block_parts(BlockType type, const std::byte* data, uint8_t* codes, int8_t* scales,
                 float& d) noexcept {
  return grid_parts(type, bytes_of(data), codes, scales, d);
}

bool block_codes(BlockType type, const std::byte* data, int64_t part, uint8_t* codes, float& scale,
                 float& zero) noexcept {
  const uint8_t* block = bytes_of(data);
  float offset = 0;
  scale = half_at(block);
  zero = 128;
  switch (type) {
    case BlockType::kQ4_0:
      for (int i = 0; i < 32; ++i) codes[i] = nibble(block + 2, i);
      zero = 8;
      return true;
    case BlockType::kQ5_0:
      for (int i = 0; i < 32; ++i)
        codes[i] = static_cast<uint8_t>((nibble(block + 6, i) | fifth_bit(block + 2, i)) + 112);
      return true;
    case BlockType::kQ8_0:
      for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
      return true;
    case BlockType::kIQ4_NL:
    case BlockType::kIQ4_XS: {
      const uint8_t* nibbles = block + (type == BlockType::kIQ4_NL ? 2 : 8 + 16 * part);
      for (int i = 0; i < 32; ++i) codes[i] = nibble(nibbles, i);
      int8_t values[32];
      return part_codes(type, block, 2 * part, values, scale);
    }
    case BlockType::kMXFP4:  // whose code 8 is zero too, without a sign
      for (int i = 0; i < 32; ++i) codes[i] = nibble(block + 1, i) == 8 ? 0 : nibble(block + 1, i);
      scale = e8m0_value(block[0]);
      return block[0] != 255;
    case BlockType::kQ4_1:
      for (int i = 0; i < 32; ++i) codes[i] = nibble(block + 4, i);
      offset = -half_at(block + 2);
      break;
    case BlockType::kQ4_K: {
      for (int i = 0; i < 32; ++i) codes[i] = q4_k_code(block, part * 32 + i);
      const ScaleAndOffset found = six_bits(block, part);
      scale = found.scale;
      offset = found.offset;
      break;
    }
    default: return int8_codes(type, block, part, codes, scale);
  }
  if (scale == 0) {  // all elements are -offset
    for (int i = 0; i < 32; ++i) codes[i] = offset < 0 ? 1 : 0;
    scale = std::fabs(offset);
    zero = offset > 0 ? 1 : 0;
    return true;
  }
  zero = offset / scale;
  return true;
}

}  // namespace sluice
