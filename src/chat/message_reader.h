#pragma once
// Reads a model's answer as it comes: thoughts, text, and calls of tools, each in the form that an
// interface gives it. What turns out to be no call stays text. One thread.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/channel_reader.h"
#include "src/chat/message_part.h"
#include "src/chat/tagged_arguments.h"
#include "src/chat/tool_format.h"

namespace sluice::chat {

/// What an answer may hold.
struct MessageForm {
  const ToolFormat* calls = nullptr;  ///< null: there are none
  /// Where nothing but the call itself tells that it is one: calls of others are text. None: any.
  std::vector<std::string> names;
  /// By name: schemas of the tools, for forms whose arguments are no JSON.
  std::map<std::string, nlohmann::ordered_json> parameters;
  bool has_thoughts = false;
  bool begins_in_thought = false;  ///< the prompt ends with <think>
  bool begins_in_call = false;     ///< the prompt ends with the calls' trigger
  int64_t calls_before = 0;        ///< in the conversation, for formats whose ids have numbers
  bool has_channels = false;       ///< of harmony; so has an answer in its form of calls
};

class MessageReader {
 public:
  explicit MessageReader(MessageForm form);

  /// What is certain once `text` (whole characters) has come.
  std::vector<MessagePart> add(std::string_view text);
  /// The rest, at the answer's end.
  std::vector<MessagePart> finish();
  /// Calls so far.
  int calls() const noexcept { return channels_ ? channels_->calls() : calls_; }

 private:
  enum class State : uint8_t {
    kStart,  // thoughts may begin
    kThought,
    kText,
    kBeforeCall,  // behind the trigger, or behind a call
    kObject,      // in a call that is an object, before its arguments
    kName,
    kArguments,
    kTagged,      // in arguments that are no JSON
    kObjectRest,  // behind the arguments
    kTail
  };

  bool step();
  bool step_start();
  bool step_thought();
  bool step_text();
  bool step_whole_output();
  bool step_before_call();
  bool step_object();
  bool step_name();
  bool step_arguments();
  bool step_tagged_name();
  bool step_tagged();
  bool step_object_rest();
  bool step_tail();

  void emit(MessagePart::Kind kind, std::string_view text);
  void begin_call(std::string_view name);
  void take(size_t bytes);
  bool skip(std::string_view which);
  bool skip_lead();
  bool begin_arguments();
  size_t scan_json(bool& has_ended);
  bool give_up_call();
  bool may_be_called(const std::string& name) const;
  bool to_text();

  MessageForm form_;
  State state_ = State::kStart;
  std::string pending_;   // not decided
  std::string raw_;       // taken since the trigger, while no call is certain
  bool is_first_ = true;  // nothing of the text has been told
  bool skips_space_ = false;
  bool tag_has_call_ = false;
  bool is_over_ = false;  // no more comes
  int calls_ = 0;
  int depth_ = 0;  // of JSON, in kArguments and kObjectRest
  bool in_string_ = false, is_escaped_ = false;
  std::optional<TaggedReader> tagged_;     // in kTagged
  std::optional<ChannelReader> channels_;  // reads all of it
  std::vector<MessagePart> out_;
};

}  // namespace sluice::chat
