// Gemma 4: which layers keep keys and values and whose they read, heads by type of layer, rows of a
// token for each layer; what transformers writes in place of the published keys, and what is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "src/base/error.h"
#include "src/model/family.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Kind = Operator::Kind;

const Json kTypes{"sliding_attention", "full_attention",    "sliding_attention",
                  "full_attention",    "sliding_attention", "full_attention"};

Json gemma4(const Json& changes = Json::object()) {
  Json config{{"model_type", "gemma4_text"},
              {"hidden_size", 32},
              {"intermediate_size", 48},
              {"num_hidden_layers", 6},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 8},
              {"global_head_dim", 16},
              {"vocab_size", 40},
              {"vocab_size_per_layer_input", 40},
              {"max_position_embeddings", 4096},
              {"layer_types", kTypes},
              {"sliding_window", 64},
              {"num_kv_shared_layers", 3},
              {"hidden_size_per_layer_input", 4}};
  config.merge_patch(changes);
  return config;
}

std::unique_ptr<FamilyModel> made_of(const Json& config) {
  return make_family_model(ModelConfig(config.dump(), "config.json"));
}

const SublayerShape& attention_of(const FamilyModel& of, size_t layer) {
  return of.shape().sublayers[1 + 2 * layer];
}

const Operator& operator_of(const FamilyModel& of, size_t sublayer, Kind kind) {
  for (const Operator& op : of.program(sublayer).operators)
    if (op.kind == kind) return op;
  throw std::runtime_error("no such operator");
}

TEST(Gemma4, LastLayersReadTheLastOfTheirTypeThatKeepsItsOwn) {
  const auto made = made_of(gemma4());
  const ModelShape& shape = made->shape();
  ASSERT_EQ(shape.state_groups.size(), 2u);
  EXPECT_EQ(shape.state_groups[0], (StateGroup{{.heads = 2, .width = 8, .window = 64}, 2, 1, {1}}));
  EXPECT_EQ(shape.state_groups[1], (StateGroup{{.heads = 2, .width = 16}, 1, 2, {0}}));
  EXPECT_EQ(attention_of(*made, 2).state, (StatePlace{0, 1, false}));
  EXPECT_EQ(attention_of(*made, 3).state, (StatePlace{1, 0, true}));
  EXPECT_EQ(attention_of(*made, 4).state, (StatePlace{0, 1, true}));
  EXPECT_EQ(attention_of(*made, 5).state, (StatePlace{1, 0, true}));
  EXPECT_TRUE(attention_of(*made, 1).find("k") && attention_of(*made, 1).find("v"));
  EXPECT_FALSE(attention_of(*made, 3).find("k") || attention_of(*made, 3).find("k_norm"));
  EXPECT_EQ(operator_of(*made, 7, Kind::kAttend).in[1].slot, -1);
  // 2 heads of 8 and 16 columns, keys and values, in two layers and in one.
  EXPECT_EQ(shape.state_elements_per_token(), 2 * 2 * 2 * 8 + 2 * 2 * 16);
}

TEST(Gemma4, HeadsTurnAsTheirTypeSays) {
  const auto made = made_of(gemma4());
  const auto& full = operator_of(*made, 3, Kind::kRope).frequencies;
  ASSERT_EQ(full.size(), 8u) << "half of 16 columns";
  EXPECT_FLOAT_EQ(full[0], 1);
  EXPECT_FLOAT_EQ(full[1], static_cast<float>(1 / std::pow(1e6, 2.0 / 16)));
  for (size_t i = 2; i < 8; ++i) EXPECT_EQ(full[i], 0) << "a quarter of the pairs is turned";
  const auto& window = operator_of(*made, 1, Kind::kRope).frequencies;
  ASSERT_EQ(window.size(), 4u);
  EXPECT_FLOAT_EQ(window[3], static_cast<float>(1 / std::pow(1e4, 6.0 / 8)));
  EXPECT_EQ(operator_of(*made, 1, Kind::kAttend).attend.scale, 1);
}

