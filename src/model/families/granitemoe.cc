// Granite 3's mixtures of experts: Granite with a router whose weights are a softmax of what it
// chose. Checkpoints have the experts of a layer in one tensor.
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_granitemoe(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "granitemoe",
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias,
                       .attention_scale = read_factor(config, "attention_multiplier", 1),
                       .embed_scale = read_factor(config, "embedding_multiplier", 1),
                       .residual_scale = read_factor(config, "residual_multiplier", 1),
                       .logit_scale = 1 / read_factor(config, "logits_scaling", 1)};
  Mixture mixture = read_mixture(
      config, {"num_local_experts", "num_experts_per_tok", "intermediate_size"}, 8, 2, 0);
  mixture.router.scores = RouterSpec::Scores::kAsTheyAre;
  mixture.router.is_softmax_of_chosen = true;
  traits.mixture = mixture;
  DecoderNames& names = traits.names;
  names.router = {"block_sparse_moe.router.layer", nullptr};
  names.expert_gate = {"block_sparse_moe.experts.{e}.gate_proj", nullptr};
  names.expert_up = {"block_sparse_moe.experts.{e}.up_proj", nullptr};
  names.expert_down = {"block_sparse_moe.experts.{e}.down_proj", nullptr};
  names.gate_up_stack = {"block_sparse_moe.input_linear", nullptr};
  names.down_stack = {"block_sparse_moe.output_linear", nullptr};
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family granitemoe_family() {
  return {"granitemoe", make_granitemoe, [] { return std::vector<KnownModel>{}; }, {}};
}

}  // namespace sluice
