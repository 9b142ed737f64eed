// Youtu-LLM: a small dense model with DeepSeek's latent attention.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/latent_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_youtu(const ModelConfig& config) {
  const bool has_pairs = config.boolean_or("rope_interleave", true);
  DecoderTraits traits{.family = "youtu",
                       .heads = 16,
                       .vocab_size = 128256,
                       .max_positions = 131072,
                       .is_tied = true,
                       .rope = has_pairs ? RopeLayout::kPairs : RopeLayout::kHalves};
  read_latent_attention(config, {}, traits);
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kYoutu{"YoutuForCausalLM", "youtu", 128000, 128001};
constexpr DecoderSizes kYoutus[] = {
    {"youtu-llm-2b", 32, 2048, 6144, 16, 16, 0, 128256, 131072, 1.6e6, 1e-6, true}};

std::vector<KnownModel> youtu_presets() {
  return decoder_presets(kYoutus, kYoutu,
                         {{"kv_lora_rank", 512},
                          {"q_lora_rank", 1536},
                          {"qk_nope_head_dim", 128},
                          {"qk_rope_head_dim", 64},
                          {"v_head_dim", 128},
                          {"rope_interleave", true}});
}

}  // namespace

Family youtu_family() { return {"youtu", make_youtu, youtu_presets, {}}; }

}  // namespace sluice
