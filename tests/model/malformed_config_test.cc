// Configs from outside that are broken or of other families: each is an Error of kind kFile that
// names its origin, never a crash, whatever they hold.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "src/base/error.h"
#include "src/model/builtin.h"
#include "src/model/family.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// True when it was refused as a file should be.
bool is_refused(const std::string& text) {
  try {
    make_family_model(ModelConfig(text, "outside.json"));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile) << error.what();
    EXPECT_TRUE(error.text().starts_with("outside.json")) << error.text();
    EXPECT_FALSE(error.mend().empty()) << error.text();
    return true;
  }
  return false;
}

// Of families that run, and nothing is wrong with them. DeepSeek's have two layers, of which the
// first three are dense by default: what is said of experts is of none.
const std::set<std::string> kSound{"mistral.json", "qwen3.json", "deepseek_v3_defaults.json",
                                   "deepseek_num_experts_both.json", "deepseek_v32.json"};

TEST(MalformedConfig, EveryCaseOfTheCollectionsIsRefused) {
  for (const char* folder : {"malformed_configs", "json_test_suite"}) {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(fs::path(SLUICE_FIXTURES) / folder)) {
      if (entry.path().extension() != ".json") continue;
      EXPECT_EQ(is_refused(read_file(entry.path())), !kSound.contains(entry.path().filename()))
          << entry.path();
      ++files;
    }
    EXPECT_GT(files, 20) << folder;
  }
}

TEST(MalformedConfig, DeepNestingIsRefusedAndNotRecursedInto) {
  const std::string start =
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                                "num_attention_heads": 4, "vocab_size": 100, "rope_scaling": {"type": "linear", "factor": 2, "deep": )";
  for (int depth : {100, 1000000}) {
    const auto count = static_cast<size_t>(depth);
    EXPECT_TRUE(is_refused(start + std::string(count, '[') + std::string(count, ']') + "}}"))
        << depth;
  }
}

TEST(MalformedConfig, EveryCutOfAConfigIsRefused) {
  const std::string whole = *builtin_config("llama-3.2-1b");
  ASSERT_FALSE(is_refused(whole));
  for (size_t length = 0; length + 1 < whole.size(); ++length)
    ASSERT_TRUE(is_refused(whole.substr(0, length))) << length;
}

TEST(MalformedConfig, ChangedBytesAreRefusedOrGiveASoundShape) {
  std::mt19937 random(1);
  for (const char* name : {"opt-350m", "llama-3.2-1b"}) {
    const std::string whole = *builtin_config(name);
    int refused = 0;
    for (int round = 0; round < 3000; ++round) {
      std::string changed = whole;
      for (unsigned n = 1 + random() % 3; n > 0; --n) {
        const size_t place = random() % changed.size();
        changed[place] =
            random() % 2 ? static_cast<char>(random()) : "0123456789-e.\",:"[random() % 16];
      }
      if (is_refused(changed)) {
        ++refused;
        continue;
      }
      const auto model = make_family_model(ModelConfig(changed, "outside.json"));
      ASSERT_GT(model->shape().num_parameters(), 0) << changed;
      ASSERT_GT(model->shape().state_elements_per_token(), 0) << changed;
      ASSERT_GT(model->shape().workspace_columns, 0) << changed;
    }
    EXPECT_GT(refused, 300);
  }
}

}  // namespace
}  // namespace sluice
