#include "src/chat/message_reader.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <utility>

namespace sluice::chat {

namespace {
constexpr std::string_view kJsonSpace = " \t\r\n";
constexpr std::string_view kBeginThought = "<think>", kEndThought = "</think>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kCallId = "[CALL_ID]";
constexpr size_t kLongestName = 256;  // with an id behind it

std::string_view without_lead(std::string_view text) {
  const size_t first = text.find_first_not_of(kJsonSpace);
  return first == std::string_view::npos ? std::string_view{} : text.substr(first);
}

size_t length_without_trail(std::string_view text) {
  const size_t last = text.find_last_not_of(kJsonSpace);
  return last == std::string_view::npos ? 0 : last + 1;
}

// Whether `text` is the beginning of `mark`, but not yet all of it.
bool may_become(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

// Bytes of the longest end of `text` that may become `mark`.
size_t end_like(std::string_view text, std::string_view mark) {
  for (size_t bytes = std::min(text.size(), mark.size() - 1); bytes > 0; --bytes)
    if (may_become(text.substr(text.size() - bytes), mark)) return bytes;
  return 0;
}

// Where JSON at `at` ends: behind the value. Nothing: it has not ended.
std::optional<size_t> value_end(std::string_view text, size_t at) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
        if (depth == 0) return i + 1;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return i;  // of what is around a number or a word
      if (--depth == 0) return i + 1;
    } else if (depth == 0 && (c == ',' || kJsonSpace.find(c) != std::string_view::npos)) {
      return i;
    }
  }
  return std::nullopt;
}

std::optional<std::string> string_of(std::string_view json) {
  if (!json.starts_with('"')) return std::nullopt;
  const auto value = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

// What is known of an object that may be a call.
struct ObjectHead {
  enum class Found : uint8_t { kWaits, kArguments, kEnd, kNoCall };
  Found found = Found::kWaits;
  std::string name;
  std::string_view arguments;  // that came before the name
  size_t at = 0;               // kArguments: where they begin; kEnd: behind the object
};

ObjectHead scan_object(std::string_view text) {
  ObjectHead out;
  const auto no_call = [&] {
    out.found = ObjectHead::Found::kNoCall;
    return out;
  };
  size_t at = 1;
  const auto to_next = [&] {
    at = std::min(text.find_first_not_of(kJsonSpace, at), text.size());
    return at < text.size();
  };
  while (to_next()) {
    if (text[at] == '}') {
      out.found = out.name.empty() ? ObjectHead::Found::kNoCall : ObjectHead::Found::kEnd;
      out.at = at + 1;
      return out;
    }
    if (text[at] == ',') {
      ++at;
      continue;
    }
    if (text[at] != '"') return no_call();
    const auto key_end = value_end(text, at);
    if (!key_end) return out;
    const auto key = string_of(text.substr(at, *key_end - at));
    at = *key_end;
    if (!key) return no_call();
    if (!to_next()) return out;
    if (text[at++] != ':') return no_call();
    if (!to_next()) return out;
    const bool is_arguments = *key == "arguments" || *key == "parameters";
    if (is_arguments && !out.name.empty() && (text[at] == '{' || text[at] == '[')) {
      out.found = ObjectHead::Found::kArguments;
      out.at = at;
      return out;
    }
    const auto end = value_end(text, at);
    if (!end) return out;
    const std::string_view value = text.substr(at, *end - at);
    if (*key == "name") {
      const auto name = string_of(value);
      if (!name || name->empty()) return no_call();
      out.name = *name;
    } else if (is_arguments) {
      out.arguments = value;
    }
    at = *end;
  }
  return out;
}
}  // namespace

MessageReader::MessageReader(MessageForm form) : form_(std::move(form)) {
  state_ = form_.begins_in_call                            ? State::kBeforeCall
           : form_.has_thoughts && form_.begins_in_thought ? State::kThought
           : form_.has_thoughts                            ? State::kStart
                                                           : State::kText;
  skips_space_ = state_ == State::kThought;
  if (form_.begins_in_call && form_.calls) raw_ = form_.calls->trigger;
  if (form_.has_channels || (form_.calls && form_.calls->has_channels))
    channels_.emplace(ChannelForm{form_.calls != nullptr, form_.has_thoughts, raw_});
}

std::vector<MessagePart> MessageReader::add(std::string_view text) {
  if (channels_) return channels_->add(text);
  pending_ += text;
  while (step()) {
  }
  return std::exchange(out_, {});
}

