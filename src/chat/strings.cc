#include "src/chat/strings.h"

#include <utf8proc.h>

#include <algorithm>

#include "src/chat/value.h"
#include "src/text/utf8.h"

namespace sluice::chat {

namespace {
int32_t code_point(std::string_view character) {
  utf8proc_int32_t point = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()),
                   static_cast<utf8proc_ssize_t>(character.size()), &point);
  return point;
}
bool is_blank_character(std::string_view character) { return is_blank(code_point(character)); }

std::string mapped(std::string_view character, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  const int32_t point = code_point(character);
  if (point < 0) return std::string(character);
  std::string out;
  text::append_utf8(out, static_cast<uint32_t>(map(point)));
  return out;
}
std::string upper_character(std::string_view character) {
  return code_point(character) == 0xdf ? "SS" : mapped(character, utf8proc_toupper);
}

std::vector<std::string> split_blanks(const std::string& text, int64_t most) {
  std::vector<std::string> out;
  spend(1 + static_cast<int64_t>(text.size() / 4));
  const auto blank_at = [&](size_t at) {
    return is_blank_character(std::string_view(text).substr(at, character_end(text, at) - at));
  };
  size_t at = 0;
  for (;;) {
    while (at < text.size() && blank_at(at)) at = character_end(text, at);
    if (at == text.size()) return out;
    spend(4);
    if (most >= 0 && static_cast<int64_t>(out.size()) == most) {
      out.push_back(strip(std::string_view(text).substr(at), nullptr, false, true));
      return out;
    }
    const size_t begin = at;
    while (at < text.size() && !blank_at(at)) at = character_end(text, at);
    out.push_back(text.substr(begin, at - begin));
  }
}

// How much of `part` stands at `at`.
bool stands_at(std::string_view text, size_t at, std::string_view part) {
  const auto end = std::mismatch(part.begin(), part.end(), text.begin() + at).first;
  spend(1 + (end - part.begin()) / 16);
  return end == part.end();
}
}  // namespace

bool is_blank(int32_t point) {
  return (point >= 9 && point <= 13) || (point >= 28 && point <= 32) || point == 0x85 ||
         point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) ||
         point == 0x2028 || point == 0x2029 || point == 0x202f || point == 0x205f ||
         point == 0x3000;
}

size_t position_of(std::string_view text, std::string_view part, size_t from) {
  if (part.empty() || from > text.size()) return from <= text.size() ? from : text.npos;
  while (text.size() - from >= part.size()) {
    const size_t at = text.find(part[0], from);
    spend_on(text.substr(from, at == text.npos ? at : at - from));
    if (at == text.npos || text.size() - at < part.size()) return text.npos;
    if (stands_at(text, at, part)) return at;
    from = at + 1;
  }
  return text.npos;
}

size_t last_position_of(std::string_view text, std::string_view part, size_t from) {
  if (part.size() > text.size()) return text.npos;
  from = std::min(from, text.size() - part.size());
  if (part.empty()) return from;
  for (;;) {
    const size_t at = text.rfind(part[0], from);
    spend_on(text.substr(0, at == text.npos ? from : from - at));
    if (at == text.npos || stands_at(text, at, part)) return at;
    if (at == 0) return text.npos;
    from = at - 1;
  }
}

std::string strip(std::string_view text, const std::string* chars, bool left, bool right) {
  std::vector<std::string_view> set;
  if (chars) for_each_character(*chars, [&](std::string_view c) { set.push_back(c); });
  const auto goes = [&](std::string_view c) {
    if (!chars) return is_blank_character(c);
    spend(1 + static_cast<int64_t>(set.size() / 4));
    return std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0;
  while (left && begin < text.size()) {
    const size_t next = character_end(text, begin);
    if (!goes(text.substr(begin, next - begin))) break;
    begin = next;
  }
  text.remove_prefix(begin);
  if (!right) return std::string(text);
  size_t end = 0, at = 0;
  for_each_character(text, [&](std::string_view c) {
    at += c.size();
    if (!goes(c)) end = at;
  });
  return std::string(text.substr(0, end));
}

std::vector<std::string> split(const std::string& text, const std::string* separator, int64_t most,
                               bool from_right) {
  if (!separator) return split_blanks(text, from_right && most >= 0 ? -1 : most);
  std::vector<std::string> out;
  if (from_right && most >= 0) {
    size_t end = text.size();
    while (most-- > 0 && end > 0) {
      const size_t at = end < separator->size()
                            ? std::string::npos
                            : last_position_of(text, *separator, end - separator->size());
      if (at == std::string::npos) break;
      out.push_back(text.substr(at + separator->size(), end - at - separator->size()));
      end = at;
    }
    out.push_back(text.substr(0, end));
    std::reverse(out.begin(), out.end());
    return out;
  }
  size_t begin = 0;
  for (;;) {
    const size_t at = most-- == 0 ? std::string::npos : position_of(text, *separator, begin);
    spend(4);
    out.push_back(text.substr(begin, at == std::string::npos ? at : at - begin));
    if (at == std::string::npos) return out;
    begin = at + separator->size();
  }
}

std::vector<std::string> split_lines(const std::string& text, bool keeps_ends) {
  std::vector<std::string> out;
  spend_on(text);
  for (size_t begin = 0; begin < text.size();) {
    spend(4);
    const size_t end = std::min(text.find_first_of("\n\r\v\f", begin), text.size());
    size_t next = std::min(end + 1, text.size());
    if (end + 1 < text.size() && text[end] == '\r' && text[end + 1] == '\n') ++next;
    out.push_back(text.substr(begin, (keeps_ends ? next : end) - begin));
    begin = next;
  }
  return out;
}

std::string replace(const std::string& text, const std::string& from, const std::string& to,
                    int64_t most) {
  TextMaker out;
  if (from.empty()) {  // between all characters, and at both ends
    for_each_character(text, [&](std::string_view c) {
      if (most != 0) out += to;
      most -= most > 0;
      out += c;
    });
    if (most != 0) out += to;
    return out.take();
  }
  const std::string_view all = text;
  size_t begin = 0;
  for (size_t at = position_of(text, from, 0); at != std::string::npos && most != 0;
       at = position_of(text, from, begin)) {
    out += all.substr(begin, at - begin);
    out += to;
    begin = at + from.size();
    most -= most > 0;
  }
  out += all.substr(begin);
  return out.take();
}

std::string upper(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view c) { out += upper_character(c); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view c) { out += mapped(c, utf8proc_tolower); });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool is_inside = false;
  for_each_character(text, [&](std::string_view c) {
    const utf8proc_category_t category = utf8proc_category(std::max(code_point(c), 0));
    const bool is_letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    out += !is_letter  ? std::string(c)
           : is_inside ? mapped(c, utf8proc_tolower)
                       : upper_character(c);
    is_inside = is_letter;
  });
  return out;
}

std::string capitalise(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = character_end(text, 0);
  return upper_character(text.substr(0, first)) + lower(text.substr(first));
}

}  // namespace sluice::chat
