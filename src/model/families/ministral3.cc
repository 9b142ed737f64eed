// Ministral 3 and Devstral Small 2: Mistral with YaRN, and queries that grow with their positions.
#include <fmt/format.h>

#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_ministral3(const ModelConfig& config) {
  DecoderTraits traits{.family = "ministral3",
                       .head_dim = 128,
                       .kv_heads = 8,
                       .max_positions = 262144,
                       .eps = 1e-5,
                       .gguf_pairs_rows = true,
                       .sliding_window = read_sliding_window(config, 0)};
  const auto rope =
      config.object(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (!rope) config.refuse("\"rope_parameters\" are missing", "give the config.json of the hub");
  traits.query_factor = static_cast<float>(rope->number_or("llama_4_scaling_beta", 0));
  if (traits.query_factor != 0)
    traits.query_period = rope->integer("original_max_position_embeddings", 1, int64_t{1} << 31);
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kMinistral3{"Ministral3ForCausalLM", "ministral3", 1, 2};
constexpr DecoderSizes kMinistral3s[] = {
    {"ministral-3-3b", 26, 3072, 9216, 32, 8, 128, 131072, 262144, 1e6, 1e-5, true},
    {"ministral-3-8b", 34, 4096, 14336, 32, 8, 128, 131072, 262144, 1e6, 1e-5, false}};

std::vector<KnownModel> ministral3_presets() {
  return decoder_presets(kMinistral3s, kMinistral3,
                         {{"rope_theta", nullptr},
                          {"rope_parameters",
                           {{"rope_type", "yarn"},
                            {"rope_theta", 1e6},
                            {"factor", 16.0},
                            {"original_max_position_embeddings", 16384},
                            {"beta_fast", 32.0},
                            {"beta_slow", 1.0},
                            {"mscale", 1.0},
                            {"mscale_all_dim", 1.0},
                            {"llama_4_scaling_beta", 0.1}}}});
}

// Those of the architecture whose positions are not stretched are Llama's.
std::string mistral3_of_gguf(const GgufKeys& keys) {
  constexpr const char* kBeta = "attention.temperature_scale";
  constexpr const char* kPeriod = "attention.temperature_length";
  const GgufDecoderKind kind{.architecture = "Ministral3ForCausalLM",
                             .model_type = "ministral3",
                             .also = {kBeta, kPeriod},
                             .has_yarn = true};
  nlohmann::json config = gguf_decoder_config(keys, kind);
  const double beta = keys.number(keys.prefix() + kBeta).value_or(0);
  if (!config.contains("rope_scaling") || config["rope_scaling"]["rope_type"] != "yarn") {
    if (beta != 0)
      keys.refuse(fmt::format("key {}{} is {}, but positions are not stretched", keys.prefix(),
                              kBeta, beta),
                  "such models are not read");
    config["architectures"] = {"LlamaForCausalLM"};
    config["model_type"] = "llama";
    return config.dump(2);
  }
  nlohmann::json& rope = config["rope_scaling"];
  const int64_t original = rope["original_max_position_embeddings"];
  const int64_t period = keys.integer(keys.prefix() + kPeriod).value_or(original);
  if (period != original)
    keys.refuse(fmt::format("key {}{} is {}, but positions are stretched from {} on", keys.prefix(),
                            kPeriod, period, original),
                "such models are not read");
  rope["llama_4_scaling_beta"] = beta;
  return config.dump(2);
}

}  // namespace

Family ministral3_family() {
  return {"ministral3", make_ministral3, ministral3_presets, {"mistral3", mistral3_of_gguf}};
}

}  // namespace sluice
