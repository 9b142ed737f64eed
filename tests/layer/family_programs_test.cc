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
                                           Kind::kSiluMul, Kind::kLinear, Kind::kAddToHidden}));
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

}  // namespace
}  // namespace sluice
