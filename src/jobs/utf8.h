#pragma once
// UTF-8 as Unicode defines it (table 3-7: no overlong forms, no surrogates, nothing above
// U+10FFFF). Pure functions.
#include <cstdint>
#include <string_view>

namespace sluice::jobs {

/// Offset of the first byte that is not part of a well-formed character, or -1.
int64_t first_invalid_utf8(std::string_view text) noexcept;

/// Characters in the text; bytes that begin none (continuations) do not count.
int64_t count_characters(std::string_view text) noexcept;

}  // namespace sluice::jobs
