// MiniMax-M2: a mixture with a corrected router in every layer, q and k normed over all their
// heads, of each of which a part is turned.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_minimax_m2(const ModelConfig& config) {
  constexpr int64_t kHeadDim = 128;
  DecoderTraits traits{.family = "minimax_m2",
                       .head_dim = kHeadDim,
                       .max_positions = 196608,
                       .qk_norm = QkNorm::kWholeWidth};
  const int64_t head_dim = read_head_dim(config, kHeadDim);
  const int64_t turned = config.integer_or("rotary_dim", head_dim, 1, head_dim);
  traits.ropes = {read_rope(
      config, head_dim,
      {.theta = 5e6, .share = static_cast<double>(turned) / static_cast<double>(head_dim)})};
  Mixture mixture = read_mixture(
      config, {"num_local_experts", "num_experts_per_tok", "intermediate_size"}, 256, 8, 1536);
  mixture.router.scores = RouterSpec::Scores::kSigmoid;
  mixture.router.renormalises = true;
  mixture.is_corrected = true;
  traits.mixture = mixture;
  name_as_mixtral(traits.names);
  return make_decoder(config, std::move(traits));
}

std::string minimax_m2_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_mixture_config(
      keys,
      {.architecture = "MiniMaxM2ForCausalLM", .model_type = "minimax_m2", .turns_a_part = true},
      {.experts = "num_local_experts",
       .width = "intermediate_size",
       .renormalises = true,
       .always_does_so = true,
       .gating = GgufGating::kSigmoid});
  if (const auto turned = keys.integer(keys.prefix() + "rope.dimension_count"))
    config["rotary_dim"] = *turned;
  return config.dump(2);
}

constexpr DecoderKind kMinimaxM2{"MiniMaxM2ForCausalLM", "minimax_m2", 200034, 200020};
constexpr DecoderSizes kMinimaxM2s[] = {
    {"minimax-m2", 62, 3072, 1536, 48, 8, 128, 200064, 196608, 5e6, 1e-6, false}};

std::vector<KnownModel> minimax_m2_presets() {
  return decoder_presets(
      kMinimaxM2s, kMinimaxM2,
      {{"num_local_experts", 256}, {"num_experts_per_tok", 8}, {"rotary_dim", 64}});
}

}  // namespace

Family minimax_m2_family() {
  return {"minimax_m2", make_minimax_m2, minimax_m2_presets, {"minimax-m2", minimax_m2_of_gguf}};
}

}  // namespace sluice
