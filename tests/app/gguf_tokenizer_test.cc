// Tokenizers inside GGUF files: the files made of them give the ids that are expected.
#include "src/app/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/checkpoint/gguf.h"
#include "src/base/error.h"
#include "src/chat/chat_template.h"
#include "src/text/tokenizer.h"
#include "tests/gguf_values.h"
#include "tests/whole_file.h"

namespace sluice::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string read(const fs::path& path) { return whole_file(path); }

class GgufTokenizer : public ::testing::Test {
 protected:
  GgufTokenizer() {
    std::string pattern = ::testing::TempDir() + "/sluice_gguf_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~GgufTokenizer() override { fs::remove_all(folder_); }

  std::unique_ptr<text::Tokenizer> load(const Json& metadata) {
    return load_from(made::gguf_metadata(metadata));
  }
  std::unique_ptr<text::Tokenizer> load_from(const io::GgufMetadata& metadata) {
    for (const auto& [name, content] : gguf_tokenizer_files(metadata, "test.gguf"))
      std::ofstream(folder_ / name, std::ios::binary) << content;
    return text::Tokenizer::load(folder_);
  }

  fs::path folder_;
  fs::path fixtures_ = fs::path(SLUICE_FIXTURES);
};

TEST_F(GgufTokenizer, SentencePieceGivesTheExpectedIds) {
  const fs::path vocab = fixtures_ / "gguf" / "ggml-vocab-llama-spm.gguf";
  const auto tokenizer = load_from(io::read_gguf_header(vocab).metadata);
  EXPECT_EQ(tokenizer->vocab_size(), 32000);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  const std::string inputs = read(vocab.string() + ".inp");
  std::istringstream outputs(read(vocab.string() + ".out"));
  constexpr std::string_view kBetween = "\n__ggml_vocab_test__\n";
  int cases = 0;
  for (size_t at = 0; at < inputs.size();) {
    const size_t end = inputs.find(kBetween, at);
    if (end == std::string::npos) break;  // what follows the last is no case
    const std::string text = inputs.substr(at, end - at);
    at = end + kBetween.size();
    std::string line;
    ASSERT_TRUE(std::getline(outputs, line));
    std::istringstream numbers(line);
    const std::vector<int32_t> expected{std::istream_iterator<int32_t>(numbers), {}};
    EXPECT_EQ(tokenizer->encode(text, text::AddSpecial::kNo), expected) << text;
    ++cases;
  }
  EXPECT_GT(cases, 40);
  const auto ids = tokenizer->encode("Hello world", text::AddSpecial::kYes);
  EXPECT_EQ(ids.front(), 1) << "begin of text";
  EXPECT_EQ(tokenizer->decode(ids, text::SkipSpecial::kYes), "Hello world");
}

// A byte-level tokenizer.json as a GGUF converter would keep it.
TEST_F(GgufTokenizer, ByteLevelGivesTheSameAsItsSource) {
  const std::string source =
      read(fixtures_ / "tokenizers" / "small_bpe" / "tiny_bpe_tokenizer.json");
  const auto original = text::Tokenizer::from_json(source);
  const Json json = Json::parse(source);
  std::vector<std::string> tokens(static_cast<size_t>(original->vocab_size()));
  std::vector<int> types(tokens.size(), 1);
  for (const auto& [token, id] : json["model"]["vocab"].items()) tokens[id.get<size_t>()] = token;
  for (const Json& added : json["added_tokens"]) {
    tokens[added["id"].get<size_t>()] = added["content"];
    types[added["id"].get<size_t>()] = added["special"].get<bool>() ? 3 : 4;
  }
  Json merges = Json::array();
  for (const Json& merge : json["model"]["merges"])
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  Json metadata{{"tokenizer.ggml.model", "gpt2"},  {"tokenizer.ggml.pre", "gpt-2"},
                {"tokenizer.ggml.tokens", tokens}, {"tokenizer.ggml.token_type", types},
                {"tokenizer.ggml.merges", merges}, {"tokenizer.chat_template", "{{ x }}"}};
  const auto tokenizer = load(metadata);
  for (const char* text :
       {"Hello world", "  two  spaces\n\nlines", "it's 12345 \xc3\xa9t\xc3\xa9", ""}) {
    const auto ids = original->encode(text, text::AddSpecial::kNo);
    EXPECT_EQ(tokenizer->encode(text, text::AddSpecial::kNo), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids, text::SkipSpecial::kNo),
              original->decode(ids, text::SkipSpecial::kNo));
  }
  EXPECT_EQ(Json::parse(read(folder_ / "tokenizer_config.json"))["chat_template"], "{{ x }}");

