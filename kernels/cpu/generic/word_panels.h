#pragma once
// Words of codes to lines of panels: lanes are rows, and a word of 16 rows is a line whose codes
// are in another order.
#include "kernels/cpu/generic/block_panels.h"
#include "kernels/cpu/variant.h"

namespace sluice::kernels {
namespace {

// Codes of a word, column 0 lowest, as a line's word has them.
inline VecU line_of_nibbles(VecU even, VecU odd) {
  even = (even | even >> 4) & 0x00ff00ffu;
  odd = (odd | odd >> 4) & 0x00ff00ffu;
  even = (even | even >> 8) & 0xffffu;
  odd = odd | odd >> 8;
  return even | odd << 16;
}

template <WordOrder kOrder>
inline VecU line_of(VecU word) {
  const VecU low = word & 0x0f0f0f0fu, high = word >> 4 & 0x0f0f0f0fu;
  if constexpr (kOrder == WordOrder::kNibbles) return line_of_nibbles(low, high);
  if constexpr (kOrder == WordOrder::kHighNibblesFirst) return line_of_nibbles(high, low);
  if constexpr (kOrder == WordOrder::kSignedBytes) word ^= 0x80808080u;
  return (word & 0xff0000ffu) | (word & 0xff00u) << 8 | (word >> 8 & 0xff00u);
}

// Bits other than 0 of lanes that hold an e4m3 code that is no number.
inline VecU not_e4m3(VecU word) { return ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }

// Lines of words that are of one row each.
template <WordOrder kOrder>
inline VecU put_row_words(const WordPanelCall& call, std::byte* lines) {
  VecU bad = {};
  const CodeWords& words = call.words;
  for (int64_t line = 0; line < call.lines; ++line) {
    alignas(64) uint32_t turned[kPanelRows];
    const std::byte* from = words.first + line * words.word_bytes;
    if (words.row_bytes == 4)
      __builtin_memcpy(turned, from, sizeof turned);
    else
      for (int row = 0; row < kPanelRows; ++row)
        turned[row] = (uint32_t)load_word(from + row * words.row_bytes);
    for (int part = 0; part < kPanelParts; ++part) {
      const VecU word = *(const VecU*)(turned + part * kLanes);
      if constexpr (kOrder == WordOrder::kBytes)
        if (call.encoding == Encoding::kFp8) bad |= not_e4m3(word);
      put_word(lines + line * kQuantLine + part * kLanes * 4, line_of<kOrder>(word));
    }
  }
  return bad;
}

// Of words that hold 8 rows of a column: each lane takes its row's nibble of 8 of them.
inline void put_column_words(const WordPanelCall& call, std::byte* lines) {
  alignas(64) static constexpr uint32_t kShift[kPanelRows] = {0, 16, 4, 20, 8, 24, 12, 28,
                                                              0, 16, 4, 20, 8, 24, 12, 28};
  alignas(64) static constexpr uint32_t kFirst[kPanelRows] = {~0u, ~0u, ~0u, ~0u,
                                                              ~0u, ~0u, ~0u, ~0u};
  const CodeWords& words = call.words;
  for (int64_t line = 0; line < call.lines; ++line) {
    const std::byte* const from = words.first + 8 * line * words.word_bytes;
    for (int part = 0; part < kPanelParts; ++part) {
      const VecU shift = *(const VecU*)(kShift + part * kLanes);
      const VecU first = *(const VecU*)(kFirst + part * kLanes);
      VecU out = {};
      for (int position = 0; position < 8; ++position) {
        const std::byte* const column = from + nibble_column(position) * words.word_bytes;
        VecU word = splat_bits((uint32_t)load_word(column + part * kLanes / 8 * words.row_bytes));
        if constexpr (kLanes == kPanelRows)
          word =
              (word & first) | (splat_bits((uint32_t)load_word(column + words.row_bytes)) & ~first);
        out |= (word >> shift & 15u) << (4 * position);
      }
      put_word(lines + line * kQuantLine + part * kLanes * 4, out);
    }
  }
}

// Scales and zeros as the encoding has them; lanes of int4 that are past f16.
inline VecU put_scales(const WordPanelCall& call, std::byte* meta) {
  VecU bad = {};
  if (call.encoding == Encoding::kMxfp4) {
    for (int row = 0; row < kPanelRows; ++row)
      meta[row] = static_cast<std::byte>(e8m0_of(call.scales[row]));
    return bad;
  }
  if (!has_int4_codes(call.encoding)) {
    __builtin_memcpy(meta, call.scales, kPanelRows * sizeof(float));
    return bad;
  }
  for (int part = 0; part < kPanelParts; ++part) {
    std::byte* const to = meta + part * kLanes * 2;
    store_f16(to, load(call.scales + part * kLanes));
    bad |= not_finite(load_f16(to));
    if (call.encoding == Encoding::kQ4_0) continue;
    const VecF zero = load(call.zeros + part * kLanes);
    store_f16(to + 32, zero);
    bad |= (VecU) ~((VecF)((VecU)zero & 0x7fffffffu) < splat(65504.0f));
  }
  return bad;
}

bool repack_words(const WordPanelCall& call, std::byte* group) {
  VecU bad = put_scales(call, group + call.all_lines * kQuantLine);
  switch (call.words.order) {
    case WordOrder::kNibbles: bad |= put_row_words<WordOrder::kNibbles>(call, group); break;
    case WordOrder::kHighNibblesFirst:
      bad |= put_row_words<WordOrder::kHighNibblesFirst>(call, group);
      break;
    case WordOrder::kRowNibbles: put_column_words(call, group); break;
    case WordOrder::kBytes: bad |= put_row_words<WordOrder::kBytes>(call, group); break;
    case WordOrder::kSignedBytes: bad |= put_row_words<WordOrder::kSignedBytes>(call, group); break;
  }
  __builtin_memset(group + call.lines * kQuantLine, 0,
                   static_cast<size_t>((call.all_lines - call.lines) * kQuantLine));
  return !is_any(bad);
}

}  // namespace
}  // namespace sluice::kernels
