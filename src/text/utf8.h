#pragma once
// UTF-8 by hand: validation, mending, and cutting at character ends.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::text {

/// Offset of the first byte that is not part of a well-formed character, or nothing.
std::optional<size_t> first_invalid_utf8(std::string_view text);
/// What becomes a U+FFFD: the longest beginning of a character that is not one (the Unicode
/// standard's practice), or every byte of it (tokens of single bytes).
enum class Replacement { kEveryPart, kEveryByte };
/// `text` with what is ill-formed as U+FFFD.
std::string mend_utf8(std::string_view text, Replacement replacement = Replacement::kEveryPart);
/// Bytes of the longest beginning of `text` that ends no character in the middle (ill-formed bytes
/// count as ended).
size_t complete_prefix(std::string_view text);
/// Bytes of the character at the start of valid, non-empty `text`.
size_t character_bytes(std::string_view text);
/// Takes the first character off valid, non-empty `text`; its code point.
uint32_t take_character(std::string_view& text);
/// Appends a code point.
void append_utf8(std::string& to, uint32_t code_point);

}  // namespace sluice::text
