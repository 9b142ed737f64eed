#include "src/chat/tagged_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice::chat {

namespace {
using nlohmann::ordered_json;

constexpr std::string_view kTagSpace = " \t\r\n";
constexpr size_t kLongestParameter = 1024;

// Whether `text` is the beginning of `mark`, but not yet all of it.
bool may_turn_into(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

// Bytes at the end of `text` that may turn into `mark`.
size_t tail_like(std::string_view text, std::string_view mark) {
  for (size_t bytes = std::min(text.size(), mark.size() - 1); bytes > 0; --bytes)
    if (mark.starts_with(text.substr(text.size() - bytes))) return bytes;
  return 0;
}

std::string_view trimmed_tag(std::string_view text) {
  const size_t first = text.find_first_not_of(kTagSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kTagSpace) + 1 - first);
}

// As between the quotes of JSON; pieces of a text may be escaped one by one.
std::string escaped_piece(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out;
}

// A value that is not said to be a text: JSON where it is some, a word of Python's, or a text.
std::string json_of(std::string_view value) {
  const std::string_view bare = trimmed_tag(value);
  if (bare == "True") return "true";
  if (bare == "False") return "false";
  if (bare == "None") return "null";
  if (ordered_json::accept(bare)) return std::string(bare);
  return '"' + escaped_piece(value) + '"';
}
}  // namespace

bool is_text_parameter(const ordered_json& parameters, const std::string& name) {
  if (!parameters.is_object()) return false;
  const auto properties = parameters.find("properties");
  if (properties == parameters.end() || !properties->is_object()) return false;
  const auto of = properties->find(name);
  if (of == properties->end() || !of->is_object()) return false;
  const auto is_text = [](const ordered_json& type) { return type == "string"; };
  if (const auto type = of->find("type"); type != of->end())
    return type->is_array() ? std::any_of(type->begin(), type->end(), is_text) : is_text(*type);
  const auto values = of->find("enum");
  return values != of->end() && values->is_array() && !values->empty() &&
         std::all_of(values->begin(), values->end(),
                     [](const ordered_json& value) { return value.is_string(); });
}

TaggedReader::TaggedReader(const ToolFormat& format, ordered_json parameters)
    : format_(format), parameters_(std::move(parameters)) {}

bool TaggedReader::step(std::string& pending, bool is_over, std::string& json) {
  switch (state_) {
    case State::kBetween: return step_between(pending, is_over, json);
    case State::kName: return step_name(pending, is_over, json);
    case State::kBeforeValue: return step_before_value(pending, is_over, json);
    case State::kText:
    case State::kOther: return step_value(pending, is_over, json);
    case State::kEnded: return false;
  }
  return false;
}

bool TaggedReader::end(std::string& json) {
  json += has_arguments_ ? "}" : "{}";
  state_ = State::kEnded;
  return true;
}

bool TaggedReader::step_between(std::string& pending, bool is_over, std::string& json) {
  pending.erase(0, std::min(pending.find_first_not_of(kTagSpace), pending.size()));
  const std::string_view begin = format_.tagged.key_begin;
  if (pending.starts_with(begin)) {
    pending.erase(0, begin.size());
    state_ = State::kName;
    return true;
  }
  const std::string_view tail = trimmed_tag(format_.tail), close = trimmed_tag(format_.close);
  const bool waits = pending.empty() || may_turn_into(pending, begin) ||
                     may_turn_into(pending, tail) || may_turn_into(pending, close);
  if (waits) {
    if (is_over) pending.clear();  // cut short
    return false;
  }
  return end(json);  // what ends the call, or no part of one
}

bool TaggedReader::step_name(std::string& pending, bool is_over, std::string& json) {
  const size_t at = pending.find(format_.tagged.key_end);
  if (at == std::string::npos &&
      pending.size() < kLongestParameter + format_.tagged.key_end.size()) {
    if (is_over) pending.clear();
    return false;
  }
  if (at == std::string::npos || at > kLongestParameter) return end(json);
  const std::string name(trimmed_tag(std::string_view(pending).substr(0, at)));
  is_text_ = is_text_parameter(parameters_, name);
  json += (std::exchange(has_arguments_, true) ? ", \"" : "{\"") + escaped_piece(name) + "\": ";
  pending.erase(0, at + format_.tagged.key_end.size());
  state_ = State::kBeforeValue;
  return true;
}

bool TaggedReader::step_before_value(std::string& pending, bool is_over, std::string& json) {
  const std::string_view mark = format_.tagged.value_begin, around = format_.tagged.around;
  if (!mark.empty()) {
    const size_t first = std::min(pending.find_first_not_of(kTagSpace), pending.size());
    const std::string_view rest = std::string_view(pending).substr(first);
    if (rest.empty() || may_turn_into(rest, mark)) {
      if (is_over) pending.clear();
      return false;
    }
    if (rest.starts_with(mark)) pending.erase(0, first + mark.size());
  }
  if (!around.empty() && may_turn_into(pending, around) && !is_over) return false;
  if (pending.starts_with(around)) pending.erase(0, around.size());
  if (is_text_) json += '"';
  searched_ = 0;
  state_ = is_text_ ? State::kText : State::kOther;
  return true;
}

bool TaggedReader::step_value(std::string& pending, bool is_over, std::string& json) {
  const std::string_view mark = format_.tagged.value_end, around = format_.tagged.around;
  const size_t at = pending.find(mark, searched_);
  if (at != std::string::npos) {
    std::string_view value = std::string_view(pending).substr(0, at);
    if (value.ends_with(around)) value.remove_suffix(around.size());
    json += is_text_ ? escaped_piece(value) + '"' : json_of(value);
    pending.erase(0, at + mark.size());
    state_ = State::kBetween;
    return true;
  }
  if (!is_text_) {
    searched_ = pending.size() - tail_like(pending, mark);
    if (is_over) pending.clear();  // half a number is none
    return false;
  }
  size_t held = is_over ? 0 : tail_like(pending, mark);
  if (!around.empty() && !is_over)
    held = std::max(held, tail_like(pending, std::string(around) + std::string(mark)));
  json += escaped_piece(std::string_view(pending).substr(0, pending.size() - held));
  pending.erase(0, pending.size() - held);
  return false;
}

}  // namespace sluice::chat