  metadata["tokenizer.ggml.bos_token_id"] = 0;
  metadata["tokenizer.ggml.add_bos_token"] = true;
  EXPECT_EQ(load(metadata)->encode("a", text::AddSpecial::kYes).front(), 0);
}

// Pieces of text that no merge goes beyond.
TEST_F(GgufTokenizer, TextIsCutByTheNamedRule) {
  std::vector<std::string> tokens;
  Json merges = Json::array();
  for (int byte = 'A'; byte <= 'z'; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* more : {"0", "1", "\xcc", "\xc4\xa3", "00", "000", "aA", "Aa", "a\xc3\x8c"})
    tokens.emplace_back(more);
  for (const char* merge : {"0 0", "00 0", "a A", "A a"}) merges.push_back(merge);
  Json metadata{{"tokenizer.ggml.model", "gpt2"},
                {"tokenizer.ggml.tokens", tokens},
                {"tokenizer.ggml.merges", merges}};
  const auto pieces = [&](const char* rule, const char* text) {
    metadata["tokenizer.ggml.pre"] = rule;
    return load(metadata)->encode(text, text::AddSpecial::kNo).size();
  };
  EXPECT_EQ(pieces("qwen35", "000"), 3u) << "digit by digit";
  EXPECT_EQ(pieces("qwen2", "000"), 3u);
  EXPECT_EQ(pieces("llama4", "000"), 1u) << "by threes";
  EXPECT_EQ(pieces("llama-bpe", "000"), 1u);
  EXPECT_EQ(pieces("dbrx", "000"), 1u);
  EXPECT_EQ(pieces("llama4", "aA"), 2u) << "words begin with capitals";
  EXPECT_EQ(pieces("gpt-4o", "Aa"), 1u);
  EXPECT_EQ(pieces("qwen35", "aA"), 1u);
  EXPECT_EQ(pieces("kimi-k2", "000"), 1u);
  EXPECT_EQ(pieces("kimi-k2", "aA"), 2u);
}

// Spaces are part of pieces, what is in no piece is bytes, and no merge goes over the end of a
// line.
TEST_F(GgufTokenizer, GemmasPiecesAreMergedByPairs) {
  std::vector<std::string> tokens{"<pad>", "<eos>", "<bos>", "<unk>"};
  std::vector<int> types{3, 3, 3, 3};
  const auto add = [&](const std::string& token, int type) {
    tokens.push_back(token);
    types.push_back(type);
  };
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    add(name, 6);
  }
  const std::string space = "\xe2\x96\x81";
  for (const std::string& token : {std::string("a"), std::string("b"), space, std::string("\n"),
                                   space + "a", space + "ab", std::string("\n\n")})
    add(token, 1);
  add("<|turn>", 4);
  const Json metadata{{"tokenizer.ggml.model", "gemma4"},
                      {"tokenizer.ggml.tokens", tokens},
                      {"tokenizer.ggml.token_type", types},
                      {"tokenizer.ggml.merges", {space + " a", space + "a b", "\n \n"}},
                      {"tokenizer.ggml.bos_token_id", 2},
                      {"tokenizer.ggml.eos_token_id", 1},
                      {"tokenizer.ggml.unknown_token_id", 3},
                      {"tokenizer.ggml.add_bos_token", true},
                      {"tokenizer.ggml.add_space_prefix", false}};
  const auto tokenizer = load(metadata);
  constexpr int32_t kA = 260, kB = 261, kSpaceAb = 265, kLines = 266, kTurn = 267;
  const std::string text = "a ab\n\nb\xc3\xa9<|turn>a";
  const std::vector<int32_t> expected{kA, kSpaceAb, kLines, kB, 4 + 0xc3, 4 + 0xa9, kTurn, kA};
  EXPECT_EQ(tokenizer->encode(text, text::AddSpecial::kNo), expected);
  EXPECT_EQ(tokenizer->decode(expected, text::SkipSpecial::kNo), text);
  EXPECT_EQ(tokenizer->encode("a", text::AddSpecial::kYes), (std::vector<int32_t>{2, kA}));
  EXPECT_EQ(tokenizer->eos(), 1);
}

