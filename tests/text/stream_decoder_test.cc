#include "src/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "src/text/utf8.h"

namespace sluice::text {
namespace {

std::string stored_file(const std::string& path) {
  return std::string(SLUICE_FIXTURES) + "/" + path;
}

std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer, SkipSpecial::kYes);
  std::string text;
  for (int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_FALSE(first_invalid_utf8(piece)) << "half a character after token " << id;
    text += piece;
  }
  return text + decoder.finish();
}

TEST(StreamDecoder, PiecesAddUpToTheWholeText) {
  const std::string text = "Grüße 日本語 👩‍👩‍👧‍👦 and  spaces \n end";
  for (const char* path :
       {"tokenizers/opt", "tokenizers/qwen2", "models/stories260k/tokenizer.json",
        "models/stories260k/tokenizer.model"}) {
    const auto tokenizer = Tokenizer::load(stored_file(path));
    const auto ids = tokenizer->encode(text, AddSpecial::kYes);
    EXPECT_EQ(stream(*tokenizer, ids), tokenizer->decode(ids, SkipSpecial::kYes)) << path;
  }
}

TEST(StreamDecoder, NeverSplitsACharacterWhateverTheModelSays) {
  const auto tokenizer = Tokenizer::load(stored_file("tokenizers/opt"));
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(random() % 30);
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer->vocab_size()));
    EXPECT_EQ(stream(*tokenizer, ids), tokenizer->decode(ids, SkipSpecial::kYes));
  }
}

TEST(StreamDecoder, AContinuationKeepsItsLeadingSpace) {
  const auto tokenizer = Tokenizer::load(stored_file("models/stories260k/tokenizer.json"));
  const auto ids = tokenizer->encode("upon", AddSpecial::kNo);
  StreamDecoder starts(*tokenizer, SkipSpecial::kYes);
  StreamDecoder continues(*tokenizer, SkipSpecial::kYes, StreamDecoder::Position::kContinues);
  std::string first, second;
  for (int32_t id : ids) first += starts.push(id), second += continues.push(id);
  EXPECT_EQ(first, "upon");
  EXPECT_EQ(second, " upon");
}

}  // namespace
}  // namespace sluice::text
