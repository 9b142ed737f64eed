#include "src/text/newer_characters.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace sluice::text {

namespace {
struct Range {
  uint32_t first, last;
};
struct Category {
  std::string_view name;
  std::string_view members;
};
#include "src/text/newer_characters.inc"

constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";

std::string_view newer_members(std::string_view category) {
  for (const Category& known : kNewerMembers)
    if (known.name == category) return known.members;
  return {};
}

// What `escape` (\s, \S or \p{...}) becomes; itself where nothing is to be done.
std::string translated(std::string_view escape, bool is_in_class) {
  std::string out(escape);
  if (escape == "\\s") out = kSpaces;
  if (escape == "\\S" && !is_in_class) return "[^" + std::string(kSpaces) + "]";
  if (escape == "\\p{Han}")
    out = kHan;
  else if (escape.starts_with("\\p{"))
    out += newer_members(escape.substr(3, escape.size() - 4));
  return is_in_class || out == escape ? out : "[" + out + "]";
}

size_t escape_bytes(std::string_view rest) {
  if (!rest.starts_with("\\p{")) return std::min<size_t>(2, rest.size());
  const size_t end = rest.find('}');
  return end == std::string_view::npos ? 2 : end + 1;
}
}  // namespace

bool is_unknown_to_normalizers(uint32_t code) {
  const auto after =
      std::upper_bound(std::begin(kUnknownToNormalizers), std::end(kUnknownToNormalizers), code,
                       [](uint32_t wanted, const Range& range) { return wanted < range.first; });
  return after != std::begin(kUnknownToNormalizers) && code <= std::prev(after)->last;
}

std::string pcre2_pattern(const std::string& pattern) {
  std::string out;
  int depth = 0;  // of sets within sets
  for (size_t at = 0; at < pattern.size();) {
    const std::string_view rest = std::string_view(pattern).substr(at);
    size_t bytes = 1;
    if (rest[0] == '\\') {
      bytes = escape_bytes(rest);
      out += translated(rest.substr(0, bytes), depth > 0);
    } else if (depth > 0 && rest.starts_with("[:")) {  // [:alpha:]
      bytes = std::min(rest.find(":]"), rest.size() - 2) + 2;
      out += rest.substr(0, bytes);
    } else {
      const bool opens = rest[0] == '[' && !(depth > 0 && rest.starts_with("[^"));
      const bool closes = rest[0] == ']' && depth > 0;
      if (!(opens && depth > 0) && !(closes && depth > 1)) out += rest[0];
      depth += opens - closes;
    }
    at += bytes;
  }
  return out;
}

}  // namespace sluice::text
