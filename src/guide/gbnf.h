#pragma once
// Grammars in llama.cpp's language, GBNF, as guides: rules of literals, classes of characters, any
// character, groups, alternatives, repetitions and references; `root` is what the text is. Beside
// its README: an alternative may begin the next line, names may have underscores; what is not here
// is its tokens (<think>, <[1000]>). Pure.
#include <string_view>

#include "src/guide/grammar.h"

namespace sluice::guide {

/// Adds the text's rules to `grammar`; returns what `root` describes. Rules that nobody refers to
/// are taken.
/// Errors: kUser naming line and column (characters, from 1), and what can't be there: a syntax
/// error, a rule that is not defined or defined twice, that refers to itself before it has read
/// anything, or that has no end; more than 2000 rules.
ExprPtr parse_gbnf(std::string_view text, Grammar& grammar);

}  // namespace sluice::guide
