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
  const auto all = characters(text);
  size_t i = 0;
  for (;;) {
    while (i < all.size() && is_blank_character(all[i])) ++i;
    if (i == all.size()) return out;
    const char* begin = all[i].data();
    if (most >= 0 && static_cast<int64_t>(out.size()) == most) {
      out.push_back(strip({begin, static_cast<size_t>(text.data() + text.size() - begin)}, nullptr,
                          false, true));
      return out;
    }
    while (i < all.size() && !is_blank_character(all[i])) ++i;
    const char* end = i == all.size() ? text.data() + text.size() : all[i].data();
    out.emplace_back(begin, end);
  }
}
}  // namespace

bool is_blank(int32_t point) {
  return (point >= 9 && point <= 13) || (point >= 28 && point <= 32) || point == 0x85 ||
         point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) ||
         point == 0x2028 || point == 0x2029 || point == 0x202f || point == 0x205f ||
         point == 0x3000;
}

std::string strip(std::string_view text, const std::string* chars, bool left, bool right) {
  const auto all = characters(text);
  const auto set = chars ? characters(*chars) : std::vector<std::string_view>{};
  const auto goes = [&](std::string_view c) {
    return chars ? std::find(set.begin(), set.end(), c) != set.end() : is_blank_character(c);
  };
  size_t begin = 0, end = all.size();
  while (left && begin < end && goes(all[begin])) ++begin;
  while (right && end > begin && goes(all[end - 1])) --end;
  if (begin == end) return {};
  return {all[begin].data(), all[end - 1].data() + all[end - 1].size()};
}

std::vector<std::string> split(const std::string& text, const std::string* separator, int64_t most,
                               bool from_right) {
  if (!separator) return split_blanks(text, from_right && most >= 0 ? -1 : most);
  std::vector<std::string> out;
  if (from_right && most >= 0) {
    size_t end = text.size();
    while (most-- > 0 && end > 0) {
      const size_t at = end < separator->size() ? std::string::npos
                                                : text.rfind(*separator, end - separator->size());
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
    const size_t at = most-- == 0 ? std::string::npos : text.find(*separator, begin);
    out.push_back(text.substr(begin, at == std::string::npos ? at : at - begin));
    if (at == std::string::npos) return out;
    begin = at + separator->size();
  }
}

std::vector<std::string> split_lines(const std::string& text, bool keeps_ends) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
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
  std::string out;
  if (from.empty()) {  // between all characters, and at both ends
    for (std::string_view c : characters(text)) {
      if (most != 0) out += to;
      most -= most > 0;
      out += c;
    }
    return most == 0 ? out : out + to;
  }
  size_t begin = 0;
  for (size_t at = text.find(from); at != std::string::npos && most != 0;
       at = text.find(from, begin)) {
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
    most -= most > 0;
  }
  return out.append(text, begin, std::string::npos);
}

std::string upper(std::string_view text) {
  std::string out;
  for (std::string_view c : characters(text)) out += upper_character(c);
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (std::string_view c : characters(text)) out += mapped(c, utf8proc_tolower);
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool is_inside = false;
  for (std::string_view c : characters(text)) {
    const utf8proc_category_t category = utf8proc_category(std::max(code_point(c), 0));
    const bool is_letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    out += !is_letter  ? std::string(c)
           : is_inside ? mapped(c, utf8proc_tolower)
                       : upper_character(c);
    is_inside = is_letter;
  }
  return out;
}

std::string capitalise(std::string_view text) {
  const auto all = characters(text);
  if (all.empty()) return {};
  return upper_character(all[0]) + lower(text.substr(all[0].size()));
}

}  // namespace sluice::chat
