// Arcee's AFM: Llama whose MLPs are not gated and square what a ReLU leaves.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_arcee(const ModelConfig& config) {
  DecoderTraits traits{.family = "arcee",
                       .eps = 1e-5,
                       .has_mlp_bias = config.boolean_or("mlp_bias", false),
                       .is_gated = false,
                       .activation = read_activation(config, "hidden_act", "relu2")};
  traits.has_qkv_bias = traits.has_o_bias = config.boolean_or("attention_bias", false);
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family arcee_family() { return {"arcee", make_arcee, nullptr, {}}; }

}  // namespace sluice
