#include "src/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace sluice {

struct ModelConfig::Json {
  nlohmann::json value;
  const nlohmann::json* find(std::string_view key) const {
    const auto it = value.find(std::string(key));
    return it == value.end() || it->is_null() ? nullptr : &*it;
  }
};

namespace {
// A config nests a few levels; a million brackets would overflow the stack of whoever walks them.
constexpr int kDeepestNesting = 32;

bool nests_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepestNesting) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}
// Python writes words for what JSON has no numbers for.
std::string with_floats_as_objects(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      out += text.substr(i++, 2);
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    size_t length = 0;
    for (const std::string_view word : {"-Infinity", "Infinity", "NaN"})
      if (!in_string && length == 0 && text.substr(i).starts_with(word)) length = word.size();
    if (length > 0)
      out += fmt::format(R"({{"__float__": "{}"}})", text.substr(i, length));
    else
      out += text[i];
    i += length > 0 ? length - 1 : 0;
  }
  return out;
}

// A number, or what with_floats_as_objects() has made of one; else NaN.
double float_of(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_object() || value.size() != 1) return NAN;
  const auto word = value.find("__float__");
  if (word == value.end() || !word->is_string()) return NAN;
  return *word == "Infinity" ? INFINITY : *word == "-Infinity" ? -INFINITY : NAN;
}
}  // namespace

ModelConfig::ModelConfig(std::string_view json_text, std::string origin)
    : json_(std::make_unique<Json>()), origin_(std::move(origin)) {
  if (nests_too_deep(json_text))
    refuse("nested too deep for a config.json", "download config.json again from the model's page");
  json_->value =
      nlohmann::json::parse(with_floats_as_objects(json_text), nullptr, /*allow_exceptions=*/false);
  if (!json_->value.is_object())
    refuse("not a JSON object", "download config.json again from the model's page");
}

ModelConfig::ModelConfig(std::unique_ptr<Json> json, std::string origin)
    : json_(std::move(json)), origin_(std::move(origin)) {}
ModelConfig::~ModelConfig() = default;
ModelConfig::ModelConfig(ModelConfig&&) noexcept = default;
ModelConfig& ModelConfig::operator=(ModelConfig&&) noexcept = default;

void ModelConfig::refuse(const std::string& what, const std::string& mend) const {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", origin_, what), mend);
}

bool ModelConfig::has(std::string_view key) const { return json_->find(key) != nullptr; }

bool ModelConfig::is_null(std::string_view key) const {
  return !has(key) && json_->value.contains(std::string(key));
}

int64_t ModelConfig::integer(std::string_view key, int64_t smallest, int64_t largest) const {
  const nlohmann::json* value = json_->find(key);
  if (!value)
    refuse(fmt::format("\"{}\" is missing", key),
           "the file is not a complete Hugging Face config.json");
  if (!value->is_number_integer())
    refuse(fmt::format("\"{}\" is not a whole number", key), "mend the config.json");
  const bool is_huge =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = is_huge ? INT64_MAX : value->get<int64_t>();
  if (number < smallest || number > largest)
    refuse(fmt::format("\"{}\" is {}, outside {}..{}", key, number, smallest, largest),
           "mend the config.json");
  return number;
}

int64_t ModelConfig::integer_or(std::string_view key, int64_t fallback, int64_t smallest,
                                int64_t largest) const {
  return has(key) ? integer(key, smallest, largest) : fallback;
}

double ModelConfig::number(std::string_view key) const {
  const nlohmann::json* value = json_->find(key);
  if (!value)
    refuse(fmt::format("\"{}\" is missing", key),
           "the file is not a complete Hugging Face config.json");
  if (!value->is_number())
    refuse(fmt::format("\"{}\" is not a number", key), "mend the config.json");
  const double number = value->get<double>();
  if (!std::isfinite(number))
    refuse(fmt::format("\"{}\" is not finite", key), "mend the config.json");
  return number;
}

double ModelConfig::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

bool ModelConfig::boolean_or(std::string_view key, bool fallback) const {
  const nlohmann::json* value = json_->find(key);
  if (!value) return fallback;
  if (!value->is_boolean())
    refuse(fmt::format("\"{}\" is not true or false", key), "mend the config.json");
  return value->get<bool>();
}

std::string ModelConfig::text_or(std::string_view key, std::string fallback) const {
  const nlohmann::json* value = json_->find(key);
  if (!value) return fallback;
  if (!value->is_string())
    refuse(fmt::format("\"{}\" is not a string", key), "mend the config.json");
  return value->get<std::string>();
}