// As Hugging Face's file of Phi-3 says it, and llama.cpp by the model's name.
TEST_F(GgufTokenizer, PhisTokensTakeTheSpaceBehindThem) {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int> types{2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    tokens.emplace_back(name);
    types.push_back(6);
  }
  const std::string space = "\xe2\x96\x81";
  for (const std::string& token : {space, std::string("a"), space + "a"}) {
    tokens.push_back(token);
    types.push_back(1);
  }
  for (const char* token : {"<|user|>", "<|endoftext|>"}) {
    tokens.emplace_back(token);
    types.push_back(3);
  }
  constexpr int32_t kA = 260, kSpaceA = 261, kUser = 262, kEnd = 263, kLine = 3 + '\n';
  std::vector<float> scores(tokens.size(), 0.0f);
  scores[kSpaceA] = 1;
  Json metadata{{"tokenizer.ggml.model", "llama"},      {"tokenizer.ggml.tokens", tokens},
                {"tokenizer.ggml.token_type", types},   {"tokenizer.ggml.scores", scores},
                {"tokenizer.ggml.bos_token_id", 1},     {"tokenizer.ggml.eos_token_id", 2},
                {"tokenizer.ggml.unknown_token_id", 0}, {"tokenizer.ggml.add_space_prefix", false},
                {"general.name", "Phi-3 Mini Instruct"}};
  const std::string text = "<|user|>\n a<|endoftext|>\na</s>  a";
  EXPECT_EQ(load(metadata)->encode(text, text::AddSpecial::kNo),
            (std::vector<int32_t>{kUser, kA, kEnd, kLine, kA, 2, kA}));
  metadata["general.name"] = "Llama";
  EXPECT_EQ(load(metadata)->encode("<|user|>\n a", text::AddSpecial::kNo),
            (std::vector<int32_t>{kUser, kLine, kSpaceA}));
}

// Files mark ends of turns as plain tokens; a chat's template writes them all the same.
TEST_F(GgufTokenizer, EndsOfTurnsAreWholeInAText) {
  const Json metadata{{"tokenizer.ggml.model", "gpt2"},
                      {"tokenizer.ggml.pre", "gpt-2"},
                      {"tokenizer.ggml.tokens", {"a", "<|im_end|>", "<", "|"}},
                      {"tokenizer.ggml.token_type", {1, 1, 1, 1}},
                      {"tokenizer.ggml.merges", Json::array()}};
  const auto tokenizer = load(metadata);
  EXPECT_EQ(tokenizer->encode("a<|im_end|>a", text::AddSpecial::kNo),
            (std::vector<int32_t>{0, 1, 0}));
  EXPECT_TRUE(tokenizer->is_special(1));
}

TEST_F(GgufTokenizer, NamedTemplatesAreAListAsInAFolder) {
  Json metadata{{"tokenizer.ggml.model", "gpt2"},
                {"tokenizer.ggml.tokens", {"a"}},
                {"tokenizer.chat_template", "plain"},
                {"tokenizer.chat_templates", {"tool_use"}},
                {"tokenizer.chat_template.tool_use", "with tools"},
                {"tokenizer.ggml.bos_token_id", 4294967295}};
  const auto templates = [&] {
    return chat::read_chat_template(
        gguf_tokenizer_config(made::gguf_metadata(metadata), "test.gguf"), "test.gguf");
  };
  ASSERT_TRUE(templates());
  EXPECT_EQ(templates()->text, "plain");
  EXPECT_EQ(templates()->tools_text, "with tools");
  metadata.erase("tokenizer.chat_template.tool_use");
  EXPECT_EQ(templates()->text, "plain");
  EXPECT_EQ(templates()->tools_text, "");
  metadata.erase("tokenizer.chat_template");
  EXPECT_FALSE(templates());
}

TEST_F(GgufTokenizer, RefusesWhatItCanNotRead) {
  const auto refusal = [&](const Json& metadata) -> std::string {
    try {
      gguf_tokenizer_files(made::gguf_metadata(metadata), "test.gguf");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      return error.what();
    }
    return "nothing was refused";
  };
  const auto has = [](const std::string& text, const char* word) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  Json sound{{"tokenizer.ggml.model", "gpt2"},
             {"tokenizer.ggml.tokens", {"a", "b"}},
             {"tokenizer.ggml.merges", Json::array()}};
  EXPECT_EQ(gguf_tokenizer_files(made::gguf_metadata(sound), "x").size(), 2u);
  EXPECT_TRUE(gguf_tokenizer_files(made::gguf_metadata(Json::object()), "x").empty());
  Json changed = sound;
  changed["tokenizer.ggml.model"] = "bert";
  has(refusal(changed), "bert");
  changed = sound;
  changed["tokenizer.ggml.pre"] = "whitespace";
  has(refusal(changed), "whitespace");
  changed = sound;
  changed["tokenizer.ggml.tokens"] = {1, 2};
  has(refusal(changed), "tokens");
  changed = sound;
  changed["tokenizer.ggml.token_type"] = {1};
  has(refusal(changed), "token_type");
  changed = sound;
  changed["tokenizer.ggml.bos_token_id"] = "b";
  has(refusal(changed), "bos_token_id");
  changed = sound;
  changed["tokenizer.ggml.bos_token_id"] = {1};
  has(refusal(changed), "bos_token_id");
  changed = sound;
  changed.erase("tokenizer.ggml.merges");
  has(refusal(changed), "merges");
}

}  // namespace
}  // namespace sluice::app
