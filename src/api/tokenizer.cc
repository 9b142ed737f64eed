#include <sluice/tokenizer.h>

#include "src/app/model_tokenizer.h"
#include "src/text/stream_decoder.h"

namespace sluice {

Tokenizer Tokenizer::load(const std::filesystem::path& path, const std::string& pretokenizer) {
  return Tokenizer(std::shared_ptr<const text::Tokenizer>(app::need_tokenizer(path, pretokenizer)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool adds_special) const {
  return impl_->encode(text, adds_special ? text::AddSpecial::kYes : text::AddSpecial::kNo);
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool skips_special) const {
  return impl_->decode(tokens, skips_special ? text::SkipSpecial::kYes : text::SkipSpecial::kNo);
}

int32_t Tokenizer::vocabulary() const { return impl_->vocab_size(); }
std::optional<int32_t> Tokenizer::find(std::string_view token) const { return impl_->find(token); }
std::optional<int32_t> Tokenizer::begin_token() const { return impl_->bos(); }
std::optional<int32_t> Tokenizer::end_token() const { return impl_->eos(); }

TextStream::TextStream(const Tokenizer& tokenizer, bool continues)
    : tokenizer_(tokenizer.impl_),
      decoder_(std::make_unique<text::StreamDecoder>(
          *tokenizer_, text::SkipSpecial::kYes,
          continues ? text::StreamDecoder::Position::kContinues
                    : text::StreamDecoder::Position::kBegins)) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;

std::string TextStream::push(int32_t token) { return decoder_->push(token); }
std::string TextStream::finish() { return decoder_->finish(); }

}  // namespace sluice