std::vector<MessagePart> MessageReader::finish() {
  if (channels_) return channels_->finish();
  is_over_ = true;
  while (step()) {
  }
  return std::exchange(out_, {});
}

void MessageReader::emit(MessagePart::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (kind == MessagePart::Kind::kText) is_first_ = false;
  const int call = kind == MessagePart::Kind::kArguments ? calls_ - 1 : 0;
  if (!out_.empty() && out_.back().kind == kind && out_.back().call == call)
    out_.back().text += text;
  else
    out_.push_back({kind, std::string(text), call});
}

void MessageReader::begin_call(std::string_view name) {
  out_.push_back({MessagePart::Kind::kCall, std::string(name), calls_++});
  tag_has_call_ = true;
  raw_.clear();
}

// Moves on by so many bytes, which are text again if no call comes of them.
void MessageReader::take(size_t bytes) {
  if (!tag_has_call_) raw_ += std::string_view(pending_).substr(0, bytes);
  pending_.erase(0, bytes);
}

// Passes over the characters of `which`. False: nothing is left.
bool MessageReader::skip(std::string_view which) {
  take(std::min(pending_.find_first_not_of(which), pending_.size()));
  return !pending_.empty();
}

// Passes over the space before a text or thought. False: nothing else has come.
bool MessageReader::skip_lead() {
  if (!skips_space_) return true;
  pending_ = without_lead(pending_);
  skips_space_ = pending_.empty();
  return !skips_space_;
}

bool MessageReader::begin_arguments() {
  depth_ = 0;
  in_string_ = is_escaped_ = false;
  state_ = State::kArguments;
  return true;
}

bool MessageReader::to_text() {
  state_ = State::kText;
  skips_space_ = tag_has_call_;
  return true;
}

// What was taken for a call is none.
bool MessageReader::give_up_call() {
  if (!tag_has_call_) emit(MessagePart::Kind::kText, raw_);
  raw_.clear();
  // What follows is text, and none of it is looked at again as a call where the output as a whole
  // would have been.
  const bool tells_rest = form_.calls->trigger.empty() && !pending_.empty();
  if (tells_rest) emit(MessagePart::Kind::kText, std::exchange(pending_, {}));
  to_text();
  if (tells_rest) skips_space_ = false;  // the text has begun: space that comes later is its own
  return true;
}

// One step of what has come; false: nothing more can be said.
bool MessageReader::step() {
  switch (state_) {
    case State::kStart: return step_start();
    case State::kThought: return step_thought();
    case State::kText: return step_text();
    case State::kBeforeCall: return step_before_call();
    case State::kObject: return step_object();
    case State::kName: return step_name();
    case State::kArguments: return step_arguments();
    case State::kTagged: return step_tagged();
    case State::kObjectRest: return step_object_rest();
    case State::kTail: return step_tail();
  }
  return false;
}

bool MessageReader::step_start() {
  const std::string_view text = without_lead(pending_);
  if (!is_over_ && (text.empty() || may_become(text, kBeginThought))) return false;
  if (!text.starts_with(kBeginThought)) {
    state_ = State::kText;
    return true;
  }
  pending_ = text.substr(kBeginThought.size());
  state_ = State::kThought;
  skips_space_ = true;
  return true;
}

bool MessageReader::step_thought() {
  if (!skip_lead()) return false;
  const size_t end = pending_.find(kEndThought);
  const std::string_view thought = std::string_view(pending_).substr(0, end);
  if (end != std::string::npos) {
    emit(MessagePart::Kind::kThought, thought.substr(0, length_without_trail(thought)));
    pending_.erase(0, end + kEndThought.size());
    state_ = State::kText;
    skips_space_ = true;
    return true;
  }
  size_t certain = pending_.size() - (is_over_ ? 0 : end_like(pending_, kEndThought));
  certain = length_without_trail(thought.substr(0, certain));
  emit(MessagePart::Kind::kThought, thought.substr(0, certain));
  pending_.erase(0, certain);
  return false;
}

