#pragma once
// Checked reading of tokenizer JSON: every error names the file and the field. For .cc files of
// this folder only.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sluice::text {

using Json = nlohmann::json;

/// A JSON value with its path in the file, "tokenizer.json: model.vocab".
struct Field {
  const Json* json;
  std::string path;

  bool has(std::string_view key) const;  ///< an object with that key, not null
  Field at(std::string_view key) const;  ///< errors when missing
  Field at(size_t index) const;
  size_t size() const { return json->size(); }
  bool is_array() const { return json->is_array(); }
  std::string text() const;
  int32_t integer() const;  ///< 0 .. INT32_MAX
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string text_or(std::string_view key, std::string fallback) const;
  std::string type() const { return at("type").text(); }
  [[noreturn]] void refuse(const std::string& what) const;
};

/// Parses; `origin` names the file. Errors: kFile.
Json parse_json(std::string_view text, const std::string& origin);

}  // namespace sluice::text
