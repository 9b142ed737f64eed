#include "src/text/json_fields.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace sluice::text {

void Field::refuse(const std::string& what) const {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", path, what),
              "download the tokenizer files again, or report this one");
}

bool Field::has(std::string_view key) const {
  if (!json->is_object()) return false;
  const auto it = json->find(std::string(key));
  return it != json->end() && !it->is_null();
}

Field Field::at(std::string_view key) const {
  if (!json->is_object()) refuse("not an object");
  const auto it = json->find(std::string(key));
  if (it == json->end()) refuse(fmt::format("\"{}\" is missing", key));
  return {&*it, fmt::format("{}.{}", path, key)};
}

Field Field::at(size_t index) const {
  if (!json->is_array()) refuse("not a list");
  if (index >= json->size()) refuse(fmt::format("has only {} elements", json->size()));
  return {&(*json)[index], fmt::format("{}[{}]", path, index)};
}

std::string Field::text() const {
  if (!json->is_string()) refuse("not a string");
  return json->get<std::string>();
}

int32_t Field::integer() const {
  if (!json->is_number_integer()) refuse("not a whole number");
  if (json->is_number_unsigned() ? json->get<uint64_t>() > INT32_MAX : json->get<int64_t>() < 0)
    refuse("outside 0..2147483647");
  return json->get<int32_t>();
}

bool Field::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const Field field = at(key);
  if (!field.json->is_boolean()) field.refuse("not true or false");
  return field.json->get<bool>();
}

std::string Field::text_or(std::string_view key, std::string fallback) const {
  return has(key) ? at(key).text() : fallback;
}

Json parse_json(std::string_view text, const std::string& origin) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kFile, fmt::format("{}: not valid JSON: {}", origin, error.what()),
                "download the file again");
  }
}

}  // namespace sluice::text
