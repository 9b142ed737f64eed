#pragma once
// Regular expressions as guides: the syntax of Python's re and ECMAScript's that describes regular
// languages (groups, classes, alternatives, repetitions, escapes, Unicode). \d, \w and \s are
// ASCII. Lazy and greedy are the same here: the text matches as a whole. Pure.
#include <string_view>

#include "src/guide/characters.h"
#include "src/guide/grammar.h"

namespace sluice::guide {

/// Which part of the text an expression describes.
enum class Anchoring : uint8_t {
  kWhole,  ///< the text is what the expression describes
  kSearch  ///< the text contains it, unless ^ and $ say otherwise (JSON schema's pattern)
};

/// Errors: kUser naming the position and what can't be there: a syntax error, or something that is
/// not regular (back references, look-around, word boundaries).
ExprPtr parse_regex(std::string_view pattern, Anchoring anchoring = Anchoring::kWhole,
                    Spelling spelling = Spelling::kPlain);

/// Texts of an expression of this pattern that have from `least` to `most` characters (-1: any
/// number); of what can't be said simply, some of them. `spelled` and `plain` are the pattern in
/// the output's spelling and in Spelling::kPlain. Null: there are none.
ExprPtr within_lengths(const ExprPtr& spelled, const ExprPtr& plain, int64_t least, int64_t most);

}  // namespace sluice::guide
