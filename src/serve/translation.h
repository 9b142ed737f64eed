#pragma once
// What the mappings of other interfaces onto a chat request share: readers of fields that name what
// is wrong with them, and errors told in the caller's words. Pure, thread safe.
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "src/serve/api_error.h"

namespace sluice::serve {

/// A field that callers of another interface call otherwise.
struct FieldName {
  std::string_view chat;    ///< in /v1/chat/completions
  std::string_view caller;  ///< there
};

/// The error with the caller's names in `param` and at the beginning of the message.
ApiError renamed(ApiError error, std::span<const FieldName> names);
/// Runs `read`; an ApiError of its leaves with the caller's names.
template <typename Read>
auto with_names(std::span<const FieldName> names, const Read& read) {
  try {
    return read();
  } catch (const ApiError& error) {
    throw renamed(error, names);
  }
}

/// A 400 that names the field.
[[noreturn]] void refuse_field(const std::string& field, const std::string& message);
/// The same for what is known and not here.
[[noreturn]] void refuse_unsupported(const std::string& field, const std::string& message);
/// The same, unless it is passed over (jobs::Wishes): the answer makes sense without it.
void pass_over_or_refuse(const std::string& field, const std::string& message);
/// The same for a field that nobody knows.
void refuse_unknown(const std::string& field);

/// Whether the field is one of a chat request that is ours, not of the interface it came by, and
/// called so in each: sampling beyond theirs, and what templates and the queue are told.
bool is_own_field(std::string_view name);
/// Whether `name` is one of `names`.
bool is_one_of(std::string_view name, std::span<const std::string_view> names);

/// The field that `where` begins with: of "input[2].content" it is "input".
std::string field_of(const std::string& where);
/// `where` in these: the field as messages call it, "input[2].content"; its
/// field is the error's param. Each throws ApiError when the value is of another type.
const nlohmann::ordered_json& need_object(const std::string& where,
                                          const nlohmann::ordered_json& value);
const nlohmann::ordered_json& need_list(const std::string& where,
                                        const nlohmann::ordered_json& value);
const std::string& need_text(const std::string& where, const nlohmann::ordered_json& value);
bool need_flag(const std::string& where, const nlohmann::ordered_json& value);
/// The object's text of that key, which has to be there.
const std::string& need_text_of(const std::string& where, const nlohmann::ordered_json& object,
                                const char* key);
/// Refuses keys that are none of `known`; those that are null count as absent.
void need_keys(const std::string& where, const nlohmann::ordered_json& object,
               std::initializer_list<std::string_view> known);
/// The value of that key; null where it is absent or null.
const nlohmann::ordered_json* find_value(const nlohmann::ordered_json& object,
                                         std::string_view key);
/// {"type": "text", "text": ...}: a part of a chat message's content.
nlohmann::ordered_json text_part(const std::string& text);

}  // namespace sluice::serve
