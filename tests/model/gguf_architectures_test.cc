// Which architectures of GGUF files are read, and what those are of families whose files say less,
// or say it in another way, than config.json. Logits: tests/engine/goldens_test.cc, with the files
// of scripts/golden/gguf_dense.py.
#include <cmath>
#include <fstream>
#include <set>

#include "src/base/block_type.h"
#include "src/model/family.h"
#include "tests/model/changed_gguf.h"

namespace sluice {
namespace {

using made::ChangedGguf;
using made::expect_words;
using Json = nlohmann::json;

Json known_names() {
  return Json::parse(std::ifstream(std::string(SLUICE_FIXTURES) + "/gguf_support.json"));
}

// A new name changes these numbers, and the table of docs/gguf.md (scripts/gguf_support.py).
TEST(GgufSupport, ArchitecturesOfTheListAreReadOrRefused) {
  std::set<std::string> ours;
  for (const Family& family : families()) {
    if (family.gguf.architecture.empty()) continue;
    ours.insert(std::string(family.gguf.architecture));
    for (const std::string_view name : family.gguf.also) ours.insert(std::string(name));
  }
  const Json names = known_names()["architectures"];
  EXPECT_EQ(names["read"].get<std::set<std::string>>(), ours);
  for (const auto& name : names["refused"].get<std::vector<std::string>>())
    EXPECT_FALSE(ours.contains(name)) << name;
  EXPECT_EQ(names["read"].size(), 46U);
  EXPECT_EQ(names["refused"].size(), 107U);
}

TEST(GgufSupport, TypesOfTheListAreReadOrRefused) {
  const Json known = known_names();
  const auto is_read = [&](const Json& name) {
    const auto number = known["numbers"][name.get<std::string>()][0].get<uint32_t>();
    const bool is_plain = number == 0 || number == 1 || number == 30;
    const auto blocks = block_type(number);
    if (blocks)
      EXPECT_EQ(block_layout(*blocks).elements, known["numbers"][name.get<std::string>()][1])
          << name;
    return is_plain || blocks.has_value();
  };
  for (const Json& name : known["types"]["read"]) EXPECT_TRUE(is_read(name)) << name;
  for (const Json& name : known["types"]["refused"]) EXPECT_FALSE(is_read(name)) << name;
  EXPECT_EQ(known["types"]["read"].size(), 28U);
  EXPECT_EQ(known["types"]["refused"].size(), 7U);
}

TEST(GgufPhi3, WindowsAreTheKeysOrThoseOfTheFirstModels) {
  const char* const key = "phi3.attention.sliding_window";
  EXPECT_EQ(ChangedGguf("phi3-tiny-gguf").config()["sliding_window"], 16);
  EXPECT_TRUE(ChangedGguf("phi3-tiny-gguf").set(key, 0).config()["sliding_window"].is_null());
  EXPECT_TRUE(ChangedGguf("phi3-tiny-gguf").lose(key).config()["sliding_window"].is_null());
  ChangedGguf first("phi3-tiny-gguf");
  first.lose(key).set("phi3.block_count", 32).set("phi3.context_length", 4096);
  EXPECT_EQ(first.config_of_keys()["sliding_window"], 2047);
}

TEST(GgufPhi3, FactorsOfLongRopeAreTwoTensors) {
  const Json scaling = ChangedGguf("phi3-tiny-longrope-gguf").config()["rope_scaling"];
  EXPECT_EQ(scaling["rope_type"], "longrope");
  EXPECT_EQ(scaling["original_max_position_embeddings"], 256);
  EXPECT_EQ(scaling["short_factor"].size(), 3U);
  EXPECT_NEAR(scaling["attention_factor"].get<double>(), std::sqrt(1.25), 1e-6);
  expect_words(ChangedGguf("phi3-tiny-longrope-gguf").lose("rope_factors_long.weight").refusal(),
               {"rope_factors_long.weight is missing"});
}

TEST(GgufGlm, TensorsOfQAndKAndVMayBeOneOrThree) {
  const BoundModel joined = ChangedGguf("glm-joined-gguf").open();
  const BoundModel apart = ChangedGguf("glm-tiny-gguf").open();
  EXPECT_EQ(joined.shape().family, "glm");
  EXPECT_TRUE(joined.notes().empty());
  EXPECT_EQ(joined.shape().num_parameters(), apart.shape().num_parameters());
  expect_words(ChangedGguf("glm-joined-gguf").lose("blk.1.attn_qkv.bias").refusal(),
               {"blk.1.attn_q.bias", "missing"});
  expect_words(ChangedGguf("glm-joined-gguf").resize("blk.1.attn_qkv.bias", 0, 63).refusal(),
               {"blk.1.attn_qkv.bias", "63"});
  expect_words(ChangedGguf("glm-tiny-gguf").lose("blk.1.attn_k.weight").refusal(),
               {"blk.1.attn_k.weight", "missing"});
}

// As the converter may be asked for: rows of q and k in pairs, each of their heads.
TEST(GgufLlama, TensorsOfQAndKAndVMayBeOne) {
  const BoundModel joined = ChangedGguf("llama-yarn-gguf").open();
  EXPECT_TRUE(joined.notes().empty());
  EXPECT_EQ(joined.foreign(1, 1)->multiple, 4) << "a head of q";
}

// Not the table of norms: a bias in a layer that the family does not add.
TEST(GgufLlama, BiasesThatWouldNotBeAddedAreRefused) {
  ChangedGguf file("glm4-tiny-gguf");
  file.lose("blk.0.attn_q.bias");
  expect_words(file.refusal(), {"blk.0.attn_k.bias", "not zero"});
}

TEST(GgufGlm, ModelsThatSeeHaveHalves) {
  EXPECT_EQ(ChangedGguf("glm4-tiny-gguf").config()["rope_interleave"], true);
  EXPECT_EQ(ChangedGguf("glm4-halves-gguf").config()["rope_interleave"], false);
}

TEST(GgufMistral3, QueriesGrowAsTheKeysSay) {
  ChangedGguf file("ministral3-tiny-gguf");
  const Json rope = file.config()["rope_scaling"];
  EXPECT_NEAR(rope["llama_4_scaling_beta"].get<double>(), 0.1, 1e-6);
  EXPECT_EQ(rope["mscale_all_dim"], 1.0);
  expect_words(file.lose("mistral3.rope.scaling.type").refusal(),
               {"mistral3.attention.temperature_scale", "not stretched"});
  EXPECT_EQ(file.lose("mistral3.attention.temperature_scale")
                .lose("mistral3.rope.scaling.factor")
                .config()["model_type"],
            "llama");
}

TEST(GgufOlmo2, FilesWithWindowsAreOlmo3) {
  ChangedGguf file("olmo3-odd-gguf");
  const Json config = file.config();
  EXPECT_EQ(config["model_type"], "olmo3");
  EXPECT_EQ(config["layer_types"],
            (Json{"full_attention", "sliding_attention", "sliding_attention"}));
  EXPECT_EQ(config["rope_parameters"]["sliding_attention"]["rope_theta"], 500000.0);
  file.lose("olmo2.attention.sliding_window_pattern").lose("olmo2.rope.freq_base_swa");
  EXPECT_EQ(file.config()["layer_types"][0], "sliding_attention");
  EXPECT_EQ(file.config()["rope_parameters"]["sliding_attention"]["rope_theta"], 300.0);
  EXPECT_EQ(file.set("olmo2.attention.sliding_window", 0).config()["model_type"], "olmo2");
}

// Files of an age without a key that says how routers score, or which experts go together.
TEST(GgufDeepseek2, AgesAreTold) {
  EXPECT_EQ(ChangedGguf("glm4-moe-lite-tiny-gguf")
                .lose("deepseek2.expert_gating_func")
                .config()["model_type"],
            "deepseek_v3");
  EXPECT_EQ(ChangedGguf("deepseek-v2-moe-odd-gguf").config()["model_type"], "deepseek_v2");
  const auto groups = [](const char* fixture, uint32_t experts) {
    const Json config =
        ChangedGguf(fixture).set("deepseek2.expert_count", experts).config_of_keys();
    return Json{config["n_group"], config["topk_group"]};
  };
  EXPECT_EQ(groups("kimi-k2-tiny-gguf", 256), (Json{8, 4}));
  EXPECT_EQ(groups("kimi-k2-tiny-gguf", 384), (Json{1, 1}));
  EXPECT_EQ(groups("deepseek-v2-moe-odd-gguf", 160), (Json{8, 3}));
  EXPECT_EQ(groups("deepseek-v2-moe-odd-gguf", 64), (Json{1, 1}));
}

TEST(GgufDeepseek2, FilesWithoutExpertsAreYoutus) {
  const BoundModel youtu = ChangedGguf("youtu-tiny-gguf").open();
  EXPECT_EQ(youtu.shape().family, "youtu");
  EXPECT_EQ(youtu.shape().num_experts, 1);
  expect_words(
      ChangedGguf("youtu-tiny-gguf").set("deepseek2.leading_dense_block_count", 1).refusal(),
      {"deepseek2.expert_count"});
}

TEST(GgufMinicpm3, SizesAreTheKeys) {
  const Json config = ChangedGguf("minicpm3-tiny-gguf").config();
  EXPECT_EQ(config["qk_nope_head_dim"], 8);
  EXPECT_EQ(config["qk_rope_head_dim"], 4);
  EXPECT_EQ(config["dim_model_base"], 256);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  expect_words(ChangedGguf("minicpm3-tiny-gguf").set("minicpm3.rope.dimension_count", 12).refusal(),
               {"not narrower"});
}

}  // namespace
}  // namespace sluice