bool MessageReader::step_text() {
  if (!skip_lead()) return false;
  if (!form_.calls) {
    emit(MessagePart::Kind::kText, std::exchange(pending_, {}));
    return false;
  }
  const std::string_view trigger = form_.calls->trigger;
  if (trigger.empty()) return step_whole_output();
  const size_t at = pending_.find(trigger);
  const std::string_view text = std::string_view(pending_).substr(0, at);
  if (at != std::string::npos) {
    emit(MessagePart::Kind::kText, text.substr(0, length_without_trail(text)));
    raw_ = text.substr(length_without_trail(text));
    raw_ += trigger;
    pending_.erase(0, at + trigger.size());
    tag_has_call_ = false;
    state_ = State::kBeforeCall;
    return true;
  }
  size_t certain = pending_.size();
  if (!is_over_)  // space before a call is no text
    certain = length_without_trail(text.substr(0, certain - end_like(pending_, trigger)));
  emit(MessagePart::Kind::kText, text.substr(0, certain));
  pending_.erase(0, certain);
  return false;
}

// Without a trigger: an output that begins as a call, or text to its end.
bool MessageReader::step_whole_output() {
  std::string_view text = without_lead(pending_);
  const bool waits = text.empty() || may_become(text, kPythonTag);
  if (is_first_ && calls_ == 0 && waits && !is_over_) return false;
  if (text.starts_with(kPythonTag)) text = without_lead(text.substr(kPythonTag.size()));
  if (is_first_ && calls_ == 0 && text.empty() && !is_over_) return false;
  if (is_first_ && calls_ == 0 && text.starts_with('{')) {
    tag_has_call_ = false;
    state_ = State::kBeforeCall;
    take(static_cast<size_t>(text.data() - pending_.data()));
    return true;
  }
  emit(MessagePart::Kind::kText, std::exchange(pending_, {}));
  return false;
}

bool MessageReader::step_before_call() {
  if (!form_.calls) return to_text();
  const ToolFormat& format = *form_.calls;
  if (!skip(format.is_json ? " \t\r\n,;[" : kJsonSpace)) {
    if (is_over_) give_up_call();
    return false;
  }
  const std::string_view close = without_lead(format.close);
  if (!close.empty() && pending_.starts_with(close)) {
    take(close.size());
    return tag_has_call_ ? to_text() : give_up_call();
  }
  if (may_become(pending_, close)) {
    if (is_over_ && tag_has_call_) pending_.clear();
    if (!is_over_ || tag_has_call_) return false;
  }
  if (format.is_json) {
    if (!pending_.starts_with('{')) return give_up_call();
    state_ = State::kObject;
    return true;
  }
  if (format.head.empty() || !format.tagged.key_begin.empty()) {
    if (tag_has_call_) return to_text();  // each call has a trigger of its own
  }
  if (format.head.empty()) {
    state_ = State::kName;
    return true;
  }
  if (may_become(pending_, format.head) && !is_over_) return false;
  if (!pending_.starts_with(format.head)) return give_up_call();
  take(format.head.size());
  state_ = State::kName;
  return true;
}

bool MessageReader::may_be_called(const std::string& name) const {
  return !form_.calls->trigger.empty() || form_.names.empty() ||
         std::find(form_.names.begin(), form_.names.end(), name) != form_.names.end();
}

bool MessageReader::step_object() {
  ObjectHead head = scan_object(pending_);
  if (!head.name.empty() && !may_be_called(head.name)) head.found = ObjectHead::Found::kNoCall;
  switch (head.found) {
    case ObjectHead::Found::kWaits:
      if (!is_over_) return false;
      take(pending_.size());
      return give_up_call();
    case ObjectHead::Found::kNoCall:
      if (!tag_has_call_) take(1);
      return give_up_call();
    case ObjectHead::Found::kArguments:
      begin_call(head.name);
      pending_.erase(0, head.at);
      return begin_arguments();
    case ObjectHead::Found::kEnd: break;
  }
  begin_call(head.name);
  // Some write the arguments as JSON within a string.
  const auto text = string_of(head.arguments);
  emit(MessagePart::Kind::kArguments, head.arguments.empty() ? "{}"
                                      : text                 ? std::string_view(*text)
                                                             : head.arguments);
  pending_.erase(0, head.at);
  state_ = State::kBeforeCall;
  return true;
}

