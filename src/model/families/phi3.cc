// Phi-3 and Phi-4, q, k and v in one tensor, gate and up in
// another.
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_phi3(const ModelConfig& config) {
  DecoderTraits traits{.family = "phi3",
                       .eps = 1e-5,
                       .fused = Fused::kRows,
                       .sliding_window = read_sliding_window(config, 0)};
  traits.names.join_gguf_rows();
  return make_decoder(config, std::move(traits));
}

// Files from before there was a key have none; as the models that were released then have it.
int64_t window_of(const GgufKeys& keys, int64_t layers, int64_t positions) {
  constexpr const char* kWindow = "attention.sliding_window";
  if (const auto said = keys.integer(keys.prefix() + kWindow)) return *said;
  return positions == 4096 && (layers == 32 || layers == 40) ? 2047 : 0;
}

std::string phi3_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(keys, {.architecture = "Phi3ForCausalLM",
                                                     .model_type = "phi3",
                                                     .turns_a_part = true,
                                                     .also = {"attention.sliding_window"},
                                                     .has_longrope = true});
  const int64_t window =
      window_of(keys, config["num_hidden_layers"], config["max_position_embeddings"]);
  config["sliding_window"] = window > 0 ? nlohmann::json(window) : nlohmann::json();
  return config.dump(2);
}

struct Phi3Sizes {
  DecoderSizes sizes;
  int window;
  DecoderKind kind;
};
constexpr DecoderKind kPhi3{"Phi3ForCausalLM", "phi3", 1, 32000};
constexpr DecoderKind kPhi4{"Phi3ForCausalLM", "phi3", 100257, 100257};
constexpr Phi3Sizes kPhi3s[] = {
    {{"phi-3-mini-4k", 32, 3072, 8192, 32, 32, 0, 32064, 4096, 1e4, 1e-5, false}, 2047, kPhi3},
    {{"phi-3-medium-4k", 40, 5120, 17920, 40, 10, 0, 32064, 4096, 1e4, 1e-5, false}, 2047, kPhi3},
    {{"phi-4", 40, 5120, 17920, 40, 10, 0, 100352, 16384, 2.5e5, 1e-5, false}, 0, kPhi4}};

std::vector<KnownModel> phi3_presets() {
  std::vector<KnownModel> presets;
  for (const auto& [sizes, window, kind] : kPhi3s) {
    nlohmann::ordered_json json = decoder_config(sizes, kind);
    if (window > 0) json["sliding_window"] = window;
    presets.push_back({sizes.name, json.dump(2)});
  }
  return presets;
}

}  // namespace

Family phi3_family() { return {"phi3", make_phi3, phi3_presets, {"phi3", phi3_of_gguf}}; }

}  // namespace sluice
