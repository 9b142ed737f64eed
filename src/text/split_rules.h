#pragma once
// How text is cut before its pieces are merged, by the names that GGUF files give the rules
// (tokenizer.ggml.pre). A rule is what the model's own tokenizer.json says, as far as that is
// known. Constant tables; thread safe.
#include <span>
#include <string>
#include <string_view>

namespace sluice::text {

/// Stands among a rule's patterns where the pieces' bytes become characters (byte_level.h). Where a
/// rule has none, that comes last.
inline constexpr std::string_view kBytesStep = "";

/// A rule by one of its names.
struct SplitRule {
  std::string_view name;
  /// Applied one after the other to all pieces: each match, and what lies between, is a piece.
  std::span<const std::string_view> patterns;
  bool ignores_merges = false;  ///< a piece that is a token as it stands is that token
  bool adds_begin = false;      ///< where the file does not say
  bool composes = false;        ///< text is brought into Unicode's form C before
  /// Pieces are characters with spaces as U+2581, as SentencePiece has them, rather than bytes.
  bool is_of_pieces = false;
};

/// All of them.
std::span<const SplitRule> split_rules();
/// Null where no rule has that name.
const SplitRule* find_split_rule(std::string_view name);
/// The known name that differs from `name` in the fewest letters. A known name that `name` begins
/// with is nearer than any other.
std::string_view nearest_split_rule(std::string_view name);

}  // namespace sluice::text
