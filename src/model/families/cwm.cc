// CWM: Llama 3 of which three layers of four have a window.
#include "src/model/families/decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_cwm(const ModelConfig& config) {
  DecoderTraits traits{.family = "cwm",
                       .head_dim = 128,
                       .kv_heads = 8,
                       .max_positions = 131072,
                       .eps = 1e-5,
                       .has_mlp_bias = config.boolean_or("mlp_bias", false)};
  const int64_t window = read_sliding_window(config, 8192);
  for (const bool has_window :
       read_layer_types(config, [](int64_t layer) { return layer % 4 != 0; }))
    traits.layers.push_back({has_window ? window : 0, 0});
  traits.ropes = {read_rope(config, read_head_dim(config, 128), {.theta = 1e6})};
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family cwm_family() { return {"cwm", make_cwm, nullptr, {}}; }

}  // namespace sluice
