#pragma once
// A GGUF file's keys with checked access, as families read them: every getter names the file and
// the key in its error. Refers to the checkpoint.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"

namespace sluice {

class GgufKeys {
 public:
  explicit GgufKeys(const io::Checkpoint& checkpoint);

  /// All names.
  std::vector<std::string> names() const;
  std::string text_or(const std::string& key, std::string fallback) const;
  bool has(const std::string& key) const;
  /// Nothing when absent. One for all layers may be written as a list of equal ones.
  std::optional<int64_t> integer(const std::string& key) const;
  int64_t need_integer(const std::string& key) const;
  /// From 1 to 2^20, of a key that begins with the architecture.
  int64_t need_size(const char* own) const;
  /// One for each of `count` layers: a list that has as many, or one for all; empty when absent.
  std::vector<int64_t> integers(const std::string& key, int64_t count) const;
  /// The same of true and false, of a list that may be longer.
  std::vector<bool> booleans(const std::string& key, int64_t count) const;
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<double> number(const std::string& key) const;

  /// "general.architecture", and what the names of its own keys begin with: "llama.".
  const std::string& architecture() const noexcept { return architecture_; }
  std::string prefix() const { return architecture_ + "."; }

  /// "bos_token_id" and "eos_token_id" of a config.json: a list where several tokens end answers.
  void add_ends(nlohmann::json& config) const;

  /// Null when there is none.
  const io::TensorEntry* tensor(const std::string& name) const { return checkpoint_.find(name); }
  /// Whether q of that layer has a bias, of its own or within one of q, k and v.
  bool has_attention_bias(int64_t layer = 0) const;
  /// The elements of a small f32 vector. Errors: kFile when it is none of `count`.
  std::vector<float> read_vector(const io::TensorEntry& tensor, int64_t count) const;

  [[noreturn]] void refuse(const std::string& problem, const std::string& mend) const;

 private:
  // Null when absent; an array is not what is wanted.
  const nlohmann::json* find(const std::string& key, const char* wanted) const;
  std::vector<int64_t> of_array(const std::string& key, const io::GgufArray& array) const;
  int64_t number_of(const std::string& key, const nlohmann::json& value) const;
  [[noreturn]] void wrong(const std::string& key, const char* wanted) const;

  const io::Checkpoint& checkpoint_;
  std::string where_;
  std::string architecture_;
};

}  // namespace sluice
