// Granite 3's mixtures of experts: Granite with a router whose weights are a softmax of what it
// chose. Checkpoints have the experts of a layer in one tensor.
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_granitemoe(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "granitemoe",
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .gguf_pairs_rows = true,
                       .attention_scale = read_factor(config, "attention_multiplier", 1),
                       .embed_scale = read_factor(config, "embedding_multiplier", 1),
                       .residual_scale = read_factor(config, "residual_multiplier", 1),
                       .logit_scale = 1 / read_factor(config, "logits_scaling", 1)};
  traits.mixture = read_granite_mixture(config, traits.names);
  return make_decoder(config, std::move(traits));
}

std::string granitemoe_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_mixture_config(
      keys,
      {.architecture = "GraniteMoeForCausalLM",
       .model_type = "granitemoe",
       .also = {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}},
      {.experts = "num_local_experts",
       .width = "intermediate_size",
       .renormalises = true,
       .always_does_so = true});
  for (const auto& [theirs, ours] : {std::pair{"attention.scale", "attention_multiplier"},
                                     {"embedding_scale", "embedding_multiplier"},
                                     {"residual_scale", "residual_multiplier"},
                                     {"logit_scale", "logits_scaling"}})
    if (const auto value = keys.number(keys.prefix() + theirs)) config[ours] = *value;
  config["attention_bias"] = keys.has_attention_bias();
  return config.dump(2);
}

}  // namespace

Family granitemoe_family() {
  return {"granitemoe",
          make_granitemoe,
          [] { return std::vector<KnownModel>{}; },
          {"granitemoe", granitemoe_of_gguf}};
}

}  // namespace sluice