TEST(Gemma4, TokensHaveARowForEachLayer) {
  const auto made = made_of(gemma4());
  EXPECT_EQ(made->shape().carried_columns, 6 * 4);
  EXPECT_EQ(made->shape().hidden_row_bytes(), 4 * (32 + 24));
  const WeightShape* table = made->shape().sublayers.front().find("layer_tokens");
  ASSERT_TRUE(table);
  EXPECT_EQ(table->kind, WeightKind::kTable);
  EXPECT_EQ(table->cols, 24);
  EXPECT_EQ(operator_of(*made, 2 + 2 * 4, Kind::kReadCarried).offset, 4 * 4);
  const auto without = made_of(gemma4({{"hidden_size_per_layer_input", 0}}));
  EXPECT_EQ(without->shape().carried_columns, 0);
  EXPECT_FALSE(without->shape().sublayers.front().find("layer_tokens"));
}

TEST(Gemma4, SharedLayersMayBeTwiceAsWide) {
  const auto made = made_of(gemma4({{"use_double_wide_mlp", true}}));
  EXPECT_EQ(made->shape().sublayers[6].find("gate")->rows, 48);
  EXPECT_EQ(made->shape().sublayers[8].find("gate")->rows, 96);
}

TEST(Gemma4, KeysMayBeTheValuesOfLayersThatSeeEverything) {
  const auto made = made_of(gemma4({{"attention_k_eq_v", true},
                                    {"num_global_key_value_heads", 1},
                                    {"num_kv_shared_layers", 0}}));
  EXPECT_TRUE(attention_of(*made, 0).find("v"));
  EXPECT_FALSE(attention_of(*made, 1).find("v"));
  EXPECT_EQ(made->shape().state_of(attention_of(*made, 1).state).heads, 1);
  EXPECT_EQ(made->shape().state_of(attention_of(*made, 0).state).heads, 2);
}

// Sizes by layer, as transformers saves them.
TEST(Gemma4, ReadsSizesOfSingleLayers) {
  Json own = Json::object();
  for (const char* layer : {"1", "3", "5"})
    own[layer] = {{"head_dim", 12}, {"num_key_value_heads", 1}};
  const auto made = made_of(gemma4({{"per_layer_config", own}, {"global_head_dim", nullptr}}));
  EXPECT_EQ(made->shape().state_of(attention_of(*made, 5).state),
            (LayerState{.heads = 1, .width = 12}));
}

TEST(Gemma4, ReadsTheTextPartOfModelsThatSeeAndHear) {
  const auto made = made_of({{"model_type", "gemma4"}, {"text_config", gemma4()}});
  EXPECT_EQ(made->shape().family, "gemma4_text");
  const auto& names = made->shape().sublayers[1].weights[1].names;
  EXPECT_NE(std::find(names.begin(), names.end(),
                      "model.language_model.layers.0.self_attn.q_proj.weight"),
            names.end());
}

TEST(Gemma4, RefusesByName) {
  const struct {
    Json changes;
    const char* says;
  } cases[] = {{{{"enable_moe_block", true}}, "num_experts"},
               {{{"use_bidirectional_attention", "all"}}, "ahead"},
               {{{"num_kv_shared_layers", 5}}, "no layer of its type"},
               {{{"num_kv_shared_layers", 6}}, "num_kv_shared_layers"},
               {{{"vocab_size_per_layer_input", 39}}, "vocab_size_per_layer_input"},
               {{{"hidden_activation", "tanh"}}, "hidden_activation"},
               {{{"num_key_value_heads", 3}}, "KV heads"},
               {{{"global_head_dim", 7}}, "7 columns of a head"},
               {{{"per_layer_config", {{"5", {{"head_dim", 10}}}}}}, "their heads differ"},
               {{{"per_layer_config", {{"5", {{"hidden_size", 10}}}}}}, "hidden_size"},
               {{{"layer_types", {"full_attention"}}}, "layer_types"}};
  for (const auto& one : cases) {
    try {
      made_of(gemma4(one.changes));
      ADD_FAILURE() << one.changes << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      EXPECT_NE(error.text().find(one.says), std::string::npos) << error.text();
    }
  }
  EXPECT_NO_THROW(made_of(gemma4({{"use_bidirectional_attention", "vision"}})))
      << "prompts of text have none";
}

}  // namespace
}  // namespace sluice
