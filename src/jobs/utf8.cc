#include "src/jobs/utf8.h"

namespace sluice::jobs {

namespace {

struct Form {
  int continuations;  // bytes after the first; -1 the byte begins no character
  uint8_t low, high;  // of the second byte
};

Form form_of(uint8_t lead) noexcept {
  if (lead < 0x80) return {0, 0, 0};
  if (lead < 0xC2) return {-1, 0, 0};
  if (lead < 0xE0) return {1, 0x80, 0xBF};
  if (lead == 0xE0) return {2, 0xA0, 0xBF};
  if (lead == 0xED) return {2, 0x80, 0x9F};
  if (lead < 0xF0) return {2, 0x80, 0xBF};
  if (lead == 0xF0) return {3, 0x90, 0xBF};
  if (lead < 0xF4) return {3, 0x80, 0xBF};
  if (lead == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

}  // namespace

int64_t first_invalid_utf8(std::string_view text) noexcept {
  for (size_t at = 0; at < text.size();) {
    const Form form = form_of(static_cast<uint8_t>(text[at]));
    if (form.continuations < 0 || at + static_cast<size_t>(form.continuations) >= text.size()) {
      return static_cast<int64_t>(at);
    }
    for (int i = 1; i <= form.continuations; ++i) {
      const auto byte = static_cast<uint8_t>(text[at + static_cast<size_t>(i)]);
      const bool fits = i == 1 ? byte >= form.low && byte <= form.high : (byte & 0xC0) == 0x80;
      if (!fits) return static_cast<int64_t>(at);
    }
    at += static_cast<size_t>(form.continuations) + 1;
  }
  return -1;
}

int64_t count_characters(std::string_view text) noexcept {
  int64_t characters = 0;
  for (const char c : text) characters += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return characters;
}

}  // namespace sluice::jobs
