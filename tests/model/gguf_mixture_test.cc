// Mixtures of experts in GGUF files: what their keys and stacks mean, and what of either is damaged
// or not read. The files: scripts/golden/gguf_mixtures.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/model/changed_gguf.h"

namespace sluice {
namespace {

using made::ChangedGguf;
using made::expect_words;

const WeightShape& first_named(const ModelShape& shape, std::string_view role) {
  for (const SublayerShape& sublayer : shape.sublayers)
    if (const WeightShape* found = sublayer.find(role)) return *found;
  throw std::runtime_error("no such weight");
}

TEST(GgufMixture, CountsWidthsAndRoutersAreTheKeys) {
  const nlohmann::json qwen = ChangedGguf("qwen3-moe-odd-gguf").config();
  EXPECT_EQ(qwen["num_experts"], 3);
  EXPECT_EQ(qwen["num_experts_per_tok"], 3);
  EXPECT_EQ(qwen["moe_intermediate_size"], 13);
  EXPECT_EQ(qwen["mlp_only_layers"], nlohmann::json({0}));
  EXPECT_EQ(qwen["norm_topk_prob"], false);
  EXPECT_EQ(ChangedGguf("qwen3-moe-tiny-gguf").config()["norm_topk_prob"], true)
      << "the family's, where a file says nothing";
  EXPECT_EQ(ChangedGguf("qwen2-moe-tiny-gguf").config()["norm_topk_prob"], false);
  EXPECT_EQ(ChangedGguf("qwen2-moe-odd-gguf").config()["shared_expert_intermediate_size"], 11);
  EXPECT_EQ(ChangedGguf("mixtral-odd-gguf").config()["model_type"], "mixtral");
  const nlohmann::json glm = ChangedGguf("glm4-moe-odd-gguf").config();
  EXPECT_EQ(glm["first_k_dense_replace"], 1);
  EXPECT_EQ(glm["n_group"], 3);
  EXPECT_EQ(glm["topk_group"], 2);
  EXPECT_EQ(glm["norm_topk_prob"], false);
}

// Where no key says how wide experts are, their matrices do.
TEST(GgufMixture, WidthsMayBeTheTensors) {
  ChangedGguf qwen("qwen2-moe-odd-gguf");
  qwen.lose("qwen2moe.expert_feed_forward_length");
  qwen.lose("qwen2moe.expert_shared_feed_forward_length");
  EXPECT_EQ(qwen.config()["moe_intermediate_size"], 13);
  EXPECT_EQ(qwen.config()["shared_expert_intermediate_size"], 11);
}

// An expert's bytes are a run of the stack's, so that it is read alone.
TEST(GgufMixture, AnExpertIsARunOfItsStack) {
  const BoundModel model =
      BoundModel::open(std::filesystem::path(SLUICE_FIXTURES) / "gguf" / "experts.gguf");
  const io::TensorEntry& stack = *model.checkpoint().find("blk.1.ffn_up_exps.weight");
  EXPECT_EQ(stack.shape, (std::vector<int64_t>{3, 32, 256}));
  for (size_t i = 0; i < model.shape().sublayers.size(); ++i) {
    const SublayerShape& sublayer = model.shape().sublayers[i];
    if (sublayer.kind != SublayerKind::kMlp || sublayer.layer_index != 1) continue;
    for (size_t w = 0; w < sublayer.weights.size(); ++w) {
      if (sublayer.weights[w].role != "experts.up") continue;
      for (size_t expert = 0; expert < 3; ++expert) {
        const ForeignMatrix* matrix = model.foreign(i, w, expert);
        ASSERT_NE(matrix, nullptr);
        const auto ranges = matrix->ranges(matrix->run_of({0, 32, 0, 256}));
        ASSERT_EQ(ranges.size(), 1u);
        EXPECT_EQ(ranges[0].bytes, stack.bytes / 3);
        EXPECT_EQ(ranges[0].offset, stack.offset + static_cast<int64_t>(expert) * ranges[0].bytes);
      }
      return;
    }
  }
  FAIL() << "no experts";
}

// Routers are f32 in files whose matrices are not.
TEST(GgufMixture, RoutersKeepTheirType) {
  const BoundModel model = ChangedGguf("qwen3-moe-odd-gguf").open();
  EXPECT_EQ(model.shape().weight_dtype, DType::kBF16);
  int routers = 0;
  for (const SublayerShape& sublayer : model.shape().sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.role == "router") {
        EXPECT_EQ(model.shape().format_of(weight), WeightFormat::plain(DType::kF32));
        ++routers;
      }
  EXPECT_GT(routers, 0);
  EXPECT_NO_THROW(model.require_runnable());
  EXPECT_TRUE(model.notes().empty());
}

TEST(GgufMixture, CountsThatDoNotFitAreRefused) {
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.expert_count", 0).refusal(),
               {"qwen3moe.expert_count is 0"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").lose("qwen3moe.expert_count").refusal(),
               {"qwen3moe.expert_count is missing"});
  expect_words(ChangedGguf("mixtral-tiny-gguf").set("llama.expert_count", 0).refusal(),
               {"blk.0.ffn_gate_exps.weight holds experts", "llama.expert_count"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.expert_used_count", 9).refusal(),
               {"expert_used_count is 9", "8 experts"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.expert_used_count", 0).refusal(),
               {"expert_used_count is 0"});
  expect_words(ChangedGguf("glm4-moe-odd-gguf").set("glm4moe.expert_group_count", 4).refusal(),
               {"9 experts in 4 groups"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.block_count", 1 << 30).refusal(),
               {"block_count"});
}

TEST(GgufMixture, RoutersOfAnotherKindAreRefused) {
  for (const uint32_t gating : {1u, 7u})
    expect_words(
        ChangedGguf("glm4-moe-odd-gguf").set("glm4moe.expert_gating_func", gating).refusal(),
        {"expert_gating_func is", "2 is read"});
  EXPECT_EQ(ChangedGguf("glm4-moe-odd-gguf").set("glm4moe.expert_gating_func", 0).refusal(),
            "opened")
      << "not said";
}

TEST(GgufMixture, TensorsThatAreMissingOrOfAnotherShapeAreNamed) {
  for (const char* name : {"blk.1.ffn_gate_inp.weight", "blk.1.ffn_up_exps.weight",
                           "blk.1.ffn_down_exps.weight", "blk.0.attn_k_norm.weight"})
    expect_words(ChangedGguf("qwen3-moe-tiny-gguf").lose(name).refusal(), {name, "missing"});
  expect_words(ChangedGguf("glm4-moe-odd-gguf").lose("blk.1.exp_probs_b.bias").refusal(),
               {"blk.1.exp_probs_b.bias", "missing"});
  const char* stack = "blk.1.ffn_down_exps.weight";
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").resize(stack, 2, 7).refusal(),
               {stack, "[7, 16, 12]", "[8, 16, 12]"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").resize(stack, 0, 11).refusal(), {stack, "11"});
  expect_words(ChangedGguf("qwen3-moe-tiny-gguf").set("qwen3moe.expert_count", 7).refusal(),
               {"exps.weight has shape [8, ", "[7, "});
}

TEST(GgufMixture, LayersThatDraftAreLeftOut) {
  ChangedGguf model("glm4-moe-odd-gguf");
  const BoundModel whole = model.open();
  EXPECT_EQ(whole.shape().num_layers, 3);
  EXPECT_EQ(first_named(whole.shape(), "router.bias").cols, 9);
  model.set("glm4moe.nextn_predict_layers", 1);
  EXPECT_EQ(model.open().shape().num_layers, 2);
  EXPECT_FALSE(model.open().notes().empty()) << "says what is not used";
  expect_words(model.set("glm4moe.nextn_predict_layers", 3).refusal(), {"nextn_predict_layers"});
}

// Which layers have delta nets, their sizes, and in what order files have their heads.
TEST(GgufMixture, DeltaNetsAreTheKeys) {
  const nlohmann::json qwen = ChangedGguf("qwen3-5-moe-thirds-gguf").config();
  EXPECT_EQ(qwen["layer_types"], nlohmann::json({"linear_attention", "full_attention"}));
  EXPECT_EQ(qwen["linear_num_key_heads"], 2);
  EXPECT_EQ(qwen["linear_num_value_heads"], 6);
  EXPECT_EQ(qwen["linear_value_head_dim"], 8);
  EXPECT_EQ(qwen["partial_rotary_factor"], 0.25);
  EXPECT_EQ(qwen["is_delta_tiled"], true);
  const nlohmann::json next = ChangedGguf("qwen3-next-odd-gguf").config();
  EXPECT_EQ(next["is_delta_tiled"], false) << "other files' order";
  EXPECT_EQ(next["is_delta_in_order"], true);
  EXPECT_EQ(next["linear_key_head_dim"], 5);
  EXPECT_EQ(next["linear_value_head_dim"], 7);
  EXPECT_EQ(next["norm_topk_prob"], false);
  ChangedGguf dense("qwen3-5-tiny-gguf");
  EXPECT_EQ(dense.config()["layer_types"].back(), "full_attention") << "every fourth";
  EXPECT_EQ(dense.config()["model_type"], "qwen3_5_text");
}

TEST(GgufMixture, DeltaNetsThatDoNotFitAreRefused) {
  const std::string p = "qwen35moe.";
  const char* fixture = "qwen3-5-moe-thirds-gguf";
  expect_words(ChangedGguf(fixture).set(p + "ssm.time_step_rank", 5).refusal(),
               {"ssm.inner_size is 48", "5 heads"});
  expect_words(ChangedGguf(fixture).set(p + "ssm.group_count", 0).refusal(),
               {"ssm.group_count is 0"});
  expect_words(ChangedGguf(fixture).set(p + "ssm.group_count", 4).refusal(),
               {"6 value heads", "4 key heads"});
  expect_words(ChangedGguf(fixture).lose(p + "ssm.conv_kernel").refusal(),
               {"ssm.conv_kernel is missing"});
  expect_words(ChangedGguf(fixture).lose("blk.0.ssm_conv1d.weight").refusal(),
               {"blk.0.ssm_conv1d.weight", "missing"});
  expect_words(ChangedGguf(fixture).set(p + "block_count", 3).refusal(), {"recurrent_layers"});
  expect_words(ChangedGguf(fixture).resize("blk.0.ssm_conv1d.weight", 1, 79).refusal(),
               {"blk.0.ssm_conv1d.weight", "79"});
}

// Files have -exp of what the weight is, by turns of key heads.
TEST(GgufMixture, DecaysAreLogarithms) {
  const ChangedGguf file("qwen3-5-moe-thirds-gguf");
  const BoundModel model = file.open();
  const io::TensorEntry& tensor = *model.checkpoint().find("blk.0.ssm_a");
  const std::string all = read_file(model.checkpoint().files().front().path, 1 << 24);
  std::vector<float> decays(6);
  std::memcpy(decays.data(), all.data() + tensor.offset, 24);
  const SublayerShape& attention = model.shape().sublayers[1];
  size_t at = 0;
  while (attention.weights[at].role != "a_log") ++at;
  const ForeignMatrix* matrix = model.foreign(1, at, 0);
  ASSERT_NE(matrix, nullptr);
  const auto read = [&](int64_t row) {
    const ForeignBytes bytes{std::as_bytes(std::span(decays))};
    float out = 0;
    matrix->decoder(bytes, matrix->whole())->values(row, &out);
    return out;
  };
  for (int64_t row = 0; row < 6; ++row)
    EXPECT_FLOAT_EQ(read(row), std::log(-decays[static_cast<size_t>(row % 3 * 2 + row / 3)]));
  for (const float wrong : {0.5f, std::nanf("")}) {
    decays[2] = wrong;
    EXPECT_THROW(read(1), Error);
  }
}

// Which layers have a state space, its sizes, and what of attention there is beside it.
TEST(GgufMixture, StateSpacesAreTheKeys) {
  const nlohmann::json mamba = ChangedGguf("mamba2-tiny-gguf").config();
  EXPECT_EQ(mamba["num_heads"], 4);
  EXPECT_EQ(mamba["head_dim"], 8);
  EXPECT_EQ(mamba["n_groups"], 2);
  EXPECT_EQ(mamba["state_size"], 8);
  EXPECT_EQ(mamba["conv_kernel"], 4);
  EXPECT_EQ(mamba["expand"], 2);
  EXPECT_EQ(mamba["use_conv_bias"], true);
  EXPECT_FALSE(mamba.contains("num_attention_heads"));
  const nlohmann::json dense = ChangedGguf("granitemoehybrid-tiny-gguf").config();
  EXPECT_EQ(dense["layer_types"], nlohmann::json({"mamba", "attention", "mamba"}));
  EXPECT_EQ(dense["num_key_value_heads"], 2);
  EXPECT_EQ(dense["num_local_experts"], 0);
  EXPECT_EQ(dense["shared_intermediate_size"], 24);
  EXPECT_EQ(dense["position_embedding_type"], "nope");
  EXPECT_FLOAT_EQ(dense["residual_multiplier"].get<float>(), 0.4f);
  const nlohmann::json mixture = ChangedGguf("granitemoehybrid-moe-odd-gguf").config();
  EXPECT_EQ(mixture["layer_types"], nlohmann::json({"attention", "mamba", "mamba"}));
  EXPECT_EQ(mixture["position_embedding_type"], "rope");
  EXPECT_EQ(mixture["num_local_experts"], 5);
  EXPECT_EQ(mixture["intermediate_size"], 7) << "an expert's";
  EXPECT_EQ(mixture["shared_intermediate_size"], 29);
  EXPECT_EQ(mixture["mamba_n_groups"], 2);
  EXPECT_EQ(mixture["mamba_conv_bias"], false);
  ChangedGguf narrow("granitemoehybrid-tiny-gguf");
  narrow.lose("granitehybrid.expert_shared_feed_forward_length");
  EXPECT_EQ(narrow.config()["shared_intermediate_size"], 24) << "as wide as MLPs are";
}

TEST(GgufMixture, StateSpacesThatDoNotFitAreRefused) {
  const char* fixture = "mamba2-tiny-gguf";
  expect_words(ChangedGguf(fixture).set("mamba2.ssm.time_step_rank", 5).refusal(),
               {"ssm.inner_size is 32", "5 heads"});
  expect_words(ChangedGguf(fixture).set("mamba2.ssm.inner_size", 40).refusal(),
               {"ssm.inner_size is 40", "16 columns"});
  expect_words(ChangedGguf(fixture).set("mamba2.embedding_length", 0).refusal(), {"0 columns"});
  expect_words(ChangedGguf(fixture).set("mamba2.ssm.group_count", 3).refusal(),
               {"4 heads", "3 groups"});
  expect_words(ChangedGguf(fixture).lose("mamba2.ssm.state_size").refusal(), {"ssm.state_size"});
  for (const char* name : {"blk.0.ssm_in.weight", "blk.1.ssm_conv1d.weight", "blk.0.ssm_a",
                           "blk.0.ssm_d", "blk.1.ssm_dt.bias", "blk.0.ssm_norm.weight"})
    expect_words(ChangedGguf(fixture).lose(name).refusal(), {name, "missing"});
  // The norm's gains in groups, as many as there are, and no others.
  expect_words(ChangedGguf(fixture).resize("blk.0.ssm_norm.weight", 0, 15).refusal(),
               {"blk.0.ssm_norm.weight", "15"});
  expect_words(ChangedGguf(fixture).resize("blk.0.ssm_in.weight", 1, 67).refusal(),
               {"blk.0.ssm_in.weight", "67"});
  expect_words(ChangedGguf(fixture).resize("blk.0.ssm_d", 1, 3).refusal(), {"blk.0.ssm_d", "3"});
  const std::string p = "granitehybrid.";
  const char* hybrid = "granitemoehybrid-tiny-gguf";
  expect_words(ChangedGguf(hybrid).lose(p + "attention.head_count_kv").refusal(),
               {"attention.head_count_kv"});
  expect_words(ChangedGguf(hybrid).set(p + "block_count", 4).refusal(), {"head_count_kv"});
  expect_words(ChangedGguf(hybrid).lose("blk.1.attn_k.weight").refusal(),
               {"blk.1.attn_k.weight", "missing"});
}

// Lists say what differs from layer to layer.
TEST(GgufMixture, GemmasLayersAreTheLists) {
  const nlohmann::json mixture = ChangedGguf("gemma4-moe-tiny-gguf").config();
  EXPECT_EQ(mixture["num_key_value_heads"], 4);
  EXPECT_EQ(mixture["num_global_key_value_heads"], 2);
  EXPECT_EQ(mixture["attention_k_eq_v"], true) << "no values in layers without a window";
  EXPECT_EQ(mixture["global_head_dim"], 8);
  EXPECT_EQ(mixture["head_dim"], 6);
  EXPECT_EQ(mixture["top_k_experts"], 2);
  EXPECT_EQ(mixture["rope_parameters"]["full_attention"]["partial_rotary_factor"], 0.5);
  const nlohmann::json dense = ChangedGguf("gemma4-tiny-gguf").config();
  EXPECT_EQ(dense["use_double_wide_mlp"], true);
  EXPECT_EQ(dense["num_kv_shared_layers"], 3);
  EXPECT_EQ(dense["enable_moe_block"], false);
  EXPECT_EQ(dense["hidden_size_per_layer_input"], 12);
  EXPECT_EQ(dense["vocab_size_per_layer_input"], 61);
}

TEST(GgufMixture, GemmasThatDoNotFitAreRefused) {
  const char* fixture = "gemma4-moe-tiny-gguf";
  for (const char* key : {"attention.sliding_window", "attention.sliding_window_pattern",
                          "attention.key_length", "feed_forward_length"})
    expect_words(ChangedGguf(fixture).lose(std::string("gemma4.") + key).refusal(), {key});
  expect_words(ChangedGguf(fixture).set("gemma4.attention.shared_kv_layers", 3).refusal(),
               {"shared_kv_layers is 3, of 3 layers"});
  expect_words(ChangedGguf(fixture).set("gemma4.attention.value_length", 6).refusal(),
               {"value_length is not 8"});
  expect_words(ChangedGguf(fixture).set("gemma4.block_count", 2).refusal(), {"head_count_kv"});
  expect_words(ChangedGguf(fixture).set("gemma4.expert_used_count", 7).refusal(),
               {"top_k_experts", "7, of 6"});
  expect_words(ChangedGguf(fixture).resize("rope_freqs.weight", 0, 3).refusal(),
               {"rope_freqs.weight"});
  expect_words(ChangedGguf(fixture).lose("blk.0.ffn_gate_up_exps.weight").refusal(),
               {"blk.0.ffn_gate_exps.weight", "missing"});
  expect_words(ChangedGguf(fixture).resize("blk.0.ffn_gate_up_exps.weight", 1, 19).refusal(),
               {"blk.0.ffn_gate_up_exps.weight", "19"});
}

TEST(GgufMixture, Llama4IsAsReleased) {
  const nlohmann::json llama = ChangedGguf("llama4-released-gguf").config();
  EXPECT_EQ(llama["attention_chunk_size"], 8192);
  EXPECT_EQ(llama["use_qk_norm"], true);
  EXPECT_EQ(llama["intermediate_size"], 12);
  EXPECT_EQ(llama["intermediate_size_mlp"], 24);
  EXPECT_EQ(llama["rope_scaling"]["high_freq_factor"], 1) << "without a ramp";
  expect_words(
      ChangedGguf("llama4-released-gguf").lose("llama4.interleave_moe_layer_step").refusal(),
      {"interleave_moe_layer_step"});
  expect_words(
      ChangedGguf("llama4-released-gguf").set("llama4.interleave_moe_layer_step", 1).refusal(),
      {"blk.0.ffn_gate_exps.weight", "missing"});
}

}  // namespace
}  // namespace sluice
