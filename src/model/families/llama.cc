// Llama 1, 2, 3.x, and the many that are copies of it: the gated decoder as it is.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_llama(const ModelConfig& config) {
  DecoderTraits traits{.family = "llama", .gguf_pairs_rows = true};
  traits.has_qkv_bias = traits.has_o_bias = config.boolean_or("attention_bias", false);
  traits.has_mlp_bias = config.boolean_or("mlp_bias", false);
  return make_decoder(config, traits);
}

// Llama with experts is Mixtral.
std::string llama_of_gguf(const GgufKeys& keys) {
  if (keys.integer(keys.prefix() + "expert_count").value_or(0) != 0)
    return gguf_mixture_config(keys, {"MixtralForCausalLM", "mixtral"},
                               {.experts = "num_local_experts",
                                .width = "intermediate_size",
                                .renormalises = true,
                                .always_does_so = true})
        .dump(2);
  nlohmann::json config = gguf_decoder_config(
      keys, {.architecture = "LlamaForCausalLM", .model_type = "llama", .has_yarn = true});
  config["attention_bias"] = keys.has_attention_bias();
  config["mlp_bias"] = keys.tensor("blk.0.ffn_up.bias") != nullptr;
  return config.dump(2);
}

constexpr DecoderKind kOldLlama{"LlamaForCausalLM", "llama", 1, 2};
constexpr DecoderKind kLlama3{"LlamaForCausalLM", "llama", 128000, 128001};

constexpr DecoderSizes kOldLlamas[] = {
    {"tinyllama-1.1b", 22, 2048, 5632, 32, 4, 0, 32000, 2048, 1e4, 1e-5, false},
    {"llama-7b", 32, 4096, 11008, 32, 32, 0, 32000, 2048, 1e4, 1e-6, false},
    {"llama-13b", 40, 5120, 13824, 40, 40, 0, 32000, 2048, 1e4, 1e-6, false},
    {"llama-33b", 60, 6656, 17920, 52, 52, 0, 32000, 2048, 1e4, 1e-6, false},
    {"llama-65b", 80, 8192, 22016, 64, 64, 0, 32000, 2048, 1e4, 1e-6, false},
    {"llama-2-7b", 32, 4096, 11008, 32, 32, 0, 32000, 4096, 1e4, 1e-5, false},
    {"llama-2-13b", 40, 5120, 13824, 40, 40, 0, 32000, 4096, 1e4, 1e-5, false},
    {"llama-2-70b", 80, 8192, 28672, 64, 8, 0, 32000, 4096, 1e4, 1e-5, false}};
constexpr DecoderSizes kLlama3s[] = {
    {"llama-3-8b", 32, 4096, 14336, 32, 8, 0, 128256, 8192, 5e5, 1e-5, false},
    {"llama-3-70b", 80, 8192, 28672, 64, 8, 0, 128256, 8192, 5e5, 1e-5, false}};

// Made for longer texts than they were trained on first.
struct LongerLlama {
  DecoderSizes sizes;
  double factor;
};
constexpr LongerLlama kLongerLlamas[] = {
    {{"llama-3.1-8b", 32, 4096, 14336, 32, 8, 0, 128256, 131072, 5e5, 1e-5, false}, 8},
    {{"llama-3.1-70b", 80, 8192, 28672, 64, 8, 0, 128256, 131072, 5e5, 1e-5, false}, 8},
    {{"llama-3.1-405b", 126, 16384, 53248, 128, 8, 0, 128256, 131072, 5e5, 1e-5, false}, 8},
    {{"llama-3.2-1b", 16, 2048, 8192, 32, 8, 0, 128256, 131072, 5e5, 1e-5, true}, 32},
    {{"llama-3.2-3b", 28, 3072, 8192, 24, 8, 0, 128256, 131072, 5e5, 1e-5, true}, 32}};

std::vector<KnownModel> llama_presets() {
  std::vector<KnownModel> presets = decoder_presets(kOldLlamas, kOldLlama);
  add_presets(presets, kLlama3s, kLlama3);
  for (const auto& [sizes, factor] : kLongerLlamas) {
    nlohmann::ordered_json json = decoder_config(sizes, kLlama3);
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", factor},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
    presets.push_back({sizes.name, json.dump(2)});
  }
  return presets;
}

}  // namespace

Family llama_family() {
  return {"llama",
          make_llama,
          llama_presets,
          {"llama", llama_of_gguf},
          {"iquestcoder", "emu3_text_model"}};
}

}  // namespace sluice
