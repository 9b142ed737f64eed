// What families write: as many programs as sublayers differ, and the work space that they need.
#include <gtest/gtest.h>

#include "src/model/family.h"

namespace sluice {
namespace {

using Kind = Operator::Kind;

std::unique_ptr<FamilyModel> model(const std::string& config) {
  return make_family_model(ModelConfig(config, "config.json"));
}

std::vector<Kind> kinds(const FamilyModel& of, size_t sublayer) {
  std::vector<Kind> out;
  for (const Operator& op : of.program(sublayer).operators) out.push_back(op.kind);
  return out;
}

int64_t window(const FamilyModel& of, size_t sublayer) {
  return of.shape().state_of(of.shape().sublayers[sublayer].state).window;
}

TEST(FamilyPrograms, Llama) {
  const auto llama = model(R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 40,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32})");
  EXPECT_EQ(kinds(*llama, 0), (std::vector{Kind::kGatherTokens, Kind::kSetHidden}));
  for (const size_t attention : {1u, 3u, 5u}) {
    EXPECT_EQ(
        kinds(*llama, attention),
        (std::vector{Kind::kNormHidden, Kind::kLinear, Kind::kLinear, Kind::kLinear, Kind::kRope,
                     Kind::kRope, Kind::kAttend, Kind::kLinear, Kind::kAddToHidden}));
    EXPECT_EQ(&llama->program(attention), &llama->program(1)) << "layers are alike";
  }
  EXPECT_EQ(kinds(*llama, 2), (std::vector{Kind::kNormHidden, Kind::kLinear, Kind::kLinear,
                                           Kind::kGate, Kind::kLinear, Kind::kAddToHidden}));
  EXPECT_EQ(kinds(*llama, 7), (std::vector{Kind::kReadNeededHidden, Kind::kNorm, Kind::kLogits}));
  EXPECT_EQ(llama->shape().workspace_columns, 16 + 2 * 48) << "the MLP is the widest";
}

TEST(FamilyPrograms, Qwen3HasNormsOfHeadsBeforeTheyAreTurned) {
  const auto qwen3 = model(R"({"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 40,
      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
      "vocab_size": 32})");
  EXPECT_EQ(kinds(*qwen3, 1),
            (std::vector{Kind::kNormHidden, Kind::kLinear, Kind::kLinear, Kind::kLinear,
                         Kind::kNormHeads, Kind::kNormHeads, Kind::kRope, Kind::kRope,
                         Kind::kAttend, Kind::kLinear, Kind::kAddToHidden}));
  const std::vector<Operator>& operators = qwen3->program(1).operators;
  EXPECT_EQ(operators[4].heads, 4);
  EXPECT_EQ(operators[5].heads, 2);
  const SublayerShape& attention = qwen3->shape().sublayers[1];
  EXPECT_EQ(attention.weights[static_cast<size_t>(operators[5].weight)].role, "k_norm");
  EXPECT_EQ(attention.weights[static_cast<size_t>(operators[5].weight)].cols, 6);
}

// The MLP's norm reads the stream before attention is added: both are one sublayer.
TEST(FamilyPrograms, CohereComputesBothPartsOfALayerOfOneInput) {
  const auto cohere = model(R"({"model_type": "cohere2", "hidden_size": 16, "intermediate_size": 40,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32,
      "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8})");
  ASSERT_EQ(cohere->shape().sublayers.size(), 4u);
  const std::vector rest{Kind::kAttend, Kind::kLinear, Kind::kNormHidden,
                         Kind::kLinear, Kind::kLinear, Kind::kGate,
                         Kind::kLinear, Kind::kAdd,    Kind::kAddToHidden};
  std::vector<Kind> turned{Kind::kNormHidden, Kind::kLinear, Kind::kLinear,
                           Kind::kLinear,     Kind::kRope,   Kind::kRope};
  std::vector<Kind> plain(turned.begin(), turned.begin() + 4);
  turned.insert(turned.end(), rest.begin(), rest.end());
  plain.insert(plain.end(), rest.begin(), rest.end());
  EXPECT_EQ(kinds(*cohere, 1), turned);
  EXPECT_EQ(kinds(*cohere, 2), plain) << "no rotary positions without a window";
  EXPECT_EQ(window(*cohere, 1), 8);
  EXPECT_EQ(window(*cohere, 2), 0);
}

TEST(FamilyPrograms, Gemma2HasNormsAroundAndCaps) {
  const auto gemma = model(R"({"model_type": "gemma2", "hidden_size": 16, "intermediate_size": 40,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
      "vocab_size": 32, "sliding_window": 8, "query_pre_attn_scalar": 4})");
  EXPECT_EQ(kinds(*gemma, 0), (std::vector{Kind::kGatherTokens, Kind::kScale, Kind::kSetHidden}));
  EXPECT_EQ(kinds(*gemma, 2),
            (std::vector{Kind::kNormHidden, Kind::kLinear, Kind::kLinear, Kind::kGate,
                         Kind::kLinear, Kind::kNorm, Kind::kAddToHidden}));
  const AttendSpec& how = gemma->program(1).operators[6].attend;
  EXPECT_EQ(how.scale, 0.5f);
  EXPECT_EQ(how.soft_cap, 50);
  EXPECT_EQ(window(*gemma, 1), 8);
  EXPECT_EQ(window(*gemma, 3), 0);
  EXPECT_EQ(gemma->program(1).operators, gemma->program(3).operators) << "but for what they see";
  EXPECT_EQ(gemma->program(5).operators.back().factor, 30) << "logits are capped";
  EXPECT_EQ(gemma->shape().sublayers[1].weights.front().added, 1);
}

