#include "tools/shown_answer.h"

#include <utility>

namespace sluice::tools {

namespace {
constexpr const char* kFaint = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";
}  // namespace

ShownAnswer::ShownAnswer(chat::MessageForm form, Thoughts thoughts)
    : reader_(std::move(form)), thoughts_(thoughts) {}

// Ends what was shown before, and begins the next; a blank line is between a thought and what
// follows it.
void ShownAnswer::go_to(Place place, std::string& out) {
  if (place == place_ && place != Place::kCall) return;
  if (place_ == Place::kThought && thoughts_ == Thoughts::kFaint) {
    out += kPlain;
    if (place != Place::kNowhere) out += "\n\n";
  }
  if (place_ == Place::kCall) {
    out += "]";
    text_ += "]";
  }
  const bool is_begun = place_ == Place::kText || place_ == Place::kCall;
  if (is_begun && (place == Place::kText || place == Place::kCall)) {
    out += "\n";
    text_ += "\n";
  }
  if (place == Place::kThought && thoughts_ == Thoughts::kFaint) {
    if (is_begun) out += "\n";
    out += kFaint;
  }
  place_ = place;
}

std::string ShownAnswer::shown(const std::vector<chat::MessagePart>& parts) {
  using Kind = chat::MessagePart::Kind;
  std::string out;
  for (const chat::MessagePart& part : parts) {
    if (part.kind == Kind::kThought) {
      if (part.text.empty()) continue;
      go_to(Place::kThought, out);
      if (thoughts_ == Thoughts::kFaint) out += part.text;
      continue;
    }
    std::string words = part.text;
    if (part.kind == Kind::kText && words.empty()) continue;
    if (part.kind == Kind::kText) go_to(Place::kText, out);
    if (part.kind == Kind::kCall) {
      go_to(Place::kCall, out);
      words = "[calls " + words + " ";
    }
    out += words;
    text_ += words;
  }
  return out;
}

std::string ShownAnswer::add(std::string_view text) { return shown(reader_.add(text)); }

std::string ShownAnswer::finish() {
  std::string out = shown(reader_.finish());
  go_to(Place::kNowhere, out);
  return out;
}

}  // namespace sluice::tools
