// What families read of config.json beside sizes: kinds of rotary positions, layers that are not
// alike, parts of larger models; and what they refuse by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "src/base/error.h"
#include "src/model/family.h"
#include "src/model/positions.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Json decoder(const std::string& type, const Json& changes = Json::object()) {
  Json config{{"model_type", type},       {"hidden_size", 32},
              {"intermediate_size", 48},  {"num_hidden_layers", 4},
              {"num_attention_heads", 4}, {"num_key_value_heads", 2},
              {"vocab_size", 40},         {"max_position_embeddings", 4096}};
  config.merge_patch(changes);
  return config;
}

std::unique_ptr<FamilyModel> model(const Json& config) {
  return make_family_model(ModelConfig(config.dump(), "config.json"));
}

std::string refusal(const Json& config) {
  try {
    model(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    return error.what();
  }
  return "";
}

std::span<const float> frequencies(const FamilyModel& of, size_t sublayer) {
  for (const Operator& op : of.program(sublayer).operators)
    if (op.kind == Operator::Kind::kRope) return op.frequencies;
  return {};
}

std::vector<int64_t> windows(const FamilyModel& of) {
  std::vector<int64_t> out;
  for (const SublayerShape& sublayer : of.shape().sublayers)
    if (sublayer.kind == SublayerKind::kAttention)
      out.push_back(of.shape().state_of(sublayer.state).window);
  return out;
}

TEST(Decoder, RunsUpToWhereItsRotaryPositionsAreTheSame) {
  const auto dynamic =
      model(decoder("llama", {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}}}));
  EXPECT_EQ(dynamic->shape().max_positions, 4096);
  const Json factors(std::vector<double>(4, 2.0));
  const auto longrope = model(decoder(
      "phi3", {{"original_max_position_embeddings", 512},
               {"rope_scaling",
                {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}}}}));
  EXPECT_EQ(longrope->shape().max_positions, 512);
  EXPECT_NE(longrope->shape().note.find("512"), std::string::npos);
  EXPECT_FLOAT_EQ(frequencies(*longrope, 1)[0], 0.5f);
}

TEST(Decoder, LongRopeTurnsAsTheLongestSequenceWantsIt) {
  const Json of_short(std::vector<double>(4, 2.0)), of_long(std::vector<double>(4, 8.0));
  for (const int longest : {0, 1, 512, 513, 4096, 9000}) {
    Json config = decoder(
        "phi3", {{"original_max_position_embeddings", 512},
                 {"rope_scaling",
                  {{"type", "longrope"}, {"short_factor", of_short}, {"long_factor", of_long}}}});
    if (longest > 0) config[kLongestKey] = longest;
    const auto longrope = model(config);
    EXPECT_FLOAT_EQ(frequencies(*longrope, 1)[0], longest > 512 ? 0.125f : 0.5f) << longest;
    EXPECT_EQ(longrope->shape().max_positions, longest > 512 ? 4096 : 512) << longest;
    EXPECT_FALSE(longrope->shape().note.empty());
  }
}

TEST(Decoder, RunsBeyondWhatItWasMadeForWhereThatIsWanted) {
  const auto positions_of = [](const char* type, const Json& changes, std::string* note) {
    Json config = decoder(type, changes);
    config[kContextKey] = 10000;
    const auto longer = model(config);
    *note = longer->shape().note;
    return longer->shape().max_positions;
  };
  std::string note;
  EXPECT_EQ(positions_of("llama", Json::object(), &note), 10000);
  EXPECT_NE(note.find("made for 4096"), std::string::npos) << note;
  EXPECT_NE(note.find("`rope_factor` 3"), std::string::npos) << note;
  // Windows stay.
  Json config = decoder("mistral", {{"sliding_window", 4096}});
  EXPECT_EQ(windows(*model(config)), std::vector<int64_t>(4, 0));
  config[kContextKey] = 4097;
  EXPECT_EQ(windows(*model(config)), std::vector<int64_t>(4, 4096));
  // Not where theta would have to grow, nor where attention would choose keys.
  EXPECT_EQ(
      positions_of("llama", {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}}}, &note),
      4096);
  EXPECT_EQ(positions_of("deepseek_v32", {{"index_topk", 96}, {"first_k_dense_replace", 9}}, &note),
            96);
}

