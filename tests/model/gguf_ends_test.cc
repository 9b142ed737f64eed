// Which tokens of a GGUF file end answers, which ids are none, and which keys change nothing.
#include "src/model/foreign/gguf_ends.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/model/bound_model.h"
#include "tests/gguf_values.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Ids ends_of(const Json& keys) {
  Ids out;
  for (const EndToken& end : gguf_end_tokens(made::gguf_metadata(keys))) out.push_back(end.id);
  return out;
}

Json vocabulary(const std::vector<std::string>& tokens) {
  return {{"tokenizer.ggml.tokens", tokens}};
}

TEST(GgufEnds, AreThoseOfAllKeysAndTexts) {
  Json keys = vocabulary({"a", "b", "c", "<|im_end|>", "<|endoftext|>", "d", "<|fim_pad|>", "e"});
  EXPECT_EQ(ends_of(keys), (Ids{3, 4, 6}));
  keys["tokenizer.ggml.eos_token_id"] = 4;
  keys["tokenizer.ggml.eot_token_id"] = 1;
  keys["tokenizer.ggml.eom_token_id"] = 2;
  keys["tokenizer.ggml.fim_sep_token_id"] = 7;
  const auto ends = gguf_end_tokens(made::gguf_metadata(keys));
  std::vector<std::string> said;
  for (const EndToken& end : ends)
    said.push_back(std::to_string(end.id) + " " + end.text + " " + end.from);
  EXPECT_EQ(said,
            (std::vector<std::string>{
                "4 <|endoftext|> tokenizer.ggml.eos_token_id", "1 b tokenizer.ggml.eot_token_id",
                "2 c tokenizer.ggml.eom_token_id", "7 e tokenizer.ggml.fim_sep_token_id",
                "3 <|im_end|> its text", "6 <|fim_pad|> its text"}));
}

TEST(GgufEnds, OfSeveralMessagesAreNotOnesOfAMessage) {
  EXPECT_EQ(ends_of(vocabulary({"<|end|>", "<|return|>", "<|call|>"})), (Ids{1, 2}));
  EXPECT_EQ(ends_of(vocabulary({"<|end|>", "<|flush|>", "<|calls|>"})), (Ids{1, 2}));
  EXPECT_EQ(ends_of(vocabulary({"<|end|>", "<|call|>"})), (Ids{0, 1}));
}

TEST(GgufEnds, TextsOfMarkupAreEndsWhereTheFileSaysSo) {
  Json keys = vocabulary({"</s>", "<eos>", "<turn|>"});
  EXPECT_EQ(ends_of(keys), (Ids{2})) << "plain tokens";
  keys["tokenizer.ggml.token_type"] = {3, 4, 1};
  EXPECT_EQ(ends_of(keys), (Ids{0, 1, 2}));
  keys["tokenizer.ggml.tokens"] = {"</s>", "<eos>", "<|tool_response>"};
  EXPECT_EQ(ends_of(keys), (Ids{1, 2}));
}

