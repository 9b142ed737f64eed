// OLMo 3: OLMo 2 with a window in three layers of four; rotary positions are scaled in the fourth
// alone.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_olmo3(const ModelConfig& config) {
  const bool has_bias = config.boolean_or("attention_bias", false);
  DecoderTraits traits{.family = "olmo3",
                       .eps = 1e-5,
                       .place = NormPlace::kBehind,
                       .qk_norm = QkNorm::kWholeWidth,
                       .has_qkv_bias = has_bias,
                       .has_o_bias = has_bias};
  const int64_t head_dim = read_head_dim(config);
  // transformers gives a "rope_theta" of its own to the layers without a window alone.
  traits.ropes = {read_rope(config, head_dim, {.theta = 500000, .layer_type = "full_attention"}),
                  read_rope(config, head_dim,
                            {.theta = 500000,
                             .theta_key = "",
                             .is_scaled = false,
                             .layer_type = "sliding_attention"})};
  const int64_t window = read_sliding_window(config, 4096);
  for (const bool has_window : read_window_layers(config, 4))
    traits.layers.push_back({has_window ? window : 0, has_window ? 1 : 0});
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kOlmo3{"Olmo3ForCausalLM", "olmo3", 100257, 100257};
constexpr DecoderSizes kOlmo3s[] = {
    {"olmo-3-7b", 32, 4096, 11008, 32, 32, 0, 100278, 65536, 5e5, 1e-6, false},
    {"olmo-3-32b", 64, 5120, 27648, 40, 8, 0, 100278, 65536, 5e5, 1e-6, false}};

std::vector<KnownModel> olmo3_presets() {
  return decoder_presets(kOlmo3s, kOlmo3,
                         {{"sliding_window", 4096},
                          {"rope_scaling",
                           {{"rope_type", "yarn"},
                            {"factor", 8.0},
                            {"original_max_position_embeddings", 8192},
                            {"attention_factor", 1.2079441541679836},
                            {"beta_fast", 32},
                            {"beta_slow", 1}}}});
}

}  // namespace

Family olmo3_family() { return {"olmo3", make_olmo3, olmo3_presets, {}}; }

}  // namespace sluice
