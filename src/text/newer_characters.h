#pragma once
// Characters that the tables behind Hugging Face's tokenizers and those of our libraries (utf8proc,
// PCRE2: other ones on every distribution) see differently, so that ids depend on no library.
#include <cstdint>
#include <string>

namespace sluice::text {

/// Whether Hugging Face's normalisers leave `code` as it is and where it stands: they know
/// Unicode 9.
bool is_unknown_to_normalizers(uint32_t code);

/// `pattern` of Hugging Face's regular expressions (Oniguruma) for PCRE2: \p{L} and other general
/// categories with the characters of Unicode 16, \p{Han} those of that script alone (PCRE2 has
/// had since 10.40 what Han is written with, full stops of Japanese among it), \s without U+180E,
/// which is no white space, and sets within a set ([^(\s|[.,!])]) as what they add to it.
std::string pcre2_pattern(const std::string& pattern);

}  // namespace sluice::text
