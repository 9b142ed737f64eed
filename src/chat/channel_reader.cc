#include "src/chat/channel_reader.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice::chat {

namespace {
using Kind = MessagePart::Kind;

constexpr std::string_view kMessage = "<|message|>", kChannel = "<|channel|>", kStart = "<|start|>";
constexpr std::string_view kToFunction = "to=functions.";
constexpr std::string_view kBodyEnds[] = {"<|end|>", "<|call|>", "<|return|>", kStart, kChannel};
constexpr std::string_view kHeaderBegins[] = {kChannel, kStart, "to="};
constexpr std::string_view kHeaderSpace = " \t\r\n";
constexpr size_t kLongestHeader = 1024;

bool has_begun(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

// A word behind `mark` in a header; empty where it is not there.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + mark.size());
  return rest.substr(0, rest.find_first_of(" <\t\r\n"));
}
}  // namespace

ChannelReader::ChannelReader(ChannelForm form) : form_(std::move(form)), pending_(form_.begun) {}

std::vector<MessagePart> ChannelReader::add(std::string_view text) {
  pending_ += text;
  while (step()) {
  }
  return std::exchange(out_, {});
}

std::vector<MessagePart> ChannelReader::finish() {
  is_over_ = true;
  while (step()) {
  }
  return std::exchange(out_, {});
}

bool ChannelReader::step() { return in_body_ ? step_body() : step_header(); }

void ChannelReader::emit(std::string_view text) {
  if (text.empty()) return;
  // Messages of one kind are told one behind the other.
  bool& has_some = kind_ == Kind::kThought ? has_thought_ : has_text_;
  const bool is_call = kind_ == Kind::kArguments;
  const bool is_new = is_empty_ && !is_call && std::exchange(has_some, true);
  is_empty_ = false;
  const int call = is_call ? calls_ - 1 : 0;
  const std::string piece = (is_new ? "\n\n" : "") + std::string(text);
  if (!out_.empty() && out_.back().kind == kind_ && out_.back().call == call)
    out_.back().text += piece;
  else
    out_.push_back({kind_, piece, call});
}

void ChannelReader::open(std::string_view header) {
  in_body_ = true;
  is_empty_ = true;
  const std::string_view name = word_behind(header, kToFunction);
  kind_ = word_behind(header, kChannel) == "analysis" && form_.has_thoughts ? Kind::kThought
                                                                            : Kind::kText;
  if (name.empty() || !form_.has_calls) return;
  out_.push_back({Kind::kCall, std::string(name), calls_++});
  kind_ = Kind::kArguments;
}

bool ChannelReader::step_header() {
  const size_t end = pending_.find(kMessage);
  const std::string_view all = pending_;
  const size_t first = std::min(all.find_first_not_of(kHeaderSpace), all.size());
  const std::string_view text = all.substr(first);
  const bool is_header = std::any_of(std::begin(kHeaderBegins), std::end(kHeaderBegins),
                                     [&](auto mark) { return text.starts_with(mark); });
  const bool may_be =
      text.empty() || std::any_of(std::begin(kHeaderBegins), std::end(kHeaderBegins),
                                  [&](auto mark) { return has_begun(text, mark); });
  if (is_header && end <= kLongestHeader) {
    open(all.substr(0, end));
    pending_.erase(0, end + kMessage.size());
    return true;
  }
  const bool waits =
      is_header ? end == std::string::npos && pending_.size() < kLongestHeader + kMessage.size()
                : may_be;
  if (waits) {
    if (is_over_) pending_.clear();
    return false;
  }
  open({});  // no header: text
  if (!is_header) return true;
  emit(pending_.substr(0, first + 1));  // a mark that begins no header
  pending_.erase(0, first + 1);
  return true;
}

bool ChannelReader::step_body() {
  size_t at = std::string::npos;
  std::string_view mark;
  for (const std::string_view one : kBodyEnds)
    if (const size_t found = pending_.find(one); found < at) {
      at = found;
      mark = one;
    }
  const std::string_view all = pending_;
  if (at != std::string::npos) {
    emit(all.substr(0, at));
    if (kind_ == Kind::kArguments && is_empty_) emit("{}");
    const bool begins_next = mark == kStart || mark == kChannel;
    pending_.erase(0, at + (begins_next ? 0 : mark.size()));
    in_body_ = false;
    return true;
  }
  size_t certain = pending_.size();
  const size_t last = all.rfind('<');
  const bool is_held = last != std::string_view::npos && !is_over_ &&
                       std::any_of(std::begin(kBodyEnds), std::end(kBodyEnds),
                                   [&](auto one) { return has_begun(all.substr(last), one); });
  if (is_held) certain = last;
  emit(all.substr(0, certain));
  pending_.erase(0, certain);
  return false;
}

}  // namespace sluice::chat
