// DeepSeek-V3 where all layers are dense: latent attention, whose rotary positions turn pairs
// unless config.json says otherwise.
#include "src/model/families/latent_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_deepseek_v3(const ModelConfig& config) {
  require_dense_layers(config, 3);
  const bool has_pairs = config.boolean_or("rope_interleave", true);
  DecoderTraits traits{.family = "deepseek_v3",
                       .max_positions = 4096,
                       .rope = has_pairs ? RopeLayout::kPairs : RopeLayout::kHalves};
  read_latent_attention(config, {}, traits);
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family deepseek_v3_family() {
  return {"deepseek_v3", make_deepseek_v3, [] { return std::vector<KnownModel>{}; }, {}};
}

}  // namespace sluice
