#include <fmt/format.h>

#include <memory>

#include "src/text/byte_level.h"
#include "src/text/regex.h"
#include "src/text/steps.h"
#include "src/text/utf8.h"

namespace sluice::text {

namespace {
using Tokens = std::vector<std::string>;

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.append(text, at, found - at);
    out += to;
  }
  return out.append(text, at);
}

DecodeStep make_sequence_decoder(const Field& list) {
  std::vector<DecodeStep> steps;
  for (size_t i = 0; i < list.size(); ++i) steps.push_back(make_decoder(list.at(i)));
  return [steps = std::move(steps)](Tokens& tokens, bool is_start) {
    for (const DecodeStep& step : steps) step(tokens, is_start);
  };
}

// <0x41> to its byte; tokens that are no byte stay. Mending broken characters is left to the
// caller, who sees all bytes.
void byte_fallback(Tokens& tokens, bool) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  for (std::string& token : tokens) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') continue;
    const int high = digit(token[3]);
    const int low = digit(token[4]);
    if (high >= 0 && low >= 0) token.assign(1, static_cast<char>(high * 16 + low));
  }
}

void fuse(Tokens& tokens, bool) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

DecodeStep make_strip_decoder(const Field& json) {
  const std::string content = json.text_or("content", " ");
  const int32_t start = json.has("start") ? json.at("start").integer() : 0;
  const int32_t stop = json.has("stop") ? json.at("stop").integer() : 0;
  if (content.empty()) json.refuse("content is empty");
  return [content, start, stop](Tokens& tokens, bool is_start) {
    for (std::string& token : tokens) {
      for (int32_t i = 0; i < start && is_start && token.starts_with(content); ++i)
        token.erase(0, content.size());
      for (int32_t i = 0; i < stop && token.ends_with(content); ++i)
        token.erase(token.size() - content.size());
    }
  };
}

DecodeStep make_metaspace_decoder(const Field& json) {
  const std::string mark = json.text_or("replacement", "\xe2\x96\x81");
  if (mark.empty() || character_bytes(mark) != mark.size())
    json.refuse("replacement is not one character");
  const bool prepends =
      json.text_or("prepend_scheme",
                   json.boolean_or("add_prefix_space", true) ? "always" : "never") != "never";
  return [mark, prepends](Tokens& tokens, bool is_start) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i == 0 && is_start && prepends && tokens[i].starts_with(mark))
        tokens[i].erase(0, mark.size());
      tokens[i] = replaced(tokens[i], mark, " ");
    }
  };
}

DecodeStep make_replace_decoder(const Field& json) {
  const Field pattern = json.at("pattern");
  const std::string content = json.at("content").text();
  if (!pattern.has("String")) pattern.refuse("only string patterns are supported in decoders");
  const std::string from = pattern.at("String").text();
  if (from.empty()) pattern.refuse("is empty");
  return [from, content](Tokens& tokens, bool) {
    for (std::string& token : tokens) token = replaced(token, from, content);
  };
}
}  // namespace

DecodeStep byte_level_decode() {
  return [](Tokens& tokens, bool) {
    for (std::string& token : tokens)
      if (auto bytes = characters_to_bytes(token)) token = std::move(*bytes);
  };
}

DecodeStep make_decoder(const Field& json) {
  const std::string type = json.type();
  if (type == "Sequence") return make_sequence_decoder(json.at("decoders"));
  if (type == "ByteLevel") return byte_level_decode();
  if (type == "ByteFallback") return byte_fallback;
  if (type == "Fuse") return fuse;
  if (type == "Strip") return make_strip_decoder(json);
  if (type == "Metaspace") return make_metaspace_decoder(json);
  if (type == "Replace") return make_replace_decoder(json);
  json.refuse(fmt::format("decoder type \"{}\" is not supported", type));
}

}  // namespace sluice::text
