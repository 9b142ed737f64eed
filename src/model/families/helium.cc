// Helium: Llama that turns pairs.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_helium(const ModelConfig& config) {
  DecoderTraits traits{.family = "helium",
                       .head_dim = 128,
                       .max_positions = 4096,
                       .eps = 1e-8,
                       .has_mlp_bias = config.boolean_or("mlp_bias", false),
                       .rope = RopeLayout::kPairs};
  traits.has_qkv_bias = config.boolean_or("attention_bias", false);
  traits.ropes = {read_rope(config, read_head_dim(config, 128), {.theta = 1e5})};
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family helium_family() { return {"helium", make_helium, nullptr, {}}; }

}  // namespace sluice
