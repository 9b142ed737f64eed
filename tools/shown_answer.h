#pragma once
// An answer of `sluice chat` as a person sees it: thoughts apart from the text, calls of tools as
// such, and none of the marks that models write around them. One thread.
#include <string>
#include <string_view>

#include "src/chat/message_reader.h"

namespace sluice::tools {

class ShownAnswer {
 public:
  /// Where thoughts go: faint in a terminal that can show them so, else nowhere.
  enum class Thoughts : uint8_t { kHidden, kFaint };
  ShownAnswer(chat::MessageForm form, Thoughts thoughts);

  /// What to write once `text` (whole characters) has come; may be empty.
  std::string add(std::string_view text);
  /// The rest, at the answer's end or where it was cut.
  std::string finish();
  /// The answer without its thoughts: what the conversation keeps.
  const std::string& text() const noexcept { return text_; }

 private:
  enum class Place : uint8_t { kNowhere, kThought, kText, kCall };
  std::string shown(const std::vector<chat::MessagePart>& parts);
  void go_to(Place place, std::string& out);

  chat::MessageReader reader_;
  Thoughts thoughts_;
  Place place_ = Place::kNowhere;
  std::string text_;
};

}  // namespace sluice::tools
