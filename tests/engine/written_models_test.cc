// Small models that the test writes itself, their elements by a formula, against logits that
// transformers 5.24 computes of the same (scripts/golden/written.py prints them).
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/model_fixtures.h"

namespace sluice::testing {
namespace {

namespace fs = std::filesystem;
using Config = nlohmann::ordered_json;

struct WrittenTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// Every element of the `index`-th tensor: gains around 1, the rest around 0.
std::vector<float> elements(const WrittenTensor& tensor, uint32_t index) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  const bool is_gain =
      tensor.name.find("norm") != std::string::npos || tensor.name.find("ln_") != std::string::npos;
  const bool is_bias = tensor.name.ends_with(".bias");
  std::vector<float> out;
  for (uint32_t i = 0; i < static_cast<uint32_t>(count); ++i) {
    const uint32_t mixed = (i + 1) * 2654435761u + (index + 1) * 2246822519u;
    const float value = static_cast<float>(((mixed >> 8) * 3266489917u) >> 16) / 32768.0f - 1.0f;
    out.push_back(is_gain && !is_bias ? 1 + 0.25f * value : (is_bias ? 0.25f : 0.5f) * value);
  }
  return out;
}

class WrittenModels : public ::testing::Test {
 protected:
  WrittenModels() {
    std::string pattern = ::testing::TempDir() + "/sluice_written_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~WrittenModels() override { fs::remove_all(folder_); }

  // Of a prompt of 12 tokens the last one's first eight logits are `expected`.
  void expect_logits(const Config& config, const std::vector<WrittenTensor>& tensors,
                     const std::vector<float>& expected) {
    Config header;
    std::string data;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::vector<float> values = elements(tensors[i], static_cast<uint32_t>(i));
      const size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      header[tensors[i].name] = {
          {"dtype", "F32"}, {"shape", tensors[i].shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream weights(folder_ / "model.safetensors", std::ios::binary);
    weights.write(reinterpret_cast<const char*>(&length), sizeof length);
    weights << text << data;
    weights.close();
    std::ofstream(folder_ / "config.json") << config.dump();

    GenerationRequest request;
    for (int32_t i = 0; i < 12; ++i) request.prompt.push_back(3 + 5 * i % 29);
    request.score_prompt = true;
    EngineOptions options = options_for({request});
    options.compute = ComputeChoice::kF32;
    options.kv_dtype = DType::kF32;
    const std::vector<float> logits = run_all(folder_.string(), options, {request})[0].logits;
    const auto vocab = config["vocab_size"].get<size_t>();
    ASSERT_EQ(logits.size(), request.prompt.size() * vocab);
    float largest = 0;
    for (const float value : expected) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(logits[logits.size() - vocab + i], expected[i], 1e-4f * largest) << i;
  }

  fs::path folder_;
};

TEST_F(WrittenModels, CohereWhoseHeadsHaveNormsWithGainsOfTheirOwn) {
  const Config config{{"model_type", "cohere"},   {"hidden_size", 16},
                      {"intermediate_size", 20},  {"num_hidden_layers", 2},
                      {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                      {"vocab_size", 37},         {"max_position_embeddings", 64},
                      {"use_qk_norm", true},      {"logit_scale", 0.5}};
  std::vector<WrittenTensor> tensors{{"model.embed_tokens.weight", {37, 16}},
                                     {"model.norm.weight", {16}}};
  for (const char* layer : {"model.layers.0.", "model.layers.1."})
    for (const WrittenTensor& tensor :
         std::vector<WrittenTensor>{{"input_layernorm.weight", {16}},
                                    {"mlp.down_proj.weight", {16, 20}},
                                    {"mlp.gate_proj.weight", {20, 16}},
                                    {"mlp.up_proj.weight", {20, 16}},
                                    {"self_attn.k_norm.weight", {2, 4}},
                                    {"self_attn.k_proj.weight", {8, 16}},
                                    {"self_attn.o_proj.weight", {16, 16}},
                                    {"self_attn.q_norm.weight", {4, 4}},
                                    {"self_attn.q_proj.weight", {16, 16}},
                                    {"self_attn.v_proj.weight", {8, 16}}})
      tensors.push_back({layer + tensor.name, tensor.shape});
  expect_logits(config, tensors,
                {-0.6979589f, 0.4448606f, 0.03929957f, -0.4928592f, 1.529255f, 0.9626498f,
                 -0.3983589f, 0.2908916f});
}

TEST_F(WrittenModels, Gpt2WhoseScoresAreDividedByLayer) {
  const Config config{{"model_type", "gpt2"},
                      {"n_embd", 16},
                      {"n_layer", 3},
                      {"n_head", 4},
                      {"n_positions", 64},
                      {"vocab_size", 37},
                      {"scale_attn_by_inverse_layer_idx", true}};
  std::vector<WrittenTensor> tensors{{"transformer.ln_f.bias", {16}},
                                     {"transformer.ln_f.weight", {16}},
                                     {"transformer.wpe.weight", {64, 16}},
                                     {"transformer.wte.weight", {37, 16}}};
  for (const char* layer : {"transformer.h.0.", "transformer.h.1.", "transformer.h.2."})
    for (const WrittenTensor& tensor : std::vector<WrittenTensor>{{"attn.c_attn.bias", {48}},
                                                                  {"attn.c_attn.weight", {16, 48}},
                                                                  {"attn.c_proj.bias", {16}},
                                                                  {"attn.c_proj.weight", {16, 16}},
                                                                  {"ln_1.bias", {16}},
                                                                  {"ln_1.weight", {16}},
                                                                  {"ln_2.bias", {16}},
                                                                  {"ln_2.weight", {16}},
                                                                  {"mlp.c_fc.bias", {64}},
                                                                  {"mlp.c_fc.weight", {16, 64}},
                                                                  {"mlp.c_proj.bias", {16}},
                                                                  {"mlp.c_proj.weight", {64, 16}}})
      tensors.push_back({layer + tensor.name, tensor.shape});
  expect_logits(config, tensors,
                {-0.737256f, 0.4400538f, -0.1558947f, -0.4984067f, -1.950094f, 0.1513462f,
                 1.608905f, 1.637327f});
}

TEST_F(WrittenModels, BloomWhoseResidualsAreTakenBehindTheNorms) {
  const Config config{{"model_type", "bloom"}, {"hidden_size", 16},
                      {"n_layer", 2},          {"n_head", 4},
                      {"vocab_size", 37},      {"apply_residual_connection_post_layernorm", true}};
  std::vector<WrittenTensor> tensors{{"transformer.ln_f.bias", {16}},
                                     {"transformer.ln_f.weight", {16}},
                                     {"transformer.word_embeddings.weight", {37, 16}},
                                     {"transformer.word_embeddings_layernorm.bias", {16}},
                                     {"transformer.word_embeddings_layernorm.weight", {16}}};
  for (const char* layer : {"transformer.h.0.", "transformer.h.1."})
    for (const WrittenTensor& tensor :
         std::vector<WrittenTensor>{{"input_layernorm.bias", {16}},
                                    {"input_layernorm.weight", {16}},
                                    {"mlp.dense_4h_to_h.bias", {16}},
                                    {"mlp.dense_4h_to_h.weight", {16, 64}},
                                    {"mlp.dense_h_to_4h.bias", {64}},
                                    {"mlp.dense_h_to_4h.weight", {64, 16}},
                                    {"post_attention_layernorm.bias", {16}},
                                    {"post_attention_layernorm.weight", {16}},
                                    {"self_attention.dense.bias", {16}},
                                    {"self_attention.dense.weight", {16, 16}},
                                    {"self_attention.query_key_value.bias", {48}},
                                    {"self_attention.query_key_value.weight", {48, 16}}})
      tensors.push_back({layer + tensor.name, tensor.shape});
  expect_logits(config, tensors,
                {-0.3681514f, 1.052532f, 0.7675739f, -1.392344f, -2.029545f, -0.01044015f,
                 -0.7105877f, 0.2770878f});
}

}  // namespace
}  // namespace sluice::testing
