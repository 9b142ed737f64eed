// How text of GGUF files is cut, by each name that llama.cpp has: as Hugging Face's library cuts it
// by the models' own files (scripts/golden/split_rules.py).
#include "src/text/split_rules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/app/gguf_tokenizer.h"
#include "src/app/model_tokenizer.h"
#include "src/base/error.h"
#include "src/text/steps.h"
#include "tests/gguf_values.h"

namespace sluice::app {
namespace {

using Json = nlohmann::json;

const Json& golden() {
  static const Json json =
      Json::parse(std::ifstream(std::string(SLUICE_FIXTURES) + "/split_rules/cuts.json"));
  return json;
}

Json tiny_file(const std::string& rule) {
  return {{"tokenizer.ggml.model", "gpt2"},
          {"tokenizer.ggml.pre", rule},
          {"tokenizer.ggml.tokens", {"a", "b"}},
          {"tokenizer.ggml.bos_token_id", 1},
          {"tokenizer.ggml.merges", Json::array()}};
}

Json tokenizer_json(const std::string& rule) {
  return Json::parse(
      gguf_tokenizer_files(made::gguf_metadata(tiny_file(rule)), "test.gguf").front().second);
}

std::string refusal(const Json& metadata, const std::string& pretokenizer = {}) {
  try {
    gguf_tokenizer_files(made::gguf_metadata(metadata), "test.gguf", pretokenizer);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The texts of the golden script.
class Texts {
 public:
  Texts() : atoms_(golden()["atoms"]) {}
  std::string next() {
    std::string text;
    const auto count = 1 + pick(golden()["most_atoms"].get<uint64_t>());
    for (uint64_t i = 0; i < count; ++i)
      text += atoms_[pick(atoms_.size())].get_ref<const std::string&>();
    return text;
  }

 private:
  uint64_t pick(uint64_t count) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % count;
  }
  Json atoms_;
  uint64_t state_ = 1;
};

uint64_t add(uint64_t hash, std::string_view bytes) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

TEST(SplitRules, CutAsTheModelsOwnFilesDo) {
  std::map<std::string, std::string>
      one_name;  // of each rule one, since its other names mean the same patterns
  for (const auto& [name, about] : golden()["names"].items()) one_name[about["rule"]] = name;
  EXPECT_EQ(one_name.size(), golden()["rules"].size());
  for (const auto& [rule, name] : one_name) {
    const Json json = tokenizer_json(name);
    const auto split = text::make_pre_tokenizer({&json["pre_tokenizer"], name});
    text::NormalizeStep normalize;
    if (!json["normalizer"].is_null())
      normalize = text::make_normalizer({&json["normalizer"], name});
    Texts texts;
    for (const Json& expected : golden()["rules"][rule]) {
      uint64_t hash = 0xcbf29ce484222325;
      for (int i = 0; i < golden()["texts_in_group"].get<int>(); ++i) {
        const std::string text = texts.next();
        std::vector<std::string> pieces{normalize ? normalize(text) : text};
        split(pieces, true);
        for (const std::string& piece : pieces) hash = add(add(hash, piece), "\xff");
        hash = add(hash, "\xfe");
      }
      EXPECT_EQ(fmt::format("{:016x}", hash), expected.get<std::string>()) << rule;
    }
  }
}

TEST(SplitRules, HaveTheFlagsOfEachName) {
  for (const auto& [name, about] : golden()["names"].items()) {
    SCOPED_TRACE(name);
    const text::SplitRule* rule = text::find_split_rule(name);
    ASSERT_NE(rule, nullptr);
    EXPECT_EQ(rule->ignores_merges, about["ignores_merges"].get<bool>());
    EXPECT_EQ(rule->adds_begin, about["adds_begin"].get<bool>());
    const Json json = tokenizer_json(name);
    EXPECT_EQ(json["model"]["ignore_merges"], about["ignores_merges"]);
    EXPECT_EQ(!json["post_processor"].is_null(), about["adds_begin"].get<bool>());
    // Names of one rule cut by the same patterns.
    for (const auto& [other, of_other] : golden()["names"].items()) {
      if (of_other["rule"] != about["rule"]) continue;
      EXPECT_TRUE(std::ranges::equal(rule->patterns, text::find_split_rule(other)->patterns));
    }
  }
}

// What llama.cpp reads, and what of it is read here. A new name changes these numbers, and the
// table of docs/gguf.md (scripts/gguf_names.py).
TEST(SplitRules, CountOfNamesReadAndRefused) {
  EXPECT_EQ(golden()["names"].size(), 92u);
  EXPECT_EQ(text::split_rules().size(), golden()["names"].size()) << "a name that is no golden's";
  ASSERT_EQ(golden()["refused"].size(), 1u);
  for (const Json& name : golden()["refused"])
    EXPECT_NE(refusal(tiny_file(name)).find(name.get<std::string>()), std::string::npos);
  int read = 0, without = 0, refused = 0;
  for (const auto& [kind, expected] : golden()["kinds"].items()) {
    Json file = tiny_file("gpt-2");
    file["tokenizer.ggml.model"] = kind;
    if (expected == "refused") {
      EXPECT_NE(refusal(file).find("\"" + kind + "\""), std::string::npos) << kind;
      ++refused;
    } else {
      const bool has_files = !gguf_tokenizer_files(made::gguf_metadata(file), "test.gguf").empty();
      EXPECT_EQ(has_files, expected == "read") << kind;
      ++(has_files ? read : without);
    }
  }
  EXPECT_EQ(read, 3);
  EXPECT_EQ(without, 2);
  EXPECT_EQ(refused, 6);
}

TEST(SplitRules, NearestNameIsNamed) {
  EXPECT_EQ(text::nearest_split_rule("qwen3"), "qwen2");
  EXPECT_EQ(text::nearest_split_rule("deepseek-v3.2"), "deepseek-v3");
  EXPECT_EQ(text::nearest_split_rule("llama"), "llama3");
  EXPECT_EQ(text::nearest_split_rule("kimi-k25"), "kimi-k2");
  EXPECT_FALSE(text::nearest_split_rule("").empty());
  EXPECT_FALSE(text::nearest_split_rule(std::string(100000, 'x')).empty());
  const std::string text = refusal(tiny_file("qwen3-next"));
  EXPECT_NE(text.find("qwen3-next"), std::string::npos) << text;
  EXPECT_NE(text.find("`pretokenizer`"), std::string::npos) << text;
}

TEST(SplitRules, ANameGoesBeforeTheFiles) {
  const auto patterns = [](const Json& metadata, const std::string& name) {
    const auto files = gguf_tokenizer_files(made::gguf_metadata(metadata), "test.gguf", name);
    return Json::parse(files.front().second)["pre_tokenizer"]["pretokenizers"].size();
  };
  EXPECT_EQ(patterns(tiny_file("unheard-of"), "deepseek-v3"), 4u);
  EXPECT_EQ(patterns(tiny_file("gpt-2"), "deepseek-v3"), 4u);
  EXPECT_NE(refusal(tiny_file("gpt-2"), "unheard-of").find("unheard-of"), std::string::npos);
}

TEST(SplitRules, ANameThatHasNoEffectIsRefused) {
  const std::filesystem::path fixtures = SLUICE_FIXTURES;
  for (const char* model : {"gguf/stories260k.gguf", "models/stories260k", "tokenizers/opt"}) {
    try {
      need_tokenizer(fixtures / model, "gpt-2");
      ADD_FAILURE() << model;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUser) << model;
      EXPECT_NE(std::string(error.what()).find("`pretokenizer`"), std::string::npos);
    }
  }
}

// Files from before the key: the architecture may tell; else what llama.cpp takes.
TEST(SplitRules, FilesWithoutANameAreCutByTheirArchitectures) {
  Json file = tiny_file("");
  file.erase("tokenizer.ggml.pre");
  const auto steps = [&] {
    return Json::parse(gguf_tokenizer_files(made::gguf_metadata(file), "test.gguf")
                           .front()
                           .second)["pre_tokenizer"]["pretokenizers"]
        .size();
  };
  EXPECT_EQ(steps(), 5u) << "default";
  file["general.architecture"] = "gpt2";
  EXPECT_EQ(steps(), 2u);
  file["general.architecture"] = "starcoder";
  EXPECT_EQ(steps(), 3u);
  file["general.architecture"] = 7;
  EXPECT_EQ(steps(), 5u);
}

TEST(SplitRules, TokensRoundATextAreTheFiles) {
  Json file = tiny_file("smollm");
  file["tokenizer.ggml.eos_token_id"] = 0;
  file["tokenizer.ggml.add_bos_token"] = true;
  file["tokenizer.ggml.add_eos_token"] = true;
  const Json around = Json::parse(gguf_tokenizer_files(made::gguf_metadata(file), "test.gguf")
                                      .front()
                                      .second)["post_processor"];
  const text::Template read = text::make_template({&around, "test"});
  EXPECT_EQ(read.before, std::vector<int32_t>{1});
  EXPECT_EQ(read.after, std::vector<int32_t>{0});
}

}  // namespace
}  // namespace sluice::app
