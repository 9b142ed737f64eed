#pragma once
// config.json with checked access: every getter names the field, what it holds and what it should
// hold in its error.
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// A parsed config.json, asked key by key; errors name file and key.
class ModelConfig {
 public:
  /// Parses `json_text`; `origin` (a path) appears in errors. Python's Infinity and NaN are read as
  /// transformers 5 writes them, {"__float__": "Infinity"}. Errors: kFile when it is not a JSON
  /// object.
  ModelConfig(std::string_view json_text, std::string origin);
  ~ModelConfig();
  ModelConfig(ModelConfig&&) noexcept;
  ModelConfig& operator=(ModelConfig&&) noexcept;

  bool has(std::string_view key) const;      ///< present and not null
  bool is_null(std::string_view key) const;  ///< present and null
  int64_t integer(std::string_view key, int64_t smallest, int64_t largest) const;
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t smallest,
                     int64_t largest) const;
  double number(std::string_view key) const;  ///< finite
  double number_or(std::string_view key, double fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string text_or(std::string_view key, std::string fallback) const;
  /// A string, or an integer as one.
  std::string text_or_number(std::string_view key, std::string fallback) const;
  /// One integer or a list of them; empty when absent.
  std::vector<int32_t> integers(std::string_view key) const;
  /// The numbers of a list; empty when absent. Finite, unless they may be infinite.
  std::vector<double> numbers(std::string_view key, bool may_be_infinite = false) const;
  /// The strings of a list; empty when absent.
  std::vector<std::string> texts(std::string_view key) const;
  /// A nested object (rope_scaling), or nothing when absent or null.
  std::optional<ModelConfig> object(std::string_view key) const;
  /// The same with values of this config: they take the object's place for `winning` keys, and for
  /// `filling` keys where the object lacks one.
  std::optional<ModelConfig> object(std::string_view key,
                                    std::initializer_list<std::string_view> winning,
                                    std::initializer_list<std::string_view> filling) const;
  /// A copy, which has the values of `json_text` (an object) where this has none.
  ModelConfig with_defaults(std::string_view json_text) const;
  /// A copy, which has the values of `json_text` (an object) whatever this has.
  ModelConfig with_values(std::string_view json_text) const;
  /// Whether both have the same value under `key`.
  bool agrees_with(const ModelConfig& other, std::string_view key) const;

  /// The whole of it as JSON.
  std::string text() const;
  /// The names of what is present and not null.
  std::vector<std::string> keys() const;
  /// Errors: kFile naming the first key that is neither in `known` nor null: what it asks for would
  /// not be done. `mend` is the error's.
  void require_known(std::initializer_list<std::string_view> known, const std::string& mend) const;

  const std::string& origin() const noexcept { return origin_; }
  [[noreturn]] void refuse(const std::string& what, const std::string& mend) const;

 private:
  struct Json;
  ModelConfig(std::unique_ptr<Json> json, std::string origin);
  std::unique_ptr<Json> json_;
  std::string origin_;
};

}  // namespace sluice
