#include <fmt/format.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "src/base/error.h"
#include "src/text/newer_characters.h"
#include "src/text/regex.h"
#include "src/text/steps.h"
#include "src/text/utf8.h"

namespace sluice::text {

namespace {
std::string map_unicode(const std::string& text, int options) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0)
    throw Error(ErrorKind::kInternal, fmt::format("utf8proc: {}", utf8proc_errmsg(length)),
                "please report the text");
  return {reinterpret_cast<const char*>(mapped), static_cast<size_t>(length)};
}

// Characters that Hugging Face's tables do not know stay where they are: marks around them neither
// pass nor join them.
NormalizeStep unicode_form(int options) {
  return [options](std::string text) {
    std::string out;
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      std::string_view rest(text.data() + at, text.size() - at);
      const size_t bytes = character_bytes(rest);
      if (bytes > 1 && is_unknown_to_normalizers(take_character(rest))) {
        out += map_unicode(text.substr(done, at - done), options);
        out.append(text, at, bytes);
        done = at + bytes;
      }
      at += bytes;
    }
    return out + map_unicode(text.substr(done), options);
  };
}

std::string strip_accents(std::string text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t code = 0;
    const auto length =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                         static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    const size_t bytes = length > 0 ? static_cast<size_t>(length) : 1;
    const auto category = utf8proc_category(code);
    const bool is_mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                         category == UTF8PROC_CATEGORY_ME;
    if (!is_mark) out.append(text, at, bytes);
    at += bytes;
  }
  return out;
}

std::string strip(std::string text, bool left, bool right) {
  const auto is_space = [&](size_t at, size_t& bytes) {
    utf8proc_int32_t code = 0;
    const auto length =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                         static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    bytes = length > 0 ? static_cast<size_t>(length) : 1;
    return (code >= 9 && code <= 13) || code == 0x85 ||
           utf8proc_category(code) == UTF8PROC_CATEGORY_ZS || code == 0x2028 || code == 0x2029;
  };
  size_t begin = 0;
  size_t end = text.size();
  size_t bytes = 0;
  while (left && begin < end && is_space(begin, bytes)) begin += bytes;
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (!is_space(last, bytes)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::string replace_all(const std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.append(text, at, found - at);
    out += to;
  }
  return out.append(text, at);
}

NormalizeStep make_sequence_normalizer(const Field& list) {
  std::vector<NormalizeStep> steps;
  for (size_t i = 0; i < list.size(); ++i) steps.push_back(make_normalizer(list.at(i)));
  return [steps = std::move(steps)](std::string text) {
    for (const NormalizeStep& step : steps) text = step(std::move(text));
    return text;
  };
}

NormalizeStep make_replace_normalizer(const Field& json) {
  const Field pattern = json.at("pattern");
  const std::string content = json.at("content").text();
  if (pattern.has("String")) {
    const std::string from = pattern.at("String").text();
    if (from.empty()) pattern.refuse("is empty");
    return [from, content](std::string text) { return replace_all(text, from, content); };
  }
  const auto regex = std::make_shared<Regex>(pattern.at("Regex").text());
  return [regex, content](std::string text) {
    std::string out;
    size_t at = 0;
    for (const auto& [begin, end] : regex->find_all(text)) {
      out.append(text, at, begin - at);
      out += content;
      at = end;
    }
    return out.append(text, at);
  };
}
}  // namespace

NormalizeStep nfc_normalizer() { return unicode_form(UTF8PROC_STABLE | UTF8PROC_COMPOSE); }

NormalizeStep make_normalizer(const Field& json) {
  const std::string type = json.type();
  if (type == "Sequence") return make_sequence_normalizer(json.at("normalizers"));
  if (type == "NFC") return nfc_normalizer();
  if (type == "NFD") return unicode_form(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  if (type == "NFKC") return unicode_form(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  if (type == "NFKD") return unicode_form(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  if (type == "Lowercase")
    return [](std::string text) {
      std::string out;
      for (size_t at = 0; at < text.size();) {
        utf8proc_int32_t code = 0;
        const auto length =
            utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                             static_cast<utf8proc_ssize_t>(text.size() - at), &code);
        append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(code)));
        at += length > 0 ? static_cast<size_t>(length) : 1;
      }
      return out;
    };
  if (type == "StripAccents") return strip_accents;
  if (type == "Strip")
    return [left = json.boolean_or("strip_left", true),
            right = json.boolean_or("strip_right", true)](std::string text) {
      return strip(std::move(text), left, right);
    };
  if (type == "Prepend")
    return [prefix = json.at("prepend").text()](std::string text) {
      return text.empty() ? text : prefix + text;
    };
  if (type == "Replace") return make_replace_normalizer(json);
  json.refuse(fmt::format("normalizer type \"{}\" is not supported", type));
}

}  // namespace sluice::text
