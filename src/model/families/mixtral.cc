// Mixtral: Mistral with a mixture of experts in every layer. GGUF files call it llama.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_mixtral(const ModelConfig& config) {
  DecoderTraits traits{.family = "mixtral",
                       .max_positions = 131072,
                       .eps = 1e-5,
                       .gguf_pairs_rows = true,
                       .sliding_window = read_sliding_window(config, 0)};
  traits.ropes = {read_rope(config, read_head_dim(config), {.theta = 1e6})};
  traits.mixture = read_mixture(
      config, {"num_local_experts", "num_experts_per_tok", "intermediate_size"}, 8, 2, 14336);
  traits.mixture->router.renormalises = true;
  name_as_mixtral(traits.names);
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kMixtral{"MixtralForCausalLM", "mixtral", 1, 2};
constexpr DecoderSizes kMixtrals[] = {
    {"mixtral-8x7b", 32, 4096, 14336, 32, 8, 0, 32000, 32768, 1e6, 1e-5, false},
    {"mixtral-8x22b", 56, 6144, 16384, 48, 8, 0, 32768, 65536, 1e6, 1e-5, false}};

std::vector<KnownModel> mixtral_presets() {
  return decoder_presets(kMixtrals, kMixtral,
                         {{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
}

}  // namespace

Family mixtral_family() { return {"mixtral", make_mixtral, mixtral_presets, {}}; }

}  // namespace sluice