// Up to "index_topk" keys attention chooses all of them.
TEST(Decoder, RunsUpToWhereAttentionChoosesKeys) {
  for (const char* type : {"deepseek_v32", "glm_moe_dsa"}) {
    const auto sparse = model(decoder(type, {{"index_topk", 96}, {"first_k_dense_replace", 9}}));
    EXPECT_EQ(sparse->shape().max_positions, 96) << type;
    EXPECT_NE(sparse->shape().note.find("96 positions"), std::string::npos);
    EXPECT_EQ(model(decoder(type, {{"first_k_dense_replace", 9}}))->shape().max_positions, 2048);
    EXPECT_EQ(model(decoder(type, {{"index_topk", 8192}, {"first_k_dense_replace", 9}}))
                  ->shape()
                  .max_positions,
              4096)
        << "as its positions are";
  }
}

TEST(Decoder, YarnKeepsFastPairsAndDividesSlowOnes) {
  const auto yarn = model(decoder(
      "llama",
      {{"head_dim", 64},
       {"rope_theta", 10000.0},
       {"rope_scaling",
        {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}}}}));
  const auto values = frequencies(*yarn, 1);
  ASSERT_EQ(values.size(), 32u);
  EXPECT_FLOAT_EQ(values[0], 1);
  EXPECT_FLOAT_EQ(values[31], static_cast<float>(std::pow(10000.0, -62.0 / 64) / 4));
  for (const Operator& op : yarn->program(1).operators) {
    if (op.kind != Operator::Kind::kRope) continue;
    EXPECT_FLOAT_EQ(op.factor, static_cast<float>(0.1 * std::log(4.0) + 1));
  }
}

TEST(Decoder, RefusesRotaryPositionsThatItDoesNotKnow) {
  EXPECT_NE(refusal(decoder("llama", {{"rope_scaling", {{"rope_type", "spiral"}}}})).find("spiral"),
            std::string::npos);
  EXPECT_NE(
      refusal(decoder("phi3",
                      {{"rope_scaling",
                        {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}}}}))
          .find("short_factor"),
      std::string::npos);
  EXPECT_NE(refusal(decoder("glm", {{"partial_rotary_factor", 1.5}})).find("1.5"),
            std::string::npos);
  EXPECT_NE(refusal(decoder("llama", {{"head_dim", 7}})).find("odd"), std::string::npos);
}

TEST(Decoder, LayersHaveWindowsOfTheirOwn) {
  const auto gemma3 = model(decoder(
      "gemma3_text", {{"head_dim", 8}, {"sliding_window", 16}, {"sliding_window_pattern", 2}}));
  EXPECT_EQ(windows(*gemma3), (std::vector<int64_t>{16, 0, 16, 0}));
  EXPECT_NE(frequencies(*gemma3, 1)[1], frequencies(*gemma3, 3)[1]) << "10 000 and a million";
  EXPECT_NE(
      refusal(decoder("gemma3_text", {{"layer_types", {"full_attention"}}})).find("layer_types"),
      std::string::npos);
  EXPECT_NE(
      refusal(decoder("olmo3", {{"layer_types", Json(std::vector<std::string>(4, "linear"))}}))
          .find("linear"),
      std::string::npos);
  const auto qwen2 = model(decoder(
      "qwen2", {{"use_sliding_window", true}, {"sliding_window", 16}, {"max_window_layers", 3}}));
  EXPECT_EQ(windows(*qwen2), (std::vector<int64_t>{0, 0, 0, 16}));
  EXPECT_EQ(windows(*model(decoder("starcoder2", {{"sliding_window", 4096}}))),
            std::vector<int64_t>(4, 0))
      << "as wide as the longest sequence";
}

TEST(Decoder, TextPartsOfModelsThatSeeAreRead) {
  const auto gemma3 = model({{"model_type", "gemma3"},
                             {"text_config", decoder("gemma3_text", {{"head_dim", 8}})},
                             {"vision_config", {{"hidden_size", 8}}}});
  EXPECT_EQ(gemma3->shape().family, "gemma3_text");
  const std::vector<std::string>& names = gemma3->shape().sublayers[1].weights[1].names;
  EXPECT_NE(std::find(names.begin(), names.end(),
                      "language_model.model.layers.0.self_attn.q_proj.weight"),
            names.end());
  EXPECT_NE(refusal({{"model_type", "seer"}, {"text_config", {{"model_type", "unheard"}}}})
                .find("unheard"),
            std::string::npos);
}