bool MessageReader::step_name() {
  if (!form_.calls->tagged.key_begin.empty()) return step_tagged_name();
  const size_t end = pending_.find(form_.calls->middle);
  if (end == std::string::npos && !is_over_ &&
      pending_.size() < kLongestName + form_.calls->middle.size())
    return false;
  if (end == std::string::npos || end > kLongestName) return give_up_call();
  const std::string_view all = pending_;
  const std::string_view arguments = without_lead(all.substr(end + form_.calls->middle.size()));
  if (arguments.empty() && !is_over_) return false;
  // Some of Mistral's models put an id between name and arguments.
  const std::string_view before = all.substr(0, std::min(end, all.find(kCallId)));
  std::string_view name = without_lead(before.substr(0, length_without_trail(before)));
  if (!form_.calls->id_begin.empty()) name = name_in_call_id(*form_.calls, name);
  if (name.empty() || !arguments.starts_with('{')) return give_up_call();
  begin_call(name);
  pending_ = std::string(arguments);
  return begin_arguments();
}

// Goes on through JSON to where `depth_` falls to 0: the bytes up to there, or all.
size_t MessageReader::scan_json(bool& has_ended) {
  size_t at = 0;
  for (has_ended = false; at < pending_.size() && !has_ended; ++at) {
    const char c = pending_[at];
    if (is_escaped_)
      is_escaped_ = false;
    else if (in_string_ && c == '\\')
      is_escaped_ = true;
    else if (c == '"')
      in_string_ = !in_string_;
    else if (!in_string_ && (c == '{' || c == '['))
      ++depth_;
    else if (!in_string_ && (c == '}' || c == ']'))
      has_ended = --depth_ == 0;
  }
  return at;
}

bool MessageReader::step_arguments() {
  bool has_ended = false;
  const size_t bytes = scan_json(has_ended);
  emit(MessagePart::Kind::kArguments, std::string_view(pending_).substr(0, bytes));
  pending_.erase(0, bytes);
  if (!has_ended) return false;
  depth_ = 1;  // the object around them
  state_ = form_.calls->is_json ? State::kObjectRest : State::kTail;
  return true;
}

// The name goes up to the end of its mark, or to the mark behind it.
bool MessageReader::step_tagged_name() {
  const ToolFormat& format = *form_.calls;
  const bool has_mark = !format.head.empty();
  const size_t end = pending_.find(has_mark ? '>' : '<');
  if (end == std::string::npos && !is_over_ && pending_.size() <= kLongestName) return false;
  const std::string_view all = pending_;
  const std::string_view before = all.substr(0, std::min(end, all.size()));
  const std::string_view name = without_lead(before.substr(0, length_without_trail(before)));
  const bool is_short = end <= kLongestName;
  const bool is_name = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
  if (end == std::string::npos || name.empty() || !is_short || !is_name) {
    if (is_over_) take(pending_.size());
    return give_up_call();
  }
  if (!has_mark) {
    const std::string_view rest = all.substr(end);
    const std::string_view marks[] = {format.tagged.key_begin, format.close};
    const bool is_call = std::any_of(std::begin(marks), std::end(marks),
                                     [&](auto mark) { return rest.starts_with(mark); });
    const bool may_be = std::any_of(std::begin(marks), std::end(marks),
                                    [&](auto mark) { return may_become(rest, mark); });
    if (!is_call && may_be && !is_over_) return false;
    if (!is_call) {
      if (is_over_) take(pending_.size());
      return give_up_call();
    }
  }
  const std::string called(name);
  const size_t taken = has_mark ? end + 1 : end;
  begin_call(called);
  pending_.erase(0, taken);
  const auto schema = form_.parameters.find(called);
  tagged_.emplace(format,
                  schema == form_.parameters.end() ? nlohmann::ordered_json() : schema->second);
  state_ = State::kTagged;
  return true;
}

bool MessageReader::step_tagged() {
  std::string json;
  const bool goes_on = tagged_->step(pending_, is_over_, json);
  emit(MessagePart::Kind::kArguments, json);
  if (tagged_->has_ended()) state_ = State::kTail;
  return goes_on;
}

bool MessageReader::step_object_rest() {
  bool has_ended = false;
  pending_.erase(0, scan_json(has_ended));
  if (has_ended) state_ = State::kBeforeCall;
  return has_ended;
}

bool MessageReader::step_tail() {
  const std::string_view tail = without_lead(form_.calls->tail);
  if (!tail.empty()) {
    const std::string_view text = without_lead(pending_);
    if ((text.empty() || may_become(text, tail)) && !is_over_) return false;
    pending_ = std::string(text.starts_with(tail)   ? text.substr(tail.size())
                           : may_become(text, tail) ? std::string_view{}
                                                    : text);
  }
  state_ = State::kBeforeCall;
  return true;
}

}  // namespace sluice::chat
