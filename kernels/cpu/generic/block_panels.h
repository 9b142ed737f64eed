#pragma once
// Blocks of GGUF's types to panels: lanes are rows, so that a word of a block, of all rows, is a
// vector, and codes move by shifts alone. A type says where its words lie (kWords of them from byte
// kFirst of a block of kBytes, and two bytes at kApart), and how they become the codes of a group
// of 32 columns, four bytes a lane at a time.
#include "kernels/cpu/generic/k_units.h"
#include "kernels/cpu/generic/quantise.h"
#include "src/base/block_type.h"

namespace sluice::kernels {
namespace {

constexpr int kGroup = 32;
constexpr int kMostWords = 52;

// The words of a block of each row, turned.
struct TurnedBlock {
  alignas(64) uint32_t words[kMostWords][kPanelRows];
  alignas(64) uint32_t apart[kPanelRows];
};

// The same of kLanes rows.
struct BlockLanes {
  const TurnedBlock& block;
  int first_row;

  VecU word(int i) const { return *(const VecU*)(block.words[i] + first_row); }
  VecU byte(int first_word, int i) const { return word(first_word + i / 4) >> (i % 4 * 8) & 255u; }
  VecU apart() const { return *(const VecU*)(block.apart + first_row); }
};

inline VecF f16_of(VecU bits) {
  const VecH half = narrow_halves(bits & 0xffffu);
  return load_f16(&half);
}
inline VecF whole_number(VecU v) { return __builtin_convertvector((VecI)v, VecF); }
inline VecU four_nibbles(VecU word, int shift) { return word >> shift & 0x0f0f0f0fu; }
inline VecU splat_bits(uint32_t v) { return VecU{} + v; }

// w = scale (code - zero), or scale code - offset.
struct ScaleAndOffset {
  VecF scale, offset;
};

// What becomes of a type's codes.
enum class Kept {
  kQ4_0,            // codes below 16, whose zero is 8
  kInt4WithOffset,  // codes below 16, scale and offset
  kMxfp4,           // e2m1, and powers of two as e8m0
  kIq4,             // codes of 16 values, and a scale in f32
  kInt8,            // codes + 128, and a scale
  kValues           // (code - zero) times a scale of each half, less an offset: quantised
};

// q4_0, q4_1, q5_0, q5_1: 32 codes, low nibbles first.
struct NibbleBlock {
  static constexpr int kColumns = 32;
  static VecU nibbles_at(const BlockLanes& b, int first_word, int j) {
    return four_nibbles(b.word(first_word + j % 4), j < 4 ? 0 : 4);
  }
  // Fifth bits of columns 4 j to 4 j + 3, where a byte's code has them.
  static VecU fifth_bits(VecU bits, int j) {
    const VecU four = bits >> (4 * j);
    return (four & 1u) << 4 | (four & 2u) << 11 | (four & 4u) << 18 | (four & 8u) << 25;
  }
};

struct Q4_0 : NibbleBlock {
  static constexpr int kBytes = 18, kFirst = 2, kWords = 4, kApart = 0;
  static constexpr Kept kKept = Kept::kQ4_0;
  static VecU codes(const BlockLanes& b, int, int j) { return nibbles_at(b, 0, j); }
  static ScaleAndOffset scale(const BlockLanes& b, int, int) { return {f16_of(b.apart()), VecF{}}; }
};

struct Q4_1 : NibbleBlock {
  static constexpr int kBytes = 20, kFirst = 0, kWords = 5, kApart = 0;
  static constexpr Kept kKept = Kept::kInt4WithOffset;
  static VecU codes(const BlockLanes& b, int, int j) { return nibbles_at(b, 1, j); }
  static ScaleAndOffset scale(const BlockLanes& b, int, int) {
    return {f16_of(b.word(0)), -f16_of(b.word(0) >> 16)};
  }
};

struct Q5_0 : NibbleBlock {
  static constexpr int kBytes = 22, kFirst = 2, kWords = 5, kApart = 0;
  static constexpr Kept kKept = Kept::kInt8;
  static VecU codes(const BlockLanes& b, int, int j) {  // minus 16, plus 128
    return (nibbles_at(b, 1, j) | fifth_bits(b.word(0), j)) + 0x70707070u;
  }
  static ScaleAndOffset scale(const BlockLanes& b, int, int) { return {f16_of(b.apart()), VecF{}}; }
};

struct Q5_1 : NibbleBlock {
  static constexpr int kBytes = 24, kFirst = 0, kWords = 6, kApart = 0;
  static constexpr Kept kKept = Kept::kValues;
  static constexpr int kZero = 0;
  static VecU codes(const BlockLanes& b, int, int j) {
    return nibbles_at(b, 2, j) | fifth_bits(b.word(1), j);
  }
  static ScaleAndOffset scale(const BlockLanes& b, int, int) {
    return {f16_of(b.word(0)), -f16_of(b.word(0) >> 16)};
  }
};

struct Q8_0 {
  static constexpr int kColumns = 32, kBytes = 34, kFirst = 2, kWords = 8, kApart = 0;
  static constexpr Kept kKept = Kept::kInt8;
  static VecU codes(const BlockLanes& b, int, int j) { return b.word(j) ^ 0x80808080u; }
  static ScaleAndOffset scale(const BlockLanes& b, int, int) { return {f16_of(b.apart()), VecF{}}; }
};

// q4_k and q5_k: 6-bit scales and offsets of eight groups in 12 bytes.
struct SixBitBlock {
  static constexpr int kColumns = 256;
  static ScaleAndOffset scale(const BlockLanes& b, int group, int) {
    const int shift = group % 4 * 8;
    VecU scale, offset;
    if (group < 4) {
      scale = b.word(1) >> shift & 63u;
      offset = b.word(2) >> shift & 63u;
    } else {
      const VecU low = b.word(3) >> shift;
      scale = (low & 15u) | (b.word(1) >> (shift + 6) & 3u) << 4;
      offset = (low >> 4 & 15u) | (b.word(2) >> (shift + 6) & 3u) << 4;
    }
    return {f16_of(b.word(0)) * whole_number(scale),
            f16_of(b.word(0) >> 16) * whole_number(offset)};
  }
  static VecU nibbles_at(const BlockLanes& b, int first_word, int group, int j) {
    return four_nibbles(b.word(first_word + group / 2 * 8 + j), group % 2 * 4);
  }
};

struct Q4K : SixBitBlock {
  static constexpr int kBytes = 144, kFirst = 0, kWords = 36, kApart = 0;
  static constexpr Kept kKept = Kept::kInt4WithOffset;
  static VecU codes(const BlockLanes& b, int group, int j) { return nibbles_at(b, 4, group, j); }
};

struct Q5K : SixBitBlock {
  static constexpr int kBytes = 176, kFirst = 0, kWords = 44, kApart = 0;
  static constexpr Kept kKept = Kept::kValues;
  static constexpr int kZero = 0;
  static VecU codes(const BlockLanes& b, int group, int j) {
    return nibbles_at(b, 12, group, j) | (b.word(4 + j) >> group & 0x01010101u) << 4;
  }
};

struct Q6K {
  static constexpr int kColumns = 256, kBytes = 210, kFirst = 0, kWords = 52, kApart = 208;
  static constexpr Kept kKept = Kept::kValues;
  static constexpr int kZero = 32;
  static VecU codes(const BlockLanes& b, int group, int j) {
    const int half = group / 4, quarter = group % 4;
    const VecU low = b.word(half * 16 + quarter % 2 * 8 + j);
    const VecU high = b.word(32 + half * 8 + j) >> (2 * quarter) & 0x03030303u;
    return four_nibbles(low, quarter / 2 * 4) | high << 4;
  }
  static ScaleAndOffset scale(const BlockLanes& b, int group, int half) {
    const int i = 2 * group + half;
    const VecI scale = (VecI)(b.word(48 + i / 4) << (24 - i % 4 * 8)) >> 24;
    return {f16_of(b.apart()) * __builtin_convertvector(scale, VecF), VecF{}};
  }
};

struct Q2K {
  static constexpr int kColumns = 256, kBytes = 84, kFirst = 0, kWords = 21, kApart = 0;
  static constexpr Kept kKept = Kept::kValues;
  static constexpr int kZero = 0;
  static VecU codes(const BlockLanes& b, int group, int j) {
    return b.word(4 + group / 4 * 8 + j) >> (group % 4 * 2) & 0x03030303u;
  }
  static ScaleAndOffset scale(const BlockLanes& b, int group, int half) {
    const VecU both = b.byte(0, 2 * group + half);
    return {f16_of(b.word(20)) * whole_number(both & 15u),
            f16_of(b.word(20) >> 16) * whole_number(both >> 4)};
  }
};

struct Q3K {
  static constexpr int kColumns = 256, kBytes = 110, kFirst = 0, kWords = 27, kApart = 108;
  static constexpr Kept kKept = Kept::kValues;
  static constexpr int kZero = 4;
  static VecU codes(const BlockLanes& b, int group, int j) {
    const VecU low = b.word(8 + group / 4 * 8 + j) >> (group % 4 * 2) & 0x03030303u;
    return low | (b.word(j) >> group & 0x01010101u) << 2;
  }
  static ScaleAndOffset scale(const BlockLanes& b, int group, int half) {
    const int i = 2 * group + half;
    const VecU low = b.byte(24, i % 8) >> (i / 8 * 4) & 15u;
    const VecU high = b.byte(24, 8 + i % 4) >> (i / 4 * 2) & 3u;
    return {f16_of(b.apart()) * (whole_number(low | high << 4) - 32.0f), VecF{}};
  }
};

// iq4_nl and iq4_xs: codes of 16 values.
struct Iq4Nl : NibbleBlock {
  static constexpr int kBytes = 18, kFirst = 2, kWords = 4, kApart = 0;
  static constexpr Kept kKept = Kept::kIq4;
  static VecU codes(const BlockLanes& b, int, int j) { return nibbles_at(b, 0, j); }
  static ScaleAndOffset scale(const BlockLanes& b, int, int) { return {f16_of(b.apart()), VecF{}}; }
};

struct Iq4Xs {
  static constexpr int kColumns = 256, kBytes = 136, kFirst = 0, kWords = 34, kApart = 0;
  static constexpr Kept kKept = Kept::kIq4;
  static VecU codes(const BlockLanes& b, int group, int j) {
    return four_nibbles(b.word(2 + group * 4 + j % 4), j < 4 ? 0 : 4);
  }
  static ScaleAndOffset scale(const BlockLanes& b, int group, int) {
    const VecU low = b.word(1) >> (4 * group) & 15u, high = b.word(0) >> (16 + 2 * group) & 3u;
    return {f16_of(b.word(0)) * (whole_number(low | high << 4) - 32.0f), VecF{}};
  }
};

struct Mxfp4 : NibbleBlock {
  static constexpr int kBytes = 17, kFirst = 1, kWords = 4, kApart = 0;
  static constexpr Kept kKept = Kept::kMxfp4;
  static VecU codes(const BlockLanes& b, int, int j) {  // 8 is zero too, without a sign
    const VecU four = nibbles_at(b, 0, j);
    const VecU is_some = (four | four >> 1 | four >> 2) & 0x01010101u;
    return (four & 0x07070707u) | (four & is_some << 3);
  }
  static VecU exponent(const BlockLanes& b) { return b.apart() & 255u; }
};

// Eight codes below 16, four columns in each, as a line's word has them.
inline VecU int4_word(VecU first, VecU second) {
  first |= first >> 12;
  second |= second >> 12;
  return (first & 0xffu) | (first & 0xff00u) << 8 | (second & 0xffu) << 8 |
         (second & 0xff00u) << 16;
}

// Lanes that are not finite, as something that stays other than 0.
inline VecU not_finite(VecF v) {
  return (VecU)(((VecU)v & 0x7f800000u) == splat_bits(0x7f800000u));
}

template <typename Type>
inline VecU put_int4(const BlockLanes& b, int group, std::byte* lines, std::byte* meta) {
  auto [scale, offset] = Type::scale(b, group, 0);
  const VecI is_flat = scale == VecF{};  // all elements are -offset
  const VecF zero = is_flat ? (offset > VecF{} ? splat(1.0f) : VecF{}) : offset / scale;
  scale = is_flat ? (VecF)((VecU)offset & 0x7fffffffu) : scale;
  const VecU flat_word = offset < VecF{} ? splat_bits(0x11111111u) : VecU{};
  for (int line = 0; line < kGroup / 8; ++line) {
    VecU word = int4_word(Type::codes(b, group, 2 * line), Type::codes(b, group, 2 * line + 1));
    word = is_flat ? flat_word : word;
    __builtin_memcpy(lines + line * kQuantLine, &word, sizeof word);
  }
  store_f16(meta, scale);
  store_f16(meta + 32, zero);
  const VecF size = (VecF)((VecU)zero & 0x7fffffffu);
  return not_finite(load_f16(meta)) | (VecU) ~(size < splat(65504.0f));
}

// Codes and scales as the file has them.
template <typename Type>
inline VecU put_as_it_is(const BlockLanes& b, int group, std::byte* lines, std::byte* meta) {
  for (int line = 0; line < kGroup / 8; ++line) {
    const VecU word =
        int4_word(Type::codes(b, group, 2 * line), Type::codes(b, group, 2 * line + 1));
    __builtin_memcpy(lines + line * kQuantLine, &word, sizeof word);
  }
  if constexpr (Type::kKept == Kept::kMxfp4) {
    const VecU exponent = Type::exponent(b);
    for (int lane = 0; lane < kLanes; ++lane) meta[lane] = static_cast<std::byte>(exponent[lane]);
    return (VecU)(exponent == splat_bits(255));
  } else {
    const VecF scale = Type::scale(b, group, 0).scale;
    if constexpr (Type::kKept == Kept::kIq4)
      __builtin_memcpy(meta, &scale, sizeof scale);
    else
      store_f16(meta, scale);
    return not_finite(scale);
  }
}

template <typename Type>
inline void put_int8(const BlockLanes& b, int group, std::byte* lines, std::byte* meta) {
  for (int line = 0; line < kGroup / 4; ++line) {
    const VecU four = Type::codes(b, group, line);
    const VecU word = (four & 0xff0000ffu) | (four & 0xff00u) << 8 | (four >> 8 & 0xff00u);
    __builtin_memcpy(lines + line * kQuantLine, &word, sizeof word);
  }
  const VecF scale = Type::scale(b, group, 0).scale;
  __builtin_memcpy(meta, &scale, sizeof scale);
}

template <typename Type>
inline VecU put_values(const BlockLanes& b, int group, std::byte* lines, std::byte* meta) {
  alignas(64) float values[kGroup * kPanelRows];
  VecF check = {};
  for (int half = 0; half < 2; ++half) {
    const auto [scale, offset] = Type::scale(b, group, half);
    for (int j = 4 * half; j < 4 * half + 4; ++j) {
      const VecU four = Type::codes(b, group, j);
      for (int byte = 0; byte < 4; ++byte) {
        const VecI code = (VecI)(four >> (8 * byte) & 255u) - Type::kZero;
        // The product is exact: of 24 bits at most.
        const VecF value = scale * __builtin_convertvector(code, VecF) - offset;
        store(values + (4 * j + byte) * kPanelRows, value);
        check += value * 0.0f;  // infinity and NaN times 0 are NaN
      }
    }
  }
  quantise_block(Encoding::kInt8, values, kGroup, kGroup, nullptr, 1, VecF{}, false, lines, meta);
  return (VecU)(check != VecF{});
}

// Where a type has the words of its small scales, as one of ours, and its scales' f16 bits.
template <typename Type>
struct KSource {
  static constexpr Encoding kEncoding = Encoding::kPlain;
};
template <Encoding kOf, int kScales>
struct KSourceOf {
  static constexpr Encoding kEncoding = kOf;
  static constexpr int kFirstScale = kScales;
};
template <>
struct KSource<Q2K> : KSourceOf<Encoding::kQ2K, 0> {
  static VecU d(const BlockLanes& b) { return b.word(20); }
};
template <>
struct KSource<Q3K> : KSourceOf<Encoding::kQ3K, 24> {
  static VecU d(const BlockLanes& b) { return b.apart(); }
};
template <>
struct KSource<Q4K> : KSourceOf<Encoding::kQ4K, 1> {
  static VecU d(const BlockLanes& b) { return b.word(0); }
};
template <>
struct KSource<Q4_1> : KSourceOf<Encoding::kQ4_1, 0> {
  static VecU d(const BlockLanes& b) { return b.word(0); }
};
template <>
struct KSource<Q5_1> : KSourceOf<Encoding::kQ5_1, 0> {
  static VecU d(const BlockLanes& b) { return b.word(0); }
};
template <>
struct KSource<Q5K> : KSourceOf<Encoding::kQ5K, 1> {
  static VecU d(const BlockLanes& b) { return b.word(0); }
};
template <>
struct KSource<Q6K> : KSourceOf<Encoding::kQ6K, 48> {
  static VecU d(const BlockLanes& b) { return b.apart(); }
};

inline void put_word(std::byte* to, VecU word) { __builtin_memcpy(to, &word, sizeof word); }

// Lanes whose f16 is infinite or no number.
inline VecU not_finite_half(VecU bits) { return (VecU)((bits & 0x7c00u) == splat_bits(0x7c00u)); }

// A whole block of a K type; to: the lines of its group, of the part's first row.
template <typename Type>
inline VecU put_k(const BlockLanes& b, std::byte* group, int part) {
  using Source = KSource<Type>;
  constexpr KLayout kLayout = kKLayout<Source::kEncoding>;
  constexpr int kUpper = kLayout.has_nibbles ? 4 : 2;  // bits of the first plane
  std::byte* const to = group + part * kLanes * 4;
  for (int i = 0; i < kLayout.scale_words; ++i)
    put_word(to + i * kQuantLine, b.word(Source::kFirstScale + i));
  const VecU d = Source::d(b);
  VecU bad = not_finite_half(d);
  std::byte* const meta = group + kLayout.scale_words * kQuantLine;
  if constexpr (kLayout.has_minima) {
    bad |= not_finite_half(d >> 16);
    const VecH scale = narrow_halves(d & 0xffffu), minimum = narrow_halves(d >> 16);
    __builtin_memcpy(meta + part * kLanes * 2, &scale, sizeof scale);
    __builtin_memcpy(meta + 32 + part * kLanes * 2, &minimum, sizeof minimum);
  } else {
    const VecF scale = f16_of(d);
    __builtin_memcpy(meta + part * kLanes * 4, &scale, sizeof scale);
  }
  for (int block = 0; block < kLayout.blocks(); ++block) {
    VecU planes[kLayout.block_lines()] = {};
    for (int v = 0; v < 8; ++v) {
      const VecU four = Type::codes(b, block, v);
      const VecU quad = (four & 0xff0000ffu) | (four & 0xff00u) << 8 | (four >> 8 & 0xff00u);
      if constexpr (kLayout.has_nibbles) planes[v / 2] |= (quad & 0x0f0f0f0fu) << (4 * (v % 2));
      if constexpr (kLayout.has_pairs)
        planes[(kLayout.has_nibbles ? 4 : 0) + v / 4] |=
            (quad >> (kLayout.has_nibbles ? 4 : 0) & 0x03030303u) << (2 * (v % 4));
      if constexpr (kLayout.has_bits)
        planes[kLayout.block_lines() - 1] |= (quad >> kUpper & 0x01010101u) << v;
    }
    std::byte* const lines = group + kLayout.scale_bytes() +
                             block * kLayout.block_lines() * kQuantLine + part * kLanes * 4;
    for (int i = 0; i < kLayout.block_lines(); ++i) put_word(lines + i * kQuantLine, planes[i]);
  }
  return bad;
}

inline bool is_any(VecU lanes) {
  uint32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= lanes[lane];
  return any != 0;
}

// Block `index` of each row.
template <typename Type>
inline void turn_block(const std::byte* const* rows, int64_t index, TurnedBlock& block) {
  for (int row = 0; row < kPanelRows; ++row) {
    const std::byte* from = rows[row] + index * Type::kBytes;
    for (int i = 0; i < Type::kWords; ++i)
      block.words[i][row] = (uint32_t)load_word(from + Type::kFirst + 4 * i);
    uint16_t half;
    __builtin_memcpy(&half, from + Type::kApart, 2);
    block.apart[row] = half;
  }
}

template <typename Type>
bool keep_k_rows(const std::byte* const* rows, int64_t cols, std::byte* panel) {
  TurnedBlock block;
  VecU bad = {};
  for (int64_t at = 0; at < cols / Type::kColumns; ++at) {
    turn_block<Type>(rows, at, block);
    for (int part = 0; part < kPanelParts; ++part)
      bad |= put_k<Type>({block, part * kLanes}, panel, part);
    panel += kKLayout<KSource<Type>::kEncoding>.bytes();
  }
  return !is_any(bad);
}

template <typename Type>
bool repack_rows(Encoding encoding, const std::byte* const* rows, int64_t cols, std::byte* panel) {
  if constexpr (KSource<Type>::kEncoding != Encoding::kPlain)
    if (encoding == KSource<Type>::kEncoding) return keep_k_rows<Type>(rows, cols, panel);
  constexpr Encoding kTo = Type::kKept == Kept::kQ4_0             ? Encoding::kQ4_0
                           : Type::kKept == Kept::kMxfp4          ? Encoding::kMxfp4
                           : Type::kKept == Kept::kIq4            ? Encoding::kIq4
                           : Type::kKept == Kept::kInt4WithOffset ? Encoding::kInt4
                                                                  : Encoding::kInt8;
  constexpr int64_t kLines = kGroup / line_columns(kTo);
  constexpr int64_t kGroupBytes = kLines * kQuantLine + WeightFormat{kTo}.scale_bytes();
  if (encoding != kTo) return false;
  static_assert(Type::kWords <= kMostWords && Type::kFirst + 4 * Type::kWords <= Type::kBytes);
  TurnedBlock block;
  VecU bad = {};
  for (int64_t at = 0; at < cols / Type::kColumns; ++at) {
    turn_block<Type>(rows, at, block);
    for (int group = 0; group < Type::kColumns / kGroup; ++group, panel += kGroupBytes)
      for (int part = 0; part < kPanelParts; ++part) {
        const BlockLanes lanes{block, part * kLanes};
        std::byte* const lines = panel + part * kLanes * 4;
        std::byte* const meta = panel + kLines * kQuantLine + part * kLanes * lane_scale_bytes(kTo);
        if constexpr (kTo != Encoding::kInt4 && is_four_bit(kTo))
          bad |= put_as_it_is<Type>(lanes, group, lines, meta);
        else if constexpr (kTo == Encoding::kInt4)
          bad |= put_int4<Type>(lanes, group, lines, meta);
        else if constexpr (Type::kKept == Kept::kInt8)
          put_int8<Type>(lanes, group, lines, meta);
        else
          bad |= put_values<Type>(lanes, group, lines, meta);
      }
  }
  return !is_any(bad);
}

bool repack_blocks(BlockType type, Encoding encoding, const std::byte* const* rows, int64_t cols,
                   std::byte* panel) {
  switch (type) {
    case BlockType::kQ4_0: return repack_rows<Q4_0>(encoding, rows, cols, panel);
    case BlockType::kQ4_1: return repack_rows<Q4_1>(encoding, rows, cols, panel);
    case BlockType::kQ5_0: return repack_rows<Q5_0>(encoding, rows, cols, panel);
    case BlockType::kQ5_1: return repack_rows<Q5_1>(encoding, rows, cols, panel);
    case BlockType::kQ8_0: return repack_rows<Q8_0>(encoding, rows, cols, panel);
    case BlockType::kQ2_K: return repack_rows<Q2K>(encoding, rows, cols, panel);
    case BlockType::kQ3_K: return repack_rows<Q3K>(encoding, rows, cols, panel);
    case BlockType::kQ4_K: return repack_rows<Q4K>(encoding, rows, cols, panel);
    case BlockType::kQ5_K: return repack_rows<Q5K>(encoding, rows, cols, panel);
    case BlockType::kQ6_K: return repack_rows<Q6K>(encoding, rows, cols, panel);
    case BlockType::kIQ4_NL: return repack_rows<Iq4Nl>(encoding, rows, cols, panel);
    case BlockType::kIQ4_XS: return repack_rows<Iq4Xs>(encoding, rows, cols, panel);
    case BlockType::kMXFP4: return repack_rows<Mxfp4>(encoding, rows, cols, panel);
    default: return false;
  }
}

}  // namespace
}  // namespace sluice::kernels