TEST(GgufEnds, NumbersOfNoTokenArePassedOverAndSaid) {
  Json keys = vocabulary({"a", "b"});
  keys["tokenizer.ggml.eos_token_id"] = 1;
  keys["tokenizer.ggml.eot_token_id"] = 2;
  keys["tokenizer.ggml.padding_token_id"] = 4294967295;
  keys["tokenizer.ggml.bos_token_id"] = -1;
  EXPECT_EQ(ends_of(keys), (Ids{1}));
  EXPECT_EQ(gguf_begin_token(made::gguf_metadata(keys)), std::nullopt);
  const auto notes = gguf_notes_of_ids(made::gguf_metadata(keys));
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_NE(notes[0].find("eot_token_id is 2"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("bos_token_id is -1"), std::string::npos) << notes[1];
  EXPECT_NE(notes[2].find("4294967295"), std::string::npos) << notes[2];
}

TEST(GgufEnds, AreThereWithoutAVocabulary) {
  EXPECT_EQ(ends_of({{"tokenizer.ggml.eos_token_id", 2}}), (Ids{2}));
  EXPECT_EQ(ends_of(Json::object()), Ids{});
  EXPECT_EQ(ends_of({{"tokenizer.ggml.tokens", {1, 2}}}), Ids{});
  EXPECT_EQ(ends_of({{"tokenizer.ggml.eos_token_id", "2"}}), Ids{});
}

class GgufKeysOfAModel : public ::testing::Test {
 protected:
  GgufKeysOfAModel() {
    std::string pattern = ::testing::TempDir() + "/sluice_gguf_keys_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~GgufKeysOfAModel() override { fs::remove_all(folder_); }

  BoundModel open(const Json& more) {
    const fs::path source = fs::path(SLUICE_FIXTURES) / "gguf" / "stories260k.gguf";
    write_file(folder_ / "model.gguf",
               made::with_gguf_keys(read_file(source, int64_t{1} << 24), more));
    return BoundModel::open(folder_ / "model.gguf");
  }
  fs::path folder_;
};

TEST_F(GgufKeysOfAModel, EndsReachTheEngineAndTheStore) {
  const BoundModel model = open({{"tokenizer.ggml.eot_token_id", 426}});
  EXPECT_EQ(model.eos_token_ids(), (Ids{2, 426}));
  EXPECT_EQ(Json::parse(model.config_text())["eos_token_id"], (Ids{2, 426}));
  EXPECT_EQ(open(Json::object()).eos_token_ids(), (Ids{2}));
}

TEST_F(GgufKeysOfAModel, IdsOfNoTokenAreNotes) {
  const BoundModel model = open({{"tokenizer.ggml.padding_token_id", 4294967295}});
  ASSERT_FALSE(model.notes().empty());
  EXPECT_NE(model.notes().front().find("padding_token_id is 4294967295"), std::string::npos);
}

TEST_F(GgufKeysOfAModel, ThatChangeNothingArePassed) {
  const BoundModel model = open({{"llama.pooling_type", 3},
                                 {"llama.attention.causal", true},
                                 {"llama.attention.sliding_window", 0},
                                 {"llama.attention.clamp_kqv", 0.0},
                                 {"llama.logit_scale", 1.0},
                                 {"llama.use_parallel_residual", false},
                                 {"general.something.new", 7},
                                 {"split.count", 0},
                                 {"somebody.else", "x"}});
  EXPECT_EQ(model.shape().family, "llama");
  for (const Json& changes :
       {Json{{"llama.attention.causal", false}}, Json{{"llama.attention.sliding_window", 512}},
        Json{{"llama.attention.clamp_kqv", 8.0}}, Json{{"llama.logit_scale", 0.5}},
        Json{{"llama.use_parallel_residual", true}}, Json{{"llama.something_new", 0}}}) {
    const std::string key = changes.items().begin().key();
    try {
      open(changes);
      ADD_FAILURE() << key << " was passed over";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  }
}

TEST_F(GgufKeysOfAModel, YarnIsReadAsConfigHasIt) {
  const Json scaling = Json::parse(open({{"llama.rope.scaling.type", "yarn"},
                                         {"llama.rope.scaling.factor", 4.0},
                                         {"llama.rope.scaling.original_context_length", 64},
                                         {"llama.rope.scaling.yarn_beta_fast", 16.0}})
                                       .config_text())["rope_scaling"];
  EXPECT_EQ(scaling, (Json{{"rope_type", "yarn"},
                           {"factor", 4.0},
                           {"original_max_position_embeddings", 64},
                           {"beta_fast", 16.0}}));
  const Json turned = Json::parse(open({{"llama.rope.scaling.type", "yarn"},
                                        {"llama.rope.scaling.factor", 4.0},
                                        {"llama.rope.scaling.original_context_length", 64},
                                        {"llama.rope.scaling.attn_factor", 0.5}})
                                      .config_text())["rope_scaling"];
  EXPECT_NEAR(turned["attention_factor"].get<double>(), 0.5 * (0.1 * std::log(4.0) + 1), 1e-12);
}

}  // namespace
}  // namespace sluice
