#include "src/guide/characters.h"

#include <algorithm>
#include <array>

#include "src/base/error.h"
#include "src/text/utf8.h"

namespace sluice::guide {

namespace {
using Range = std::pair<uint32_t, uint32_t>;
constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

std::string encode(uint32_t c) {
  std::string out;
  text::append_utf8(out, c);
  return out;
}

// Cuts the range until each piece has one byte range at every place.
void add_utf8(uint32_t first, uint32_t last, std::vector<ExprPtr>& out) {
  for (const uint32_t largest : {0x7Fu, 0x7FFu, 0xFFFFu})
    if (first <= largest && last > largest) {
      add_utf8(first, largest, out);
      add_utf8(largest + 1, last, out);
      return;
    }
  if (first >= 0x80)
    for (int tails = 1; tails < 4; ++tails) {
      const uint32_t below = (uint32_t{1} << 6 * tails) - 1;
      if ((first & ~below) == (last & ~below)) continue;
      if ((first & below) != 0) {
        add_utf8(first, first | below, out);
        add_utf8((first | below) + 1, last, out);
        return;
      }
      if ((last & below) != below) {
        add_utf8(first, (last & ~below) - 1, out);
        add_utf8(last & ~below, last, out);
        return;
      }
    }
  const auto low = encode(first), high = encode(last);
  std::vector<ExprPtr> bytes;
  for (size_t i = 0; i < low.size(); ++i)
    bytes.push_back(range(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])));
  out.push_back(sequence(std::move(bytes)));
}
}  // namespace

CharacterSet::CharacterSet(std::initializer_list<Range> ranges) {
  for (const auto& [first, last] : ranges) add(first, last);
}

void CharacterSet::add(uint32_t first, uint32_t last) {
  if (first < kFirstSurrogate && last > kLastSurrogate) {
    add(first, kFirstSurrogate - 1);
    first = kLastSurrogate + 1;
  }
  if (first >= kFirstSurrogate && first <= kLastSurrogate) first = kLastSurrogate + 1;
  if (last >= kFirstSurrogate && last <= kLastSurrogate) last = kFirstSurrogate - 1;
  if (first <= last) ranges_.emplace_back(first, last);
}

void CharacterSet::add(const CharacterSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

std::vector<Range> CharacterSet::ranges() const {
  std::vector<Range> sorted = ranges_;
  std::sort(sorted.begin(), sorted.end());
  std::vector<Range> out;
  for (const Range& one : sorted) {
    if (!out.empty() && one.first <= out.back().second + 1)
      out.back().second = std::max(out.back().second, one.second);
    else
      out.push_back(one);
  }
  return out;
}

CharacterSet CharacterSet::inverted() const {
  CharacterSet out;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges()) {
    if (first > next) out.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCharacter) out.add(next, kLastCharacter);
  return out;
}

CharacterSet CharacterSet::without(const CharacterSet& other) const {
  CharacterSet either_out = inverted();
  either_out.add(other);
  return either_out.inverted();
}

bool CharacterSet::contains(uint32_t character) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& one) {
    return character >= one.first && character <= one.second;
  });
}

ExprPtr utf8_of(const CharacterSet& set) {
  std::vector<ExprPtr> ways;
  for (const auto& [first, last] : set.ranges()) add_utf8(first, last, ways);
  SLUICE_ASSERT(!ways.empty(), "a set that is read has characters");
  return either(std::move(ways));
}

ExprPtr character_of(const CharacterSet& set, Spelling spelling) {
  if (spelling == Spelling::kPlain) return utf8_of(set);
  const CharacterSet escaped{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  std::vector<ExprPtr> ways;
  const CharacterSet raw = set.without(escaped);
  if (!raw.is_empty()) ways.push_back(utf8_of(raw));
  constexpr std::array<std::pair<char, const char*>, 7> kShort{{{'"', "\\\""},
                                                                {'\\', "\\\\"},
                                                                {'\b', "\\b"},
                                                                {'\f', "\\f"},
                                                                {'\n', "\\n"},
                                                                {'\r', "\\r"},
                                                                {'\t', "\\t"}}};
  for (const auto& [character, spelled] : kShort)
    if (set.contains(static_cast<uint8_t>(character))) ways.push_back(literal(spelled));
  constexpr char kDigits[] = "0123456789abcdef";
  for (uint8_t c = 0; c < 0x20; ++c) {
    const bool has_short = c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t';
    if (has_short || !set.contains(c)) continue;
    ways.push_back(literal(std::string("\\u00") + kDigits[c >> 4] + kDigits[c & 15]));
  }
  SLUICE_ASSERT(!ways.empty(), "a set that is read has characters");
  return either(std::move(ways));
}

}  // namespace sluice::guide
