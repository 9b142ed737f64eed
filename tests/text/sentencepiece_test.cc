// SentencePiece models against the library's 0.2.3 (scripts/golden/sentencepiece_models.py): every
// kind of model, control pieces in texts, ties, spaces at a text's beginning, broken bytes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/text/stream_decoder.h"
#include "src/text/tokenizer.h"
#include "tests/temporary_folder.h"
#include "tests/whole_file.h"

namespace sluice::text {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

const std::string kFolder = std::string(SLUICE_FIXTURES) + "/tokenizers/sentencepiece/";

const nlohmann::json& goldens(const std::string& model) {
  static const auto all = nlohmann::json::parse(std::ifstream(kFolder + "goldens.json"));
  return all["models"][model];
}

class SentencePiece : public ::testing::TestWithParam<std::string> {};

TEST_P(SentencePiece, IdsEqualTheLibrarys) {
  const auto tokenizer = Tokenizer::load(kFolder + GetParam() + ".model");
  const auto& golden = goldens(GetParam());
  for (size_t i = 0; i < golden["texts"].size(); ++i) {
    const std::string text = golden["texts"][i];
    EXPECT_EQ(tokenizer->encode(text, AddSpecial::kNo), golden["ids"][i].get<Ids>()) << text;
  }
}

TEST_P(SentencePiece, TextsEqualTheLibrarysWholeAndStreamed) {
  const auto tokenizer = Tokenizer::load(kFolder + GetParam() + ".model");
  const auto& golden = goldens(GetParam());
  for (size_t i = 0; i < golden["lists"].size(); ++i) {
    const Ids ids = golden["lists"][i];
    const std::string text = golden["decoded"][i];
    EXPECT_EQ(tokenizer->decode(ids, SkipSpecial::kNo), text) << golden["lists"][i];
    StreamDecoder decoder(*tokenizer, SkipSpecial::kNo);
    std::string streamed;
    for (int32_t id : ids) streamed += decoder.push(id);
    EXPECT_EQ(streamed + decoder.finish(), text) << golden["lists"][i];
  }
}

INSTANTIATE_TEST_SUITE_P(All, SentencePiece,
                         ::testing::Values("bpe", "bpe_no_prefix", "bpe_suffix", "unigram",
                                           "unigram_bytes", "unigram_user_defined", "word"),
                         [](const auto& info) { return info.param; });

// The model with a configuration beside it.
std::unique_ptr<Tokenizer> with_config(const std::string& model, const std::string& config) {
  const TemporaryFolder folder;
  fs::copy_file(kFolder + model + ".model", folder.file("tokenizer.model"));
  std::ofstream(folder.file("tokenizer_config.json")) << config;
  return Tokenizer::load(folder.path());
}

TEST(SentencePieceConfig, SaysWhetherTextBehindATokenBeginsWithASpace) {
  const auto plain = with_config("bpe", "{}");
  const Ids word = plain->encode("the", AddSpecial::kNo);
  Ids behind = plain->encode("<s>the", AddSpecial::kNo);
  EXPECT_EQ(plain->decode(behind, SkipSpecial::kNo), "<s>the");
  behind.erase(behind.begin());
  EXPECT_NE(behind, word);
  const auto legacy = with_config("bpe", R"({"legacy": true})");
  behind = legacy->encode("<s>the", AddSpecial::kNo);
  behind.erase(behind.begin());
  EXPECT_EQ(behind, word);
  const auto without = with_config("bpe", R"({"add_prefix_space": false})");
  EXPECT_NE(without->encode("the", AddSpecial::kNo), word);
  EXPECT_EQ(without->decode(without->encode(" the", AddSpecial::kNo), SkipSpecial::kNo), " the");
}

TEST(SentencePieceConfig, AddsTokensBehindThePiecesAndNamesTheEnds) {
  const auto tokenizer = with_config("bpe", R"({
      "added_tokens_decoder": {
        "2": {"content": "</s>", "special": true, "rstrip": true},
        "420": {"content": "<|im_end|>", "special": true},
        "430": {"content": "<think>", "special": false}},
      "bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "add_eos_token": true})");
  EXPECT_EQ(tokenizer->vocab_size(), 431);
  EXPECT_EQ(tokenizer->eos(), 420);
  EXPECT_EQ(tokenizer->find("<think>"), 430);
  const Ids ids = tokenizer->encode("<think></s>  <|im_end|>", AddSpecial::kYes);
  EXPECT_EQ(ids, (Ids{1, 430, 2, 420, 420}));
  EXPECT_EQ(tokenizer->decode(ids, SkipSpecial::kYes), "<think>");
  EXPECT_EQ(tokenizer->decode(ids, SkipSpecial::kNo), "<s><think></s><|im_end|><|im_end|>");
  EXPECT_EQ(tokenizer->token_bytes(425), "");
}

TEST(SentencePieceErrors, EveryTruncationAndFlippedByteIsSurvived) {
  const std::string whole = whole_file(kFolder + "unigram_user_defined.model");
  const TemporaryFolder folder;
  const std::string path = folder.file("broken_sentencepiece.model");
  const auto try_it = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      const auto tokenizer = Tokenizer::load(path);
      const Ids ids = tokenizer->encode("the (night), and\n日本 <sep>", AddSpecial::kYes);
      tokenizer->decode(ids, SkipSpecial::kNo);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.what();
    }
  };
  for (size_t length = 0; length < whole.size(); length += 41) try_it(whole.substr(0, length));
  for (size_t at = 0; at < whole.size(); at += 29) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x85);
    try_it(bytes);
  }
}

}  // namespace
}  // namespace sluice::text
