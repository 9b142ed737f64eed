#pragma once
// A model's tokenizer: text to token ids and back, as Hugging Face does it for the same files. A
// handle; copies share it, any thread may use it.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

namespace text {
class Tokenizer;
class StreamDecoder;
}  // namespace text

class Tokenizer {
 public:
  /// Of a model folder, a GGUF file or a tokenizer file. `pretokenizer`: where a GGUF file names a
  /// rule of cutting text that is not known, the one to take (docs/gguf.md); empty: the file's.
  /// Errors: kFile; kUser for a `pretokenizer` that is not known or has no effect.
  static Tokenizer load(const std::filesystem::path& path, const std::string& pretokenizer = {});

  /// With what the model begins texts with, where `adds_special`. Bytes that are not UTF-8 are read
  /// as U+FFFD.
  std::vector<int32_t> encode(std::string_view text, bool adds_special = true) const;
  /// Bytes that are no UTF-8 become U+FFFD.
  std::string decode(std::span<const int32_t> tokens, bool skips_special = true) const;
  int32_t vocabulary() const;
  std::optional<int32_t> find(std::string_view token) const;
  std::optional<int32_t> begin_token() const;  ///< that begins a text; not all models have one
  std::optional<int32_t> end_token() const;    ///< that ends a text

 private:
  friend class TextStream;
  friend class Session;
  friend class Chat;
  explicit Tokenizer(std::shared_ptr<const text::Tokenizer> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const text::Tokenizer> impl_;
};

/// The text of one sequence while its tokens arrive; never gives out a part of a character.
class TextStream {
 public:
  /// `continues`: the text goes on after another (an answer after its prompt).
  explicit TextStream(const Tokenizer& tokenizer, bool continues = true);
  ~TextStream();
  TextStream(TextStream&&) noexcept;

  /// The text that `token` completes; may be empty.
  std::string push(int32_t token);
  /// The rest.
  std::string finish();

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::unique_ptr<text::StreamDecoder> decoder_;
};

}  // namespace sluice
