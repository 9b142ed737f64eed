#include "src/model/foreign/ggml_grid_blocks.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "src/base/dtype.h"

namespace sluice {

namespace {

#include "src/model/foreign/ggml_grids.inc"

constexpr int8_t kIq2Values[] = {8, 25, 43, 0};
constexpr int8_t kIq3XxsValues[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIq3SValues[] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr int8_t kIq4Values[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of e2m1 (OCP Microscaling Formats 1.0, 5.3.3).
constexpr int8_t kMxfp4Values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr uint8_t kPowersOf3[] = {1, 3, 9, 27, 81};

uint16_t word16(const uint8_t* at) {
  uint16_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint32_t word32(const uint8_t* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

float f16_at(const uint8_t* at) { return f16_to_f32(word16(at)); }

// Seven signs, and an eighth that makes them even.
uint8_t eight_signs(uint32_t seven) {
  const uint32_t bits = seven & 127;
  return static_cast<uint8_t>(bits | (std::popcount(bits) % 2) << 7);
}

int8_t with_sign(int8_t value, uint8_t signs, int at) {
  return static_cast<int8_t>(signs >> at & 1 ? -value : value);
}

// Eight elements of an IQ2 entry.
void take_iq2(uint16_t entry, uint8_t signs, int8_t* codes) {
  for (int i = 0; i < 8; ++i) codes[i] = with_sign(kIq2Values[entry >> (2 * i) & 3], signs, i);
}

// Eight of two IQ3 entries.
void take_iq3(uint16_t first, uint16_t second, const int8_t* values, uint8_t signs, int8_t* codes) {
  for (int i = 0; i < 8; ++i) {
    const uint16_t entry = i < 4 ? first : second;
    codes[i] = with_sign(values[entry >> (3 * (i % 4)) & 7], signs, i);
  }
}

// Eight eighths of an IQ1 entry: -1, 0 or 1 and an eighth more or less.
void take_iq1(uint16_t entry, bool is_less, int8_t* codes) {
  for (int i = 0; i < 8; ++i)
    codes[i] = static_cast<int8_t>(8 * ((entry >> (2 * i) & 3) - 1) + (is_less ? -1 : 1));
}

// A nibble of packed scales, the low one first.
int nibble_at(const uint8_t* packed, int64_t at) { return packed[at / 2] >> (at % 2 * 4) & 15; }

// Eight neighbours of a block: an entry, and which are negative; of IQ1 all or none are an eighth
// less.
struct Eight {
  uint16_t entry;
  uint8_t signs;
};
// w = d scale times a whole number.
struct PartScale {
  float d;
  int scale;
};

Eight iq2_xxs(const uint8_t* block, int64_t at) {
  const uint8_t* group = block + 2 + at / 4 * 8;
  return {kIq2XxsGrid[group[at % 4]], eight_signs(word32(group + 4) >> (7 * (at % 4)))};
}

Eight iq2_xs(const uint8_t* block, int64_t at) {
  const uint16_t word = word16(block + 2 + 2 * at);
  return {kIq2XsGrid[word & 511], eight_signs(word >> 9)};
}

Eight iq2_s(const uint8_t* block, int64_t at) {
  const uint8_t *low = block + 2, *signs = block + 34, *high = block + 66;
  return {kIq2SGrid[low[at] | (high[at / 4] >> (at % 4 * 2) & 3) << 8], signs[at]};
}

Eight iq1_s(const uint8_t* block, int64_t at) {
  const uint16_t high = word16(block + 34 + at / 4 * 2);
  const bool is_less = (high & 0x8000) != 0;
  return {kIq1Grid[block[2 + at] | (high >> (at % 4 * 3) & 7) << 8],
          is_less ? uint8_t{255} : uint8_t{0}};
}

Eight iq1_m(const uint8_t* block, int64_t at) {
  const int nibble = nibble_at(block + 32, at);
  return {kIq1Grid[block[at] | (nibble & 7) << 8], (nibble & 8) != 0 ? uint8_t{255} : uint8_t{0}};
}

PartScale iq2_scale(const uint8_t* block, int nibble) {
  return {f16_at(block) * 0.125F, 2 * nibble + 1};
}

// Its f16 scale lies in the upper nibbles of four words of 3-bit ones.
PartScale iq1_m_scale(const uint8_t* block, int64_t part) {
  const uint8_t* scales = block + 48;
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i)
    bits |= static_cast<uint32_t>(word16(scales + 2 * i) >> 12) << (4 * i);
  const int scale = word16(scales + part / 4 * 2) >> (part % 4 * 3) & 7;
  return {f16_to_f32(static_cast<uint16_t>(bits)) * 0.125F, 2 * scale + 1};
}

// Of IQ1 and IQ2; nothing of others.
std::optional<PartScale> part_scale(BlockType type, const uint8_t* block, int64_t part) {
  switch (type) {
    case BlockType::kIQ1_S:
      return PartScale{f16_at(block) * 0.125F,
                       2 * (word16(block + 34 + part / 2 * 2) >> 12 & 7) + 1};
    case BlockType::kIQ1_M: return iq1_m_scale(block, part);
    case BlockType::kIQ2_XXS:
      return iq2_scale(block, static_cast<int>(word32(block + 6 + part / 2 * 8) >> 28));
    case BlockType::kIQ2_XS: return iq2_scale(block, nibble_at(block + 66, part));
    case BlockType::kIQ2_S: return iq2_scale(block, nibble_at(block + 74, part));
    default: return std::nullopt;
  }
}

Eight eight_of(BlockType type, const uint8_t* block, int64_t at) {
  switch (type) {
    case BlockType::kIQ1_S: return iq1_s(block, at);
    case BlockType::kIQ1_M: return iq1_m(block, at);
    case BlockType::kIQ2_XXS: return iq2_xxs(block, at);
    case BlockType::kIQ2_XS: return iq2_xs(block, at);
    default: return iq2_s(block, at);
  }
}

bool is_iq1(BlockType type) { return type == BlockType::kIQ1_S || type == BlockType::kIQ1_M; }

// Codes of kIq1 and kIq2, eight bytes: bits 0 and 1 say how many steps of a magnitude are taken,
// bit 2 the sign; those of a number and of its opposite are each other's complement. Of IQ1 bits 0
// and 1 count steps from -1 on, bit 2 is an eighth more.
uint64_t code_bytes(const Eight& eight, bool is_one) {
  constexpr uint64_t kOnes = 0x0101010101010101U;
  uint64_t v = eight.entry;
  v = (v | v << 24) & 0x000000ff000000ffU;
  v = (v | v << 12) & 0x000f000f000f000fU;
  v = (v | v << 6) & 0x0303030303030303U;  // an element a byte
  const uint64_t steps = ((v | v >> 1) & kOnes) | (v & (kOnes << 1));
  const uint64_t bits = eight.signs * kOnes & 0x8040201008040201U;  // byte i has bit i alone
  const uint64_t signs = (bits + 0x7f * kOnes) >> 7 & kOnes;
  return is_one ? steps | (signs ^ kOnes) << 2 : (steps | kOnes << 2) ^ signs * 7;
}

float iq3_xxs(const uint8_t* block, int64_t part, int8_t* codes) {
  const int64_t group = part / 2;
  const uint32_t word = word32(block + 66 + 4 * group);
  for (int i = 0; i < 2; ++i) {
    const int64_t at = part % 2 * 2 + i;
    const uint8_t* entries = block + 2 + 8 * group + 2 * at;
    take_iq3(kIq3XxsGrid[entries[0]], kIq3XxsGrid[entries[1]], kIq3XxsValues,
             eight_signs(word >> (7 * at)), codes + 8 * i);
  }
  return f16_at(block) * (0.5F + static_cast<float>(word >> 28)) * 0.5F;
}

float iq3_s(const uint8_t* block, int64_t part, int8_t* codes) {
  const uint8_t *low = block + 2, *high = block + 66, *signs = block + 74;
  const auto entry = [&](int64_t at) {
    return kIq3SGrid[low[at] | (high[at / 8] >> (at % 8) & 1) << 8];
  };
  for (int i = 0; i < 2; ++i) {
    const int64_t at = 2 * part + i;
    take_iq3(entry(2 * at), entry(2 * at + 1), kIq3SValues, signs[at], codes + 8 * i);
  }
  return f16_at(block) * static_cast<float>(1 + 2 * nibble_at(block + 106, part / 2));
}

// Elements of 32: low nibbles of sixteen bytes, then the high ones.
void take_nibbles(const uint8_t* bytes, int64_t part, const int8_t* values, int8_t* codes) {
  for (int i = 0; i < 16; ++i) codes[i] = values[bytes[i] >> (part % 2 * 4) & 15];
}

float iq4_xs(const uint8_t* block, int64_t part, int8_t* codes) {
  const int64_t group = part / 2;
  take_nibbles(block + 8 + 16 * group, part, kIq4Values, codes);
  const int scale =
      (nibble_at(block + 4, group) | (word16(block + 2) >> (2 * group) & 3) << 4) - 32;
  return f16_at(block) * static_cast<float>(scale);
}

// 2^(e - 128): half of what the format says, for values that are twice its own.
float half_of_power(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000U << e : static_cast<uint32_t>(e - 1) << 23);
}

// Five digits to base 3 in a byte, as a fraction of 256: the topmost of `byte` times a power of 3.
int8_t ternary(uint8_t byte, int64_t digit) {
  const auto shifted = static_cast<uint8_t>(byte * kPowersOf3[digit]);
  return static_cast<int8_t>((shifted * 3 >> 8) - 1);
}

float tq1_0(const uint8_t* block, int64_t part, int8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    const int64_t at = 16 * part + i;
    if (at < 160)
      codes[i] = ternary(block[at % 32], at / 32);
    else if (at < 240)
      codes[i] = ternary(block[32 + (at - 160) % 16], (at - 160) / 16);
    else
      codes[i] = ternary(block[48 + (at - 240) % 4], (at - 240) / 4);
  }
  return f16_at(block + 52);
}

float tq2_0(const uint8_t* block, int64_t part, int8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    const int64_t at = 16 * part + i;
    codes[i] = static_cast<int8_t>((block[at / 128 * 32 + at % 32] >> (at % 128 / 32 * 2) & 3) - 1);
  }
  return f16_at(block + 64);
}

// Half of what an e4m3 without sign says (OCP 8-bit floating point), for values that are twice
// their own; what is no number is 0, as the readers of the format have it.
float half_of_e4m3(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  if (byte == 0 || byte == 0x7f) return 0;
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), -10);
  return std::ldexp(static_cast<float>(8 + mantissa), exponent - 11);
}

