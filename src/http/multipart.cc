#include "src/http/multipart.h"

#include <algorithm>

#include "src/http/message.h"

namespace sluice::http {

namespace {
constexpr size_t kLongestBoundary = 70;  // RFC 2046
constexpr size_t kLongestHead = 4096;

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The value of `name` in "something; name=value; other=\"quoted\"".
std::optional<std::string> parameter(std::string_view text, std::string_view name) {
  size_t at = text.find(';');
  while (at < text.size()) {
    ++at;
    const size_t equals = text.find_first_of("=;", at);
    if (equals == std::string_view::npos) return std::nullopt;
    if (text[equals] == ';') {
      at = equals;
      continue;
    }
    const std::string_view key = trim(text.substr(at, equals - at));
    std::string value;
    at = equals + 1;
    while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
    if (at < text.size() && text[at] == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) {
        if (text[at] == '\\' && at + 1 < text.size()) ++at;
        value += text[at];
      }
      at = text.find(';', at);
    } else {
      const size_t end = std::min(text.find(';', at), text.size());
      value = trim(text.substr(at, end - at));
      at = end;
    }
    if (is_same_name(key, name)) return value;
  }
  return std::nullopt;
}

// The part whose head begins at `head`, of which Content-Disposition is read.
bool read_head(std::string_view head, FormPart& part) {
  bool has_name = false;
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(line.size() + 2, head.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return false;
    if (!is_same_name(trim(line.substr(0, colon)), "Content-Disposition")) continue;
    const auto name = parameter(line.substr(colon + 1), "name");
    if (!name) return false;
    part.name = *name;
    part.filename = parameter(line.substr(colon + 1), "filename").value_or("");
    has_name = true;
  }
  return has_name;
}
}  // namespace

std::optional<std::vector<FormPart>> read_form(std::string_view content_type, std::string_view body,
                                               size_t most_parts) {
  if (!is_same_name(trim(content_type.substr(0, content_type.find(';'))), "multipart/form-data"))
    return std::nullopt;
  const auto boundary = parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kLongestBoundary) return std::nullopt;
  const std::string mark = "\r\n--" + *boundary;
  // The first mark stands at the body's beginning, or behind a line.
  size_t at =
      body.starts_with(std::string_view(mark).substr(2)) ? mark.size() - 2 : body.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  if (!body.starts_with(std::string_view(mark).substr(2))) at += mark.size();
  std::vector<FormPart> parts;
  for (;;) {
    if (body.substr(at, 2) == "--") return parts;
    const size_t line = body.find("\r\n", at);  // white space may stand behind a mark
    if (line == std::string_view::npos || !trim(body.substr(at, line - at)).empty() ||
        parts.size() == most_parts)
      return std::nullopt;
    const size_t head = line + 2;
    const size_t content = body.substr(head, kLongestHead).find("\r\n\r\n");
    if (content == std::string_view::npos) return std::nullopt;
    const size_t begin = head + content + 4;
    const size_t end = body.find(mark, begin - 2);  // an empty part's mark follows its head
    FormPart part;
    if (end == std::string_view::npos || !read_head(body.substr(head, content), part))
      return std::nullopt;
    part.content = end > begin ? body.substr(begin, end - begin) : std::string_view();
    parts.push_back(std::move(part));
    at = end + mark.size();
  }
}

}  // namespace sluice::http