TEST(Decoder, SizesThatAreNullFollowFromOthers) {
  const auto heads = [](const Json& config) {
    const LayerState state = model(config)->shape().state_groups[0].state;
    return std::pair(state.heads, state.width);
  };
  for (const auto& [family, usual] : {std::pair("ernie4_5", 2), std::pair("seed_oss", 8)}) {
    Json config = decoder(family);
    config["num_attention_heads"] = 16;
    config.erase("num_key_value_heads");
    EXPECT_EQ(heads(config), (std::pair<int64_t, int64_t>(usual, 128))) << family << ": its own";
    config["num_key_value_heads"] = nullptr;
    config["head_dim"] = nullptr;
    EXPECT_EQ(heads(config), (std::pair<int64_t, int64_t>(16, 2))) << family;
    EXPECT_EQ(frequencies(*model(config), 1).size(), 1u) << family;
  }
}

TEST(Decoder, RefusesByNameWhatWouldNotBeDone) {
  const std::pair<Json, const char*> cases[] = {
      {decoder("phi", {{"qk_layernorm", true}}), "norms"},
      {decoder("gemma2", {{"use_bidirectional_attention", true}}), "ahead"},
      {decoder("gemma2", {{"attn_logit_softcapping", -1}}), "attn_logit_softcapping"},
      {decoder("granite", {{"logits_scaling", 0}}), "logits_scaling"},
      {decoder("nemotron", {{"hidden_act", "mish"}}), "mish"},
      {decoder("smollm3", {{"no_rope_layers", {1}}}), "no_rope_layers"},
      {decoder("exaone4", {{"sliding_window_pattern", "LG"}}), "sliding_window_pattern"},
      {decoder("ministral3"), "rope_parameters"}};
  for (const auto& [config, word] : cases)
    EXPECT_NE(refusal(config).find(word), std::string::npos)
        << config["model_type"] << ": " << refusal(config);
}

Json qwen3_5(const Json& changes = Json::object()) {
  Json config = decoder("qwen3_5_text", {{"head_dim", 8},
                                         {"num_hidden_layers", 8},
                                         {"linear_num_key_heads", 2},
                                         {"linear_num_value_heads", 6},
                                         {"linear_key_head_dim", 5},
                                         {"linear_value_head_dim", 7},
                                         {"linear_conv_kernel_dim", 3}});
  config.merge_patch(changes);
  return config;
}

TEST(Qwen35, KeepsARecurrentStateInThreeLayersOfFour) {
  const auto made = model(qwen3_5());
  const ModelShape& shape = made->shape();
  ASSERT_EQ(shape.state_groups.size(), 2u);
  const LayerState& state = shape.state_groups[0].state;
  EXPECT_EQ(state, recurrent_state({2, 6, 5, 7, 3}));
  EXPECT_EQ(shape.state_groups[0].num_layers, 6);
  EXPECT_EQ(shape.state_groups[1].num_layers, 2);
  EXPECT_EQ(shape.fixed_state_bytes(), 6 * 4 * (6 * 5 * 7 + 2 * (2 * 2 * 5 + 6 * 7)));
  EXPECT_EQ(shape.state_elements_per_token(), 2 * 2 * 2 * 8);
  EXPECT_EQ(state.token_bytes(DType::kBF16), 0);
  EXPECT_EQ(state.page_bytes(DType::kBF16, 16), state.page_bytes(DType::kF32, 1));
  // A quarter of a head is turned; the gates are kept across attention.
  EXPECT_EQ(frequencies(*made, 7).size(), 1u);
  EXPECT_EQ(shape.kept_columns, 4 * 8);
  const LayerProgram& delta = made->program(1);
  EXPECT_EQ(delta.cut, -1) << "no part of it is the host's beside a device";
  const auto types = model(
      qwen3_5({{"num_hidden_layers", 2}, {"layer_types", {"full_attention", "linear_attention"}}}));
  EXPECT_FALSE(types->shape().state_groups[0].state.is_recurrent());
}

