#pragma once
// Sets of Unicode characters as expressions over their UTF-8 bytes. Pure.
#include <cstdint>
#include <utility>
#include <vector>

#include "src/guide/grammar.h"

namespace sluice::guide {

constexpr uint32_t kLastCharacter = 0x10FFFF;

/// Ranges of code points, both ends included. Surrogates are no characters and never in a set.
class CharacterSet {
 public:
  CharacterSet() = default;
  CharacterSet(std::initializer_list<std::pair<uint32_t, uint32_t>> ranges);
  static CharacterSet all() { return {{0, kLastCharacter}}; }

  void add(uint32_t first, uint32_t last);
  void add(const CharacterSet& other);
  CharacterSet inverted() const;
  CharacterSet without(const CharacterSet& other) const;
  bool contains(uint32_t character) const;
  bool is_empty() const { return ranges().empty(); }
  /// Rising, apart from each other.
  std::vector<std::pair<uint32_t, uint32_t>> ranges() const;

 private:
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

/// One character of the set, as UTF-8. The set is not empty.
ExprPtr utf8_of(const CharacterSet& set);

/// How characters are written in the output.
enum class Spelling : uint8_t {
  kPlain,
  kJson  ///< within a JSON string: quotes, backslashes and controls are escaped
};
/// One character of the set, spelled so. The set is not empty.
ExprPtr character_of(const CharacterSet& set, Spelling spelling);

}  // namespace sluice::guide
