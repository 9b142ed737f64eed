#include "src/model/builtin.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "src/model/family.h"

namespace sluice {
namespace {

std::unique_ptr<FamilyModel> builtin(const std::string& name) {
  return make_family_model(ModelConfig(*builtin_config(name), name));
}

TEST(Builtin, ParameterCountsAreThePublishedOnes) {
  // Millions. OPT: sum of the checkpoints' tensors, as the names round it (350m has 331 million);
  // Llama to Qwen: model cards; from BLOOM on: parameters of transformers 5.24's classes.
  const std::map<std::string, double> published{{"opt-125m", 125.2},
                                                {"opt-350m", 331.2},
                                                {"opt-1.3b", 1315.8},
                                                {"opt-2.7b", 2651.6},
                                                {"opt-6.7b", 6658.5},
                                                {"opt-13b", 12853},
                                                {"opt-30b", 29975},
                                                {"opt-66b", 65719},
                                                {"opt-175b", 174600},
                                                {"tinyllama-1.1b", 1100},
                                                {"llama-7b", 6738.4},
                                                {"llama-13b", 13015.9},
                                                {"llama-33b", 32528.9},
                                                {"llama-65b", 65285.7},
                                                {"llama-2-7b", 6738.4},
                                                {"llama-2-13b", 13015.9},
                                                {"llama-2-70b", 68976.6},
                                                {"llama-3-8b", 8030.3},
                                                {"llama-3-70b", 70553.7},
                                                {"llama-3.1-8b", 8030.3},
                                                {"llama-3.1-70b", 70553.7},
                                                {"llama-3.1-405b", 405853},
                                                {"llama-3.2-1b", 1235.8},
                                                {"llama-3.2-3b", 3212.7},
                                                {"mistral-7b", 7241.7},
                                                {"mistral-nemo-12b", 12247.8},
                                                {"mistral-small-24b", 23572.4},
                                                {"mistral-large-123b", 122610.1},
                                                {"phi-3-mini-4k", 3821.1},
                                                {"phi-3-medium-4k", 13960.2},
                                                {"phi-4", 14659.5},
                                                {"qwen2-0.5b", 494.0},
                                                {"qwen2-1.5b", 1543.7},
                                                {"qwen2-7b", 7615.6},
                                                {"qwen2-72b", 72706},
                                                {"qwen2.5-0.5b", 494.0},
                                                {"qwen2.5-1.5b", 1543.7},
                                                {"qwen2.5-3b", 3085.9},
                                                {"qwen2.5-7b", 7615.6},
                                                {"qwen2.5-14b", 14770},
                                                {"qwen2.5-32b", 32763.9},
                                                {"qwen2.5-72b", 72706},
                                                {"qwen3-0.6b", 596.0},
                                                {"qwen3-1.7b", 1720.6},
                                                {"qwen3-4b", 4022.5},
                                                {"qwen3-8b", 8190.7},
                                                {"qwen3-14b", 14768.3},
                                                {"qwen3-32b", 32762.1},
                                                {"bloom-560m", 559.2},
                                                {"bloom-1b7", 1722.4},
                                                {"bloom-3b", 3002.6},
                                                {"bloom-7b1", 7069.0},
                                                {"bloom-176b", 176247.3},
                                                {"aya-23-8b", 8028.0},
                                                {"command-r-08-2024", 32296.5},
                                                {"command-r-35b", 34980.8},
                                                {"command-r7b", 8028.0},
                                                {"command-a-111b", 111057.6},
                                                {"exaone-4.0-1.2b", 1279.4},
                                                {"ernie-4.5-0.3b", 360.7},
                                                {"exaone-4.0-32b", 32003.2},
                                                {"falcon-7b", 6921.7},
                                                {"falcon-40b", 41303.3},
                                                {"falcon-180b", 178557.1},
                                                {"gemma-2b", 2506.2},
                                                {"gemma-7b", 8537.7},
                                                {"gemma-2-2b", 2614.3},
                                                {"gemma-2-9b", 9241.7},
                                                {"gemma-2-27b", 27227.1},
                                                {"gemma-3-270m", 268.1},
                                                {"gemma-3-1b", 999.9},
                                                {"gemma-3-4b", 3880.3},
                                                {"gemma-3-12b", 11766.0},
                                                {"gemma-3-27b", 27009.3},
                                                {"gemma-4-e2b", 4628.6},
                                                {"gemma-4-e4b", 7463.0},
                                                {"gemma-4-31b", 30697.3},
                                                {"glm-4-9b-chat", 9400.0},
                                                {"glm-4-9b-0414", 9400.1},
                                                {"glm-4-32b-0414", 32566.1},
                                                {"gpt2", 124.4},
                                                {"gpt2-medium", 354.8},
                                                {"gpt2-large", 774.0},
                                                {"gpt2-xl", 1557.6},
                                                {"gpt-oss-20b", 20914.8},
                                                {"gpt-oss-120b", 116829.2},
                                                {"pythia-70m", 70.4},
                                                {"pythia-160m", 162.3},
                                                {"pythia-410m", 405.3},
                                                {"pythia-1b", 1011.8},
                                                {"pythia-1.4b", 1414.6},
                                                {"pythia-2.8b", 2775.2},
                                                {"pythia-6.9b", 6857.3},
                                                {"pythia-12b", 11846.1},
                                                {"gpt-neox-20b", 20554.6},
                                                {"gpt-j-6b", 6050.9},
                                                {"granite-3.3-2b", 2533.5},
                                                {"granite-3.3-8b", 8170.9},
                                                {"ministral-3-3b", 3429.0},
                                                {"ministral-3-8b", 8489.6},
                                                {"minitron-4b", 4190.5},
                                                {"minitron-8b", 8271.7},
                                                {"nemotron-4-15b", 15628.8},
                                                {"nemotron-4-340b", 341029.2},
                                                {"olmo-2-1b", 1484.9},
                                                {"olmo-2-7b", 7298.6},
                                                {"olmo-2-13b", 13716.2},
                                                {"olmo-2-32b", 32234.3},
                                                {"olmo-3-7b", 7298.0},
                                                {"olmo-3-32b", 32233.5},
                                                {"phi-1", 1418.3},
                                                {"phi-1.5", 1418.3},
                                                {"phi-2", 2779.7},
                                                {"seed-oss-36b", 36151.1},
                                                {"smollm3-3b", 3075.1},
                                                {"stablelm-2-1.6b", 1644.5},
                                                {"stablelm-3b-4e1t", 2795.4},
                                                {"starcoder2-3b", 3030.4},
                                                {"starcoder2-7b", 7173.9},
                                                {"starcoder2-15b", 15957.9},
                                                // As transformers makes them.
                                                {"mixtral-8x7b", 46702.8},
                                                {"mixtral-8x22b", 140630.1},
                                                {"qwen3-30b-a3b", 30532.1},
                                                {"qwen3-235b-a22b", 235093.6},
                                                {"olmoe-1b-7b", 6919.2},
                                                {"qwen1.5-moe-a2.7b", 14315.8},
                                                {"deepseek-v2", 235741.4},
                                                {"deepseek-v3", 671026.4},
                                                {"kimi-k2", 1026408.2},
                                                {"glm-4.5-air", 106852.2},
                                                {"minimax-m2", 228689.7},
                                                // As transformers counts what it makes of their
                                                // sizes: names are of vision and drafts too.
                                                {"qwen3.5-9b", 8953.8},
                                                {"qwen3.5-27b", 26896.0},
                                                {"qwen3.5-35b-a3b", 34660.6},
                                                {"qwen3.5-397b-a17b", 396346.4},
                                                {"qwen3-next-80b-a3b", 79674.4},
                                                {"glm-4.7-flash", 29943.4},
                                                {"gemma-4-26b-a4b", 25233.1},
                                                {"llama-4-scout", 107769.9},
                                                {"llama-4-maverick", 400711.8},
                                                {"codestral-mamba-7b", 7285.4},
                                                {"minicpm3-4b", 4073.9},
                                                {"youtu-llm-2b", 1962.0}};
  for (const std::string& name : builtin_model_names()) {
    ASSERT_TRUE(published.contains(name)) << name << " has no published count here";
    const double millions = static_cast<double>(builtin(name)->shape().num_parameters()) / 1e6;
    EXPECT_NEAR(millions / published.at(name), 1, 0.01) << name << ": " << millions << " million";
  }
  EXPECT_EQ(builtin("llama-2-7b")->shape().num_parameters(), 6738415616);
  EXPECT_EQ(builtin("opt-125m")->shape().num_parameters(), 125239296);
  EXPECT_EQ(builtin("llama-3.2-1b")->shape().num_parameters(), 1235814400);
  EXPECT_EQ(builtin("mistral-7b")->shape().num_parameters(), 7241732096);
  EXPECT_EQ(builtin("qwen2.5-7b")->shape().num_parameters(), 7615616512);
  EXPECT_EQ(builtin("qwen3-8b")->shape().num_parameters(), 8190735360);
}

TEST(Builtin, NamesAreUniqueAndOthersUnknown) {
  const auto names = builtin_model_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) EXPECT_TRUE(builtin_config(name)) << name;
  for (const char* name : {"", "opt", "OPT-125M", "opt-125m ", "llama-4"})
    EXPECT_FALSE(builtin_config(name)) << name;
}

TEST(Builtin, ShapesHangTogether) {
  for (const std::string& name : builtin_model_names()) {
    const auto model = builtin(name);
    const ModelShape& shape = model->shape();
    // Attention and MLP side by side are one sublayer.
    const bool is_parallel = std::ssize(shape.sublayers) == shape.num_layers + 2;
    if (!is_parallel) {
      ASSERT_EQ(std::ssize(shape.sublayers), 2 * shape.num_layers + 2) << name;
    }
    EXPECT_EQ(shape.sublayers.front().kind, SublayerKind::kEmbed);
    EXPECT_EQ(shape.sublayers.back().kind, SublayerKind::kHead);
    EXPECT_EQ(shape.sublayers.back().find("logits")->rows, shape.vocab_size);
    EXPECT_EQ(shape.sublayers.back().find("no such role"), nullptr);
    std::set<std::string> names;
    for (size_t i = 1; i + 1 < shape.sublayers.size(); ++i) {
      const SublayerShape& sublayer = shape.sublayers[i];
      const size_t kinds = is_parallel ? 1 : 2;
      EXPECT_EQ(sublayer.kind,
                (i - 1) % kinds == 0 ? SublayerKind::kAttention : SublayerKind::kMlp);
      EXPECT_EQ(sublayer.layer_index, static_cast<int64_t>((i - 1) / kinds)) << name;
      std::set<std::string> roles;
      for (const WeightShape& weight : sublayer.weights) {
        EXPECT_TRUE(roles.insert(weight.role).second) << weight.role;
        ASSERT_FALSE(weight.names.empty());
        for (const std::string& tensor : weight.names)
          EXPECT_TRUE(names.insert(tensor).second) << tensor << " twice";
      }
    }
    if (!shape.is_quantised()) {
      EXPECT_EQ(shape.weight_bytes(), dtype_bytes(shape.weight_dtype) * shape.num_parameters());
    }
    int64_t recurrent = 0;
    for (const StateGroup& group : shape.state_groups)
      recurrent += group.state.is_recurrent() ? group.num_layers : 0;
    const bool is_three_of_four = name.starts_with("qwen3.5") || name.starts_with("qwen3-next");
    EXPECT_EQ(recurrent, is_three_of_four                      ? shape.num_layers / 4 * 3
                         : name.starts_with("codestral-mamba") ? shape.num_layers
                                                               : 0);
    if (shape.state_groups.front().state.is_latent()) {
      EXPECT_EQ(shape.state_elements_per_token(), name == "minicpm3-4b"   ? 62 * (256 + 32)
                                                  : name == "deepseek-v2" ? 60 * (512 + 64)
                                                  : name == "deepseek-v3" || name == "kimi-k2"
                                                      ? 61 * (512 + 64)
                                                  : name == "glm-4.7-flash" ? 47 * (512 + 64)
                                                                            : 32 * (512 + 64));
      continue;
    }
    // Of layers with a window and without, those that keep their own.
    const std::map<std::string, int64_t> gemma4{
        {"gemma-4-e2b", 12 * 2 * 256 + 3 * 2 * 512},
        {"gemma-4-e4b", 20 * 2 * 2 * 256 + 4 * 2 * 2 * 512},
        {"gemma-4-31b", 50 * 2 * 16 * 256 + 10 * 2 * 4 * 512},
        {"gemma-4-26b-a4b", 25 * 2 * 8 * 256 + 5 * 2 * 2 * 512}};
    EXPECT_EQ(shape.state_elements_per_token(),
              gemma4.contains(name)
                  ? gemma4.at(name)
                  : 2 * (shape.num_layers - recurrent) * shape.num_kv_heads * shape.head_dim)
        << name;
    // Two operations a matrix parameter and token; tables and vectors do none, a tied head does.
    const double flops = shape.matmul_flops_per_token();
    const WeightShape* of_layers = shape.sublayers.front().find("layer_tokens");
    const double parameters = static_cast<double>(
        shape.num_parameters() - (of_layers ? of_layers->rows * of_layers->cols : 0));
    const double least = shape.num_experts > 1 ? 0.06 : 1.2;  // of experts few
    EXPECT_GT(flops, least * parameters) << name;
    EXPECT_LE(flops, 2.0 * parameters) << name;
  }
}

}  // namespace
}  // namespace sluice