float q2_0(const uint8_t* block, int64_t part, int8_t* codes) {
  for (int i = 0; i < 16; ++i)
    codes[i] = static_cast<int8_t>((block[2 + 4 * part + i / 4] >> (i % 4 * 2) & 3) - 1);
  return f16_at(block);
}

float q1_0(const uint8_t* block, int64_t part, int8_t* codes) {
  const uint32_t bits = word16(block + 2 + 2 * part);
  for (int i = 0; i < 16; ++i) codes[i] = bits >> i & 1 ? 1 : -1;
  return f16_at(block);
}
}  // namespace

bool part_codes(BlockType type, const uint8_t* block, int64_t part, int8_t* codes,
                float& scale) noexcept {
  if (const auto found = part_scale(type, block, part)) {
    for (int64_t at = 2 * part; at < 2 * part + 2; ++at, codes += 8) {
      const Eight eight = eight_of(type, block, at);
      if (is_iq1(type))
        take_iq1(eight.entry, eight.signs != 0, codes);
      else
        take_iq2(eight.entry, eight.signs, codes);
    }
    scale = found->d * static_cast<float>(found->scale);  // exact
    return true;
  }
  switch (type) {
    case BlockType::kIQ3_XXS: scale = iq3_xxs(block, part, codes); return true;
    case BlockType::kIQ3_S: scale = iq3_s(block, part, codes); return true;
    case BlockType::kIQ4_XS: scale = iq4_xs(block, part, codes); return true;
    case BlockType::kTQ1_0: scale = tq1_0(block, part, codes); return true;
    case BlockType::kTQ2_0: scale = tq2_0(block, part, codes); return true;
    case BlockType::kIQ4_NL:
      take_nibbles(block + 2, part, kIq4Values, codes);
      scale = f16_at(block);
      return true;
    case BlockType::kMXFP4:
      take_nibbles(block + 1, part, kMxfp4Values, codes);
      scale = half_of_power(block[0]);
      return true;
    case BlockType::kNVFP4:
      for (int i = 0; i < 16; ++i) {
        const uint8_t byte = block[4 + 8 * part + i % 8];
        codes[i] = kMxfp4Values[i < 8 ? byte & 15 : byte >> 4];
      }
      scale = half_of_e4m3(block[part]);
      return true;
    case BlockType::kQ1_0: scale = q1_0(block, part, codes); return true;
    case BlockType::kQ2_0: scale = q2_0(block, part, codes); return true;
    default: return false;
  }
}

bool grid_parts(BlockType type, const uint8_t* block, uint8_t* codes, int8_t* scales,
                float& d) noexcept {
  for (int64_t part = 0; part < 16; ++part) {
    const auto found = part_scale(type, block, part);
    if (!found) return false;
    d = found->d;
    scales[part] = static_cast<int8_t>(found->scale);
  }
  for (int64_t at = 0; at < 32; ++at) {
    const uint64_t bytes = code_bytes(eight_of(type, block, at), is_iq1(type));
    std::memcpy(codes + 8 * at, &bytes, sizeof bytes);
  }
  return std::isfinite(d);
}

bool are_scales_of_32(BlockType type) noexcept {
  switch (type) {
    case BlockType::kIQ1_S:
    case BlockType::kIQ2_XXS:
    case BlockType::kIQ3_XXS:
    case BlockType::kIQ3_S:
    case BlockType::kIQ4_NL:
    case BlockType::kIQ4_XS:
    case BlockType::kMXFP4:
    case BlockType::kTQ1_0:
    case BlockType::kTQ2_0:
    case BlockType::kQ1_0:
    case BlockType::kQ2_0: return true;
    default: return false;
  }
}

}  // namespace sluice