TEST(Qwen35, RefusesWhatItDoesNotReadByName) {
  const auto expect = [](const Json& changes, const char* words) {
    const std::string message = refusal(qwen3_5(changes));
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect({{"linear_num_value_heads", 5}}, "5 value heads can't share 2 key heads");
  expect({{"linear_key_head_dim", 513}}, "linear_key_head_dim");
  expect({{"linear_conv_kernel_dim", 17}}, "linear_conv_kernel_dim");
  expect({{"layer_types", {"linear_attention"}}}, "1 entries for 8 layers");
  expect({{"num_hidden_layers", 1}, {"layer_types", {"mamba"}}}, "mamba");
  expect({{"attn_output_gate", false}}, "attn_output_gate");
  expect({{"hidden_act", "gelu"}}, "hidden_act");
}

Json latent(const std::string& type, const Json& changes = Json::object()) {
  Json config = decoder(type, {{"q_lora_rank", 12},
                               {"kv_lora_rank", 10},
                               {"qk_nope_head_dim", 8},
                               {"qk_rope_head_dim", 4},
                               {"v_head_dim", 6},
                               {"first_k_dense_replace", 4}});
  config.merge_patch(changes);
  return config;
}

float attention_scale(const Json& config) {
  const auto made = model(config);
  const LayerProgram& program = made->program(1);
  return program.operators[static_cast<size_t>(program.cut)].attend.scale;
}

TEST(LatentAttention, KeepsOneRowATokenAndLayer) {
  for (const char* type : {"youtu", "minicpm3", "deepseek_v2", "deepseek_v3"}) {
    const auto made = model(latent(type));
    const ModelShape& shape = made->shape();
    ASSERT_EQ(shape.state_groups.size(), 1u) << type;
    EXPECT_EQ(shape.state_groups[0].state, latent_state(4, 10));
    EXPECT_EQ(shape.state_groups[0].num_layers, 4);
    EXPECT_EQ(shape.state_elements_per_token(), 4 * 14);
    EXPECT_EQ(shape.state_token_bytes(DType::kBF16), 2 * 4 * 14);
    EXPECT_EQ(shape.state_groups[0].state.page_bytes(DType::kBF16, 16), 16 * 2 * 14);
    EXPECT_EQ(shape.head_dim, 12);
    EXPECT_EQ(shape.sublayers[1].find("q_b")->rows, 4 * 12);
    EXPECT_EQ(shape.sublayers[1].find("o")->cols, 4 * 6);
    EXPECT_EQ(frequencies(*made, 1).size(), 2u) << "the turned columns alone";
  }
  Json direct = latent("deepseek_v3");
  direct["q_lora_rank"] = nullptr;
  EXPECT_EQ(model(direct)->shape().sublayers[1].find("q_a"), nullptr);
  EXPECT_EQ(model(direct)->shape().sublayers[1].find("q")->rows, 4 * 12);
}

// 0.1 mscale_all_dim ln(factor) + 1, squared; with plain positions nothing.
TEST(LatentAttention, ScalesAsYarnSays) {
  const auto plain = static_cast<float>(1 / std::sqrt(12.0));
  EXPECT_FLOAT_EQ(attention_scale(latent("deepseek_v3")), plain);
  const Json yarn{{"type", "yarn"},
                  {"factor", 40},
                  {"original_max_position_embeddings", 64},
                  {"mscale", 1.0},
                  {"mscale_all_dim", 1.0}};
  EXPECT_FLOAT_EQ(attention_scale(latent("deepseek_v3", {{"rope_scaling", yarn}})),
                  plain * static_cast<float>(1.8738542));
  Json without = yarn;
  without.erase("mscale_all_dim");
  EXPECT_FLOAT_EQ(attention_scale(latent("deepseek_v2", {{"rope_scaling", without}})), plain);
}

TEST(LatentAttention, RefusesWhatItDoesNotReadByName) {
  const auto expect = [](const Json& config, const char* words) {
    const std::string message = refusal(config);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect(latent("youtu", {{"attention_bias", true}}), "attention_bias");
  expect(latent("youtu", {{"kv_lora_rank", 0}}), "kv_lora_rank");
  expect(latent("youtu", {{"qk_rope_head_dim", 3}}), "pairs");
  expect(latent("minicpm3", {{"scale_depth", 0}}), "scale_depth");
}

Json llama4(const Json& changes = Json::object()) {
  Json config = decoder("llama4_text", {{"intermediate_size_mlp", 24},
                                        {"num_local_experts", 4},
                                        {"head_dim", 8},
                                        {"attention_chunk_size", 16}});
  config.merge_patch(changes);
  return config;
}

TEST(Llama4, AttendsInChunksButInEveryFourthLayer) {
  const auto made = model(llama4());
  const ModelShape& shape = made->shape();
  ASSERT_EQ(shape.state_groups.size(), 2u);
  EXPECT_EQ(shape.state_groups[0].state.window, 16);
  EXPECT_TRUE(shape.state_groups[0].state.is_chunked);
  EXPECT_EQ(shape.state_groups[1].state.window, 0);
  EXPECT_FALSE(shape.state_groups[1].state.is_chunked);
  // As long as the longest sequence they are none.
  const auto whole = model(llama4({{"attention_chunk_size", 1 << 20}}));
  EXPECT_EQ(whole->shape().state_groups.size(), 1u);
  EXPECT_EQ(model(llama4({{"attention_chunk_size", nullptr}}))->shape().state_groups.size(), 1u);
}

TEST(Llama4, RefusesWhatItDoesNotReadByName) {
  const auto expect = [](const Json& changes, const char* words) {
    const std::string message = refusal(llama4(changes));
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect({{"no_rope_layers", {1}}}, "1 entries for 4 layers");
  expect({{"layer_types", {"chunked_attention"}}}, "1 entries for 4 layers");
  expect({{"num_hidden_layers", 1}, {"layer_types", {"mamba"}}}, "mamba");
  Json without = llama4({{"num_hidden_layers", 1}, {"layer_types", {"chunked_attention"}}});
  without["attention_chunk_size"] = nullptr;
  EXPECT_NE(refusal(without).find("attention_chunk_size"), std::string::npos);
  expect({{"num_experts_per_tok", 5}}, "num_experts_per_tok");
}

Json mixture(const std::string& type, const Json& changes = Json::object()) {
  Json config = decoder(type, {{"num_experts", 6},
                               {"num_local_experts", 6},
                               {"num_experts_per_tok", 2},
                               {"moe_intermediate_size", 10}});
  config.merge_patch(changes);
  return config;
}

const WeightShape* weight_of(const FamilyModel& model, size_t layer, std::string_view role) {
  return model.shape().sublayers[2 + 2 * layer].find(role);
}

TEST(Mixtures, StackTheExpertsOfALayer) {
  const auto made = model(mixture("qwen3_moe"));
  const ModelShape& shape = made->shape();
  EXPECT_EQ(shape.num_experts, 6);
  EXPECT_EQ(shape.experts_per_token, 2);
  const WeightShape* gate = weight_of(*made, 1, "experts.gate");
  ASSERT_TRUE(gate);
  EXPECT_EQ(gate->experts, 6);
  EXPECT_EQ(gate->rows, 60);
  EXPECT_EQ(gate->expert_rows(), 10);
  EXPECT_EQ(gate->of_expert(4).rows, 10);
  EXPECT_EQ(gate->of_expert(4).names.front(), "model.layers.1.mlp.experts.4.gate_proj.weight");
  EXPECT_FALSE(weight_of(*made, 1, "router")->may_be_quantised());
  EXPECT_TRUE(gate->may_be_quantised());
}

TEST(Mixtures, TakeExpertsFromAStackOfAll) {
  const auto made = model(mixture("granitemoe", {{"intermediate_size", 10}}));
  const WeightShape up = weight_of(*made, 0, "experts.up")->of_expert(3);
  EXPECT_EQ(up.fused.tensors.front(), "model.layers.0.block_sparse_moe.input_linear.weight");
  EXPECT_EQ(up.fused.first_row, 3 * 20 + 10);
  EXPECT_EQ(up.fused.tensor_rows, 6 * 20);
}

TEST(Mixtures, AreWhereConfigSays) {
  const auto has_experts = [](const FamilyModel& model, size_t layer) {
    return weight_of(model, layer, "router") != nullptr;
  };
  const auto stepped =
      model(mixture("qwen2_moe", {{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}}));
  const std::vector<bool> every_second{false, true, false, false};
  for (size_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(has_experts(*stepped, layer), every_second[layer]) << layer;
  const auto behind = model(mixture(
      "glm4_moe", {{"n_routed_experts", 6}, {"first_k_dense_replace", 3}, {"head_dim", 8}}));
  for (size_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(has_experts(*behind, layer), layer == 3) << layer;
  EXPECT_EQ(weight_of(*behind, 3, "shared.gate")->rows, 10);
}

TEST(Mixtures, RefuseWhatTheyDoNotReadByName) {
  const auto expect = [](const Json& config, const char* words) {
    const std::string message = refusal(config);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect(mixture("qwen3_moe", {{"num_experts_per_tok", 7}}), "of 6 experts");
  expect(mixture("qwen3_moe", {{"num_experts", 2000}}), "num_experts");
  expect(mixture("olmoe", {{"clip_qkv", -1.0}}), "clip_qkv");
  expect(mixture("qwen2_moe", {{"use_sliding_window", true}}), "use_sliding_window");
  expect(latent("deepseek_v2", {{"first_k_dense_replace", 0},
                                {"num_experts_per_tok", 2},
                                {"topk_method", "noaux_tc"}}),
         "topk_method");
  expect(latent("deepseek_v3", {{"first_k_dense_replace", 0}, {"n_group", 7}}), "n_group");
  expect(latent("deepseek_v3", {{"first_k_dense_replace", 0}, {"n_group", 128}, {"topk_group", 2}}),
         "8 chosen");
  expect(latent("deepseek_v3", {{"first_k_dense_replace", 0}, {"moe_layer_freq", 2}}),
         "moe_layer_freq");
}

Json mamba2(const Json& changes = Json::object()) {
  Json config{{"model_type", "mamba2"}, {"hidden_size", 18}, {"vocab_size", 32},
              {"num_hidden_layers", 3}, {"num_heads", 6},    {"head_dim", 6},
              {"n_groups", 2},          {"state_size", 5},   {"conv_kernel", 3}};
  config.merge_patch(changes);
  return config;
}

TEST(Mamba2, IsAStateInEveryLayerAndNothingElse) {
  const auto made = model(mamba2());
  const ModelShape& shape = made->shape();
  ASSERT_EQ(shape.state_groups.size(), 1u);
  EXPECT_EQ(shape.state_groups[0].state,
            recurrent_state({2, 6, 5, 6, 3, RecurrentRule::kStateSpace}));
  EXPECT_EQ(shape.state_groups[0].num_layers, 3);
  EXPECT_EQ(shape.sublayers.size(), 1u + 3 + 1) << "no MLPs";
  EXPECT_EQ(shape.state_elements_per_token(), 0);
  EXPECT_EQ(shape.fixed_state_bytes(), 3 * 4 * (6 * 5 * 6 + 2 * (36 + 2 * 2 * 5)));
  EXPECT_EQ(weight_of(*made, 0, "xbc")->rows, 36 + 2 * 2 * 5);
  EXPECT_EQ(made->program(1).cut, -1);
  // Of the products two are rows of a third, the time steps' bounds are those of the file.
  const auto bounded = model(mamba2({{"time_step_limit", {0.25, 0.5}}}));
  for (const Operator& op : bounded->program(1).operators)
    if (op.kind == Operator::Kind::kTimeSteps) EXPECT_EQ(op.low + op.high, 0.75f);
  EXPECT_EQ(
      model(mamba2({{"expand", 3}, {"num_heads", 9}, {"n_groups", 3}}))->shape().intermediate_size,
      54);
}

TEST(Mamba2, RefusesWhatItDoesNotReadByName) {
  const auto expect = [](const Json& config, const char* words) {
    const std::string message = refusal(config);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect(mamba2({{"head_dim", 7}}), "6 heads of 7 are not the 36 columns");
  expect(mamba2({{"n_groups", 4}}), "6 heads can't share 4 groups");
  expect(mamba2({{"use_bias", true}}), "use_bias");
  expect(mamba2({{"hidden_act", "gelu"}}), "hidden_act");
  expect(mamba2({{"state_size", 513}}), "state_size");
  expect(mamba2({{"time_step_limit", {0.5, 0.25}}}), "time_step_limit");
  expect(mamba2({{"time_step_limit", {0.5}}}), "time_step_limit");
  const Json granite =
      decoder("granitemoehybrid", {{"mamba_n_heads", 4}, {"num_local_experts", 0}});
  const auto with = [&](Json config, const char* key, const Json& value) {
    config[key] = value;
    return config;
  };
  expect(with(granite, "layer_types", {"mamba"}), "entries for");
  expect(with(granite, "position_embedding_type", "alibi"), "alibi");
  expect(with(granite, "mamba_proj_bias", true), "mamba_proj_bias");
}

}  // namespace
}  // namespace sluice
