// DeepSeek-V2 where all layers are dense: latent attention, whose rotary positions turn pairs.
#include "src/model/families/latent_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_deepseek_v2(const ModelConfig& config) {
  require_dense_layers(config, 0);
  DecoderTraits traits{.family = "deepseek_v2", .rope = RopeLayout::kPairs};
  read_latent_attention(config, {}, traits);
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family deepseek_v2_family() {
  return {"deepseek_v2", make_deepseek_v2, [] { return std::vector<KnownModel>{}; }, {}};
}

}  // namespace sluice
