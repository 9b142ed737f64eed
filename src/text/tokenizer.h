#pragma once
// Text to token ids and back, as Hugging Face does it for the same files: tokenizer.json,
// tokenizer.model (sentencepiece or Llama 3's tiktoken lines), Kimi's tiktoken.model, vocab.json +
// merges.txt. Immutable after loading, so any number of threads may use one.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// Whether the tokens that begin and end a text are added.
enum class AddSpecial {
  kNo,
  kYes
};  ///< whether encode() puts begin-of-text and the like round the text
enum class SkipSpecial { kNo, kYes };  ///< whether decode() leaves special tokens out

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// From a model folder or a tokenizer file; tokenizer_config.json beside it is read too. Errors:
  /// kFile with path, field and what to do.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& path);
  /// From the texts of tokenizer.json and (may be empty) tokenizer_config.json. Errors: kFile.
  static std::unique_ptr<Tokenizer> from_json(std::string_view tokenizer_json,
                                              std::string_view tokenizer_config_json = {});
  /// From the bytes of a tokenizer.json or tokenizer.model (its `name`) and (may be empty) of
  /// tokenizer_config.json; `origin` is what errors name. Errors: kFile.
  static std::unique_ptr<Tokenizer> from_file(const std::string& name, const std::string& bytes,
                                              const std::string& config, const std::string& origin);
  static bool exists(const std::filesystem::path& folder);

  /// Ids of `text`; bytes that are not UTF-8 are read as U+FFFD.
  virtual std::vector<int32_t> encode(std::string_view text, AddSpecial add) const = 0;
  /// Text of `ids`, valid UTF-8; ids without a token give nothing.
  virtual std::string decode(std::span<const int32_t> ids, SkipSpecial skip) const = 0;
  /// The bytes a token adds within a text; may be part of a character.
  virtual std::string token_bytes(int32_t id) const = 0;
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> find(std::string_view token) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  /// "BPE, 50265 tokens".
  virtual std::string description() const = 0;

  std::optional<int32_t> bos() const { return bos_; }
  std::optional<int32_t> eos() const { return eos_; }

 protected:
  std::optional<int32_t> bos_;
  std::optional<int32_t> eos_;
};

}  // namespace sluice::text
