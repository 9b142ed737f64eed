#include "src/text/utf8.h"

namespace sluice::text {

namespace {
struct Step {
  size_t bytes;  // of the character or of the ill-formed run
  bool is_valid;
  bool is_cut;  // well-formed so far, but the text ends
};

bool is_continuation(unsigned char c) { return (c & 0xc0) == 0x80; }

// The Unicode standard's table 3-7, and its practice of one U+FFFD for a maximal ill-formed part.
Step step(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, true, false};
  size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf)
    length = 2;
  else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return {1, false, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true};
    const bool fits = i == 1 ? at(i) >= low && at(i) <= high : is_continuation(at(i));
    if (!fits) return {i, false, false};
  }
  return {length, true, false};
}
}  // namespace

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Step s = step(text.substr(at));
    if (!s.is_valid) return at;
    at += s.bytes;
  }
  return std::nullopt;
}

std::string mend_utf8(std::string_view text, Replacement replacement) {
  constexpr std::string_view kReplaced = "\xef\xbf\xbd";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Step s = step(text);
    if (s.is_valid)
      out += text.substr(0, s.bytes);
    else
      for (size_t i = 0; i < (replacement == Replacement::kEveryByte ? s.bytes : 1); ++i)
        out += kReplaced;
    text.remove_prefix(s.bytes);
  }
  return out;
}

size_t complete_prefix(std::string_view text) {
  // Only the last three bytes can begin a character that has not ended.
  const size_t from = text.size() > 3 ? text.size() - 3 : 0;
  for (size_t at = from; at < text.size(); ++at) {
    if (is_continuation(static_cast<unsigned char>(text[at]))) continue;
    if (step(text.substr(at)).is_cut) return at;
  }
  return text.size();
}

size_t character_bytes(std::string_view text) { return step(text).bytes; }

uint32_t take_character(std::string_view& text) {
  const size_t bytes = character_bytes(text);
  const auto lead = static_cast<unsigned char>(text.front());
  // The lead byte has as many ones before its bits as the character has bytes.
  uint32_t code = bytes == 1 ? lead : lead & (0xffu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i)
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
  text.remove_prefix(bytes);
  return code;
}

void append_utf8(std::string& to, uint32_t code) {
  if (code < 0x80) {
    to += static_cast<char>(code);
  } else if (code < 0x800) {
    to += static_cast<char>(0xc0 | (code >> 6));
    to += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    to += static_cast<char>(0xe0 | (code >> 12));
    to += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    to += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    to += static_cast<char>(0xf0 | (code >> 18));
    to += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    to += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    to += static_cast<char>(0x80 | (code & 0x3f));
  }
}

}  // namespace sluice::text