std::string ModelConfig::text_or_number(std::string_view key, std::string fallback) const {
  const nlohmann::json* value = json_->find(key);
  if (value && value->is_number_integer()) return std::to_string(value->get<int64_t>());
  return text_or(key, std::move(fallback));
}

std::vector<int32_t> ModelConfig::integers(std::string_view key) const {
  const nlohmann::json* value = json_->find(key);
  std::vector<int32_t> out;
  if (!value) return out;
  const auto take = [&](const nlohmann::json& element) {
    if (!element.is_number_integer() || element.get<int64_t>() < 0 ||
        element.get<int64_t>() > INT32_MAX)
      refuse(fmt::format("\"{}\" is not a token id or a list of them", key),
             "mend the config.json");
    out.push_back(element.get<int32_t>());
  };
  if (value->is_array())
    for (const nlohmann::json& element : *value) take(element);
  else
    take(*value);
  return out;
}

std::vector<double> ModelConfig::numbers(std::string_view key, bool may_be_infinite) const {
  const nlohmann::json* value = json_->find(key);
  std::vector<double> out;
  if (!value) return out;
  if (!value->is_array()) refuse(fmt::format("\"{}\" is not a list", key), "mend the config.json");
  for (const nlohmann::json& element : *value) {
    const double number = float_of(element);
    if (may_be_infinite ? std::isnan(number) : !std::isfinite(number))
      refuse(fmt::format("\"{}\" is not a list of numbers", key), "mend the config.json");
    out.push_back(number);
  }
  return out;
}

std::vector<std::string> ModelConfig::texts(std::string_view key) const {
  const nlohmann::json* value = json_->find(key);
  std::vector<std::string> out;
  if (!value) return out;
  if (!value->is_array()) refuse(fmt::format("\"{}\" is not a list", key), "mend the config.json");
  for (const nlohmann::json& element : *value) {
    if (!element.is_string())
      refuse(fmt::format("\"{}\" is not a list of strings", key), "mend the config.json");
    out.push_back(element.get<std::string>());
  }
  return out;
}

std::optional<ModelConfig> ModelConfig::object(std::string_view key) const {
  const nlohmann::json* value = json_->find(key);
  if (!value) return std::nullopt;
  if (!value->is_object())
    refuse(fmt::format("\"{}\" is not an object", key), "mend the config.json");
  auto nested = std::make_unique<Json>();
  nested->value = *value;
  return ModelConfig(std::move(nested), fmt::format("{}: {}", origin_, key));
}

std::optional<ModelConfig> ModelConfig::object(
    std::string_view key, std::initializer_list<std::string_view> winning,
    std::initializer_list<std::string_view> filling) const {
  std::optional<ModelConfig> out = object(key);
  if (!out) return out;
  for (const std::string_view name : winning)
    if (const nlohmann::json* value = json_->find(name))
      out->json_->value[std::string(name)] = *value;
  for (const std::string_view name : filling)
    if (const nlohmann::json* value = json_->find(name); value && !out->has(name))
      out->json_->value[std::string(name)] = *value;
  return out;
}

ModelConfig ModelConfig::with_defaults(std::string_view json_text) const {
  auto merged = std::make_unique<Json>();
  merged->value = nlohmann::json::parse(json_text);
  merged->value.update(json_->value);
  return ModelConfig(std::move(merged), origin_);
}

ModelConfig ModelConfig::with_values(std::string_view json_text) const {
  auto merged = std::make_unique<Json>();
  merged->value = json_->value;
  merged->value.update(nlohmann::json::parse(json_text));
  return ModelConfig(std::move(merged), origin_);
}

bool ModelConfig::agrees_with(const ModelConfig& other, std::string_view key) const {
  const nlohmann::json* mine = json_->find(key);
  const nlohmann::json* theirs = other.json_->find(key);
  return mine && theirs ? *mine == *theirs : mine == theirs;
}

std::string ModelConfig::text() const { return json_->value.dump(); }

std::vector<std::string> ModelConfig::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : json_->value.items())
    if (!value.is_null()) names.push_back(name);
  return names;
}

void ModelConfig::require_known(std::initializer_list<std::string_view> known,
                                const std::string& mend) const {
  for (const std::string& name : keys())
    if (std::find(known.begin(), known.end(), name) == known.end())
      refuse(fmt::format("\"{}\" is not known here, and what it asks for would not be done", name),
             mend);
}

}  // namespace sluice
