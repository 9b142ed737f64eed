#include "src/serve/translation.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/jobs/request_fields.h"
#include "src/jobs/wishes.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr std::string_view kOwnFields[] = {"min_p",
                                           "typical_p",
                                           "top_n_sigma",
                                           "xtc_probability",
                                           "xtc_threshold",
                                           "mirostat",
                                           "mirostat_tau",
                                           "mirostat_eta",
                                           "dry_multiplier",
                                           "dry_base",
                                           "dry_allowed_length",
                                           "dry_penalty_last_n",
                                           "dry_sequence_breakers",
                                           "seed",
                                           "stop_token_ids",
                                           "min_tokens",
                                           "ignore_eos",
                                           "logit_bias",
                                           "repetition_penalty",
                                           "presence_penalty",
                                           "frequency_penalty",
                                           "priority",
                                           "chat_template_kwargs",
                                           "truncate_prompt_tokens"};

[[noreturn]] void refuse_kind(const std::string& where, const ordered_json& value,
                              const char* wanted) {
  refuse_field(field_of(where),
               fmt::format("{} is {}; it must be {}", where, jobs::describe(value), wanted));
}
}  // namespace

ApiError renamed(ApiError error, std::span<const FieldName> names) {
  for (const FieldName& name : names) {
    if (error.param != name.chat) continue;
    const size_t length = name.chat.size();
    const bool begins = error.message.starts_with(name.chat) &&
                        (error.message.size() == length ||
                         (std::isalnum(static_cast<unsigned char>(error.message[length])) == 0 &&
                          error.message[length] != '_'));
    if (begins) error.message.replace(0, length, name.caller);
    error.param = name.caller;
    break;
  }
  return error;
}

void refuse_field(const std::string& field, const std::string& message) {
  throw ApiError{400, message, "", field, 0};
}
void refuse_unsupported(const std::string& field, const std::string& message) {
  throw ApiError{400, message, "unsupported", field, 0};
}
void pass_over_or_refuse(const std::string& field, const std::string& message) {
  if (!jobs::Wishes::pass_over(message)) refuse_unsupported(field, message);
}
void refuse_unknown(const std::string& field) {
  try {
    jobs::refuse_unknown_field(field);
  } catch (const jobs::Refusal& refusal) {
    refuse_unsupported(refusal.param, refusal.message);
  }
}

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}
bool is_own_field(std::string_view name) { return is_one_of(name, kOwnFields); }

std::string field_of(const std::string& where) {
  return where.substr(0, where.find_first_of("[."));
}

const ordered_json& need_object(const std::string& where, const ordered_json& value) {
  if (!value.is_object()) refuse_kind(where, value, "an object");
  return value;
}
const ordered_json& need_list(const std::string& where, const ordered_json& value) {
  if (!value.is_array()) refuse_kind(where, value, "a list");
  return value;
}
const std::string& need_text(const std::string& where, const ordered_json& value) {
  if (!value.is_string()) refuse_kind(where, value, "a string");
  return value.get_ref<const std::string&>();
}
bool need_flag(const std::string& where, const ordered_json& value) {
  if (!value.is_boolean()) refuse_kind(where, value, "true or false");
  return value.get<bool>();
}

const std::string& need_text_of(const std::string& where, const ordered_json& object,
                                const char* key) {
  const ordered_json* value = find_value(object, key);
  if (!value) refuse_field(field_of(where), fmt::format("{} has no \"{}\"", where, key));
  return need_text(fmt::format("{}.{}", where, key), *value);
}

void need_keys(const std::string& where, const ordered_json& object,
               std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items())
    if (!value.is_null() && std::find(known.begin(), known.end(), key) == known.end())
      pass_over_or_refuse(field_of(where), fmt::format("{}.{} is not supported here; leave it out",
                                                       where, key.substr(0, 100)));
}

const ordered_json* find_value(const ordered_json& object, std::string_view key) {
  const auto at = object.find(std::string(key));  // older libraries take no views
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

ordered_json text_part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

}  // namespace sluice::serve
