// Ministral 8B: Mistral of which some layers have a window.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_ministral(const ModelConfig& config) {
  DecoderTraits traits{.family = "ministral", .kv_heads = 8, .max_positions = 131072};
  const int64_t window = read_sliding_window(config, 4096);
  for (const bool has_window : read_layer_types(config, [](int64_t) { return true; }))
    traits.layers.push_back({has_window ? window : 0, 0});
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family ministral_family() { return {"ministral", make_ministral, nullptr, {}}; }

}  // namespace sluice
