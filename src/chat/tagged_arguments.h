#pragma once
// Arguments of a call that are no JSON but names and values between marks, read into JSON as they
// come: a text as its characters do, anything else when it has ended. One thread.
#include <string>
#include <string_view>

#include "src/chat/tool_format.h"

namespace sluice::chat {

/// Reads the arguments of one call.
class TaggedReader {
 public:
  /// `parameters`: the tool's schema, which says what is a text; null: it is not known.
  TaggedReader(const ToolFormat& format, nlohmann::ordered_json parameters);

  /// Takes what is certain from the beginning of `pending` and adds it to `json`. False: no more
  /// can be said until more has come. `is_over`: nothing more comes; what was cut short stays so.
  bool step(std::string& pending, bool is_over, std::string& json);
  /// Behind the last argument; what ends the call is still pending.
  bool has_ended() const noexcept { return state_ == State::kEnded; }

 private:
  enum class State : uint8_t { kBetween, kName, kBeforeValue, kText, kOther, kEnded };

  bool step_between(std::string& pending, bool is_over, std::string& json);
  bool step_name(std::string& pending, bool is_over, std::string& json);
  bool step_before_value(std::string& pending, bool is_over, std::string& json);
  bool step_value(std::string& pending, bool is_over, std::string& json);
  bool end(std::string& json);

  const ToolFormat& format_;
  const nlohmann::ordered_json parameters_;
  State state_ = State::kBetween;
  bool has_arguments_ = false;
  bool is_text_ = false;  // the value
  size_t searched_ = 0;   // bytes of the value that hold no end
};

/// Whether the tool's schema says that this parameter is a text, which is written as it is.
bool is_text_parameter(const nlohmann::ordered_json& parameters, const std::string& name);

}  // namespace sluice::chat
