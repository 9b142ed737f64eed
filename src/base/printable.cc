#include "src/base/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace sluice {

namespace {
constexpr size_t kMostBytes = 8 << 10;

// Bytes of the UTF-8 character at the front of `text`, its value in `character`; 0: there is none.
size_t take_character(std::string_view text, uint32_t& character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (length == 0 || lead > 0xf4 || text.size() < length) return 0;
  character = length == 1 ? lead : lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    character = character << 6 | (byte(i) & 0x3fu);
  }
  const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = character >= 0xd800 && character < 0xe000;
  return character < smallest[length] || character > 0x10ffff || is_surrogate ? 0 : length;
}

bool is_control(uint32_t character) {
  return (character < 0x20 && character != '\n' && character != '\t') ||
         (character >= 0x7f && character < 0xa0) || (character >= 0x202a && character <= 0x202e) ||
         (character >= 0x2066 && character <= 0x2069);
}
}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty() && out.size() < kMostBytes) {
    uint32_t character = 0;
    const size_t length = take_character(text, character);
    const size_t taken = length == 0 ? 1 : length;
    if (length > 0 && !is_control(character)) {
      out += text.substr(0, taken);
    } else {
      for (const char c : text.substr(0, taken))
        out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    }
    text.remove_prefix(taken);
  }
  if (!text.empty()) out += fmt::format("... ({} more bytes)", text.size());
  return out;
}

}  // namespace sluice
