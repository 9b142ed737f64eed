#pragma once
// How models write calls of tools. The format follows from the chat template, for it is what the
// template shows them. Pure, thread safe.
//
//   text before  TRIGGER open  head NAME middle ARGUMENTS tail  between ...  close
//
// hermes (Qwen2.5, Qwen3, Hermes):
//   <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>
//
// kimi_k2 has an id in place of NAME: functions.add:0
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/chat_template.h"

namespace sluice::chat {

/// Arguments that are no JSON: names and values between marks. A text is written as it is, anything
/// else as JSON.
///
///   key_begin NAME key_end after_key value_begin around VALUE around value_end after ...
struct TaggedArguments {
  std::string_view key_begin, key_end;
  std::string_view after_key;  ///< white space
  std::string_view value_begin;
  std::string_view around;  ///< white space that is no part of the value
  std::string_view value_end;
  std::string_view after;  ///< white space
};

/// A form of calls.
struct ToolFormat {
  const char* name;
  /// What a call begins with, often one token; empty: the whole output is calls, if it begins as
  /// one.
  std::string_view trigger;
  std::string_view open, head, middle, tail, between, close;
  std::string_view next;  ///< between close and the next trigger
  bool is_json = true;    ///< head, middle and tail are an object's; its keys come in any order
  TaggedArguments tagged = {};  ///< empty: arguments are JSON
  bool has_channels = false;    ///< answers are messages in channels
  bool is_list = false;         ///< calls follow one another before `close`, with nothing between
  int id_length = 0;            ///< ids are so many letters and digits; 0: "call_" and 24
  /// Not empty: calls are written by their ids, which are this, the name, ":" and the call's number
  /// in the conversation.
  std::string_view id_begin = {};
};

/// The format of that name, or null. "none" is none.
const ToolFormat* find_tool_format(std::string_view name);
/// The id of a call, in a format that has an id_begin. `number`: calls before it, of earlier
/// messages too.
std::string numbered_call_id(const ToolFormat& format, std::string_view name, int64_t number);
/// The function's name in such an id, whatever its number; a text that is no such id is the name.
std::string_view name_in_call_id(const ToolFormat& format, std::string_view id);
/// The names that find_tool_format() knows.
std::vector<std::string> tool_format_names();
/// What the template has its model write; null: it shows no tools, or in a format not known here.
const ToolFormat* tool_format_of(const ChatTemplateSource& source);
/// Whether the model's answers are messages in channels, as those of gpt-oss are.
bool has_channels(const ChatTemplateSource& source);
/// Whether the model thinks before it answers: between <think> and </think>, or in a channel.
bool has_thoughts(const ChatTemplateSource& source);

/// A function that a model may call.
struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  ///< a JSON schema; null: none was given
  bool is_strict = false;             ///< arguments must match the schema
};

/// When a guide holds the answer to calls.
enum class ToolGuideUse : uint8_t {
  kOffered,  ///< text, until a call begins
  kForced    ///< calls from the start: the prompt ends with the trigger
};
/// What an answer may be instead of calls.
struct ToolAlternative {
  std::string schema;  ///< of JSON; empty: any text
  bool is_strict = false;
};
/// What the output may be once a call has begun, as sampling::GuideKind::kCalls reads it, or from
/// its start where `otherwise` has a schema. `many`: more than one call.
std::string tool_guide(const ToolFormat& format, const std::vector<Tool>& tools, ToolGuideUse use,
                       bool many, const ToolAlternative& otherwise = {});

}  // namespace sluice::chat