TEST(FamilyPrograms, OptWithProjectionsAndNormsBehind) {
  const auto opt = model(R"({"model_type": "opt", "hidden_size": 16, "ffn_dim": 20,
      "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 32,
      "max_position_embeddings": 64, "word_embed_proj_dim": 8, "do_layer_norm_before": false})");
  EXPECT_EQ(kinds(*opt, 0), (std::vector{Kind::kGatherTokens, Kind::kLinear, Kind::kGatherPositions,
                                         Kind::kAdd, Kind::kSetHidden}));
  EXPECT_EQ(kinds(*opt, 1), (std::vector{Kind::kReadHidden, Kind::kLinear, Kind::kLinear,
                                         Kind::kLinear, Kind::kAttend, Kind::kLinear,
                                         Kind::kAddToHidden, Kind::kNormHiddenInPlace}));
  EXPECT_EQ(kinds(*opt, 3), (std::vector{Kind::kReadNeededHidden, Kind::kLinear, Kind::kLogits}));
  EXPECT_EQ(opt->shape().workspace_columns, 5 * 16) << "attention is the widest";
}

// Three layers without attention and one with: the first kind is never cut.
TEST(FamilyPrograms, Qwen35HasADeltaNetOrAGateBehindAttention) {
  const auto qwen = model(R"({"model_type": "qwen3_5_text", "hidden_size": 16,
      "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32, "linear_num_key_heads": 2,
      "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8})");
  EXPECT_EQ(kinds(*qwen, 1),
            (std::vector{Kind::kNormHidden, Kind::kLinear, Kind::kLinear, Kind::kLinear,
                         Kind::kLinear, Kind::kActivate, Kind::kTimeSteps, Kind::kDecay,
                         Kind::kConvolve, Kind::kRecurrentRule, Kind::kNormHeads, Kind::kGate,
                         Kind::kLinear, Kind::kAddToHidden}));
  EXPECT_EQ(qwen->program(1).cut, -1);
  EXPECT_EQ(&qwen->program(3), &qwen->program(1)) << "layers are alike";
  EXPECT_EQ(
      kinds(*qwen, 7),
      (std::vector{Kind::kNormHidden, Kind::kLinear, Kind::kTakeHeads, Kind::kTakeHeads,
                   Kind::kLinear, Kind::kLinear, Kind::kNormHeads, Kind::kNormHeads, Kind::kRope,
                   Kind::kRope, Kind::kAttend, Kind::kGate, Kind::kLinear, Kind::kAddToHidden}));
  const LayerProgram& attention = qwen->program(7);
  const Operator& attend = attention.operators[static_cast<size_t>(attention.cut)];
  EXPECT_EQ(attend.in[3], attention.operators[11].in[0]) << "the gate is kept across the cut";
  EXPECT_EQ(attend.in[3].cols, 4 * 8);
}

// Its projections are two products, taken apart; where heads of keys and values are as wide as each
// other, each part in one go.
TEST(FamilyPrograms, Qwen3NextTakesItsTwoProjectionsApart) {
  const auto made = [](const char* value_width) {
    return model(std::string(R"({"model_type": "qwen3_next", "hidden_size": 16,
      "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32, "linear_num_key_heads": 2,
      "linear_num_value_heads": 4, "linear_key_head_dim": 8, "num_experts": 4,
      "num_experts_per_tok": 2, "linear_value_head_dim": )") +
                 value_width + "}");
  };
  const auto copies = [](const FamilyModel& of) {
    const auto all = kinds(of, 1);
    return std::count(all.begin(), all.end(), Kind::kTakeHeads);
  };
  EXPECT_EQ(copies(*made("8")), 6);
  EXPECT_EQ(copies(*made("7")), 2 * 4 + 2) << "head by head, but for what there is one of each";
}

// Queries by way of a row of their own; keys and values are one row, of which the turned part and
// the rest come from two parts of one tensor.
TEST(FamilyPrograms, YoutuAttendsToLatentRows) {
  const auto youtu = model(R"({"model_type": "youtu", "hidden_size": 16, "intermediate_size": 40,
      "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32, "q_lora_rank": 12,
      "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6})");
  EXPECT_EQ(
      kinds(*youtu, 1),
      (std::vector{Kind::kNormHidden, Kind::kLinear, Kind::kNorm, Kind::kLinear, Kind::kLinear,
                   Kind::kLinear, Kind::kNorm, Kind::kTakeHeads, Kind::kAbsorb, Kind::kRope,
                   Kind::kRope, Kind::kAttend, Kind::kExpand, Kind::kLinear, Kind::kAddToHidden}));
  EXPECT_EQ(&youtu->program(3), &youtu->program(1)) << "layers are alike";
  const LayerProgram& program = youtu->program(1);
  const Operator& attend = program.operators[static_cast<size_t>(program.cut)];
  EXPECT_EQ(attend.in[0].cols, 4 * 14);
  EXPECT_EQ(attend.in[1].cols, 14);
  EXPECT_EQ(attend.in[2].slot, -1) << "keys are the values too";
  const SublayerShape& sublayer = youtu->shape().sublayers[1];
  const WeightShape& latent = *sublayer.find("latent");
  const WeightShape& turned = *sublayer.find("turned");
  EXPECT_EQ(latent.fused.tensors.front(), "model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
  EXPECT_EQ(turned.fused.first_row, 10);
  EXPECT_EQ(turned.fused.tensor_rows, 14);
  const WeightShape& by_head = *sublayer.find("kv_b");
  EXPECT_EQ(by_head.rows, 4 * (8 + 6));
  EXPECT_TRUE(by_head.is_by_head);
  EXPECT_FALSE(by_head.may_be_quantised());
  EXPECT_FALSE(by_head.is_after_cut) << "used on both sides";
}

}  // namespace
}  // namespace sluice
