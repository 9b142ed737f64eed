// GPT-2: learned positions, matrices that checkpoints have transposed, q, k and v in one.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gguf_decoder.h"
#include "src/model/families/gpt2_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_gpt2(const ModelConfig& config) {
  DecoderTraits traits = gpt2_traits(config, "gpt2", "gelu_new");
  traits.is_transposed = true;
  traits.divides_by_layer = config.boolean_or("scale_attn_by_inverse_layer_idx", false);
  return make_decoder(config, std::move(traits));
}

struct Gpt2Sizes {
  const char* name;
  int layers, hidden, heads;
};
constexpr Gpt2Sizes kGpt2s[] = {{"gpt2", 12, 768, 12},
                                {"gpt2-medium", 24, 1024, 16},
                                {"gpt2-large", 36, 1280, 20},
                                {"gpt2-xl", 48, 1600, 25}};

std::vector<KnownModel> gpt2_presets() {
  std::vector<KnownModel> presets;
  for (const Gpt2Sizes& sizes : kGpt2s)
    presets.push_back({sizes.name, nlohmann::ordered_json{{"architectures", {"GPT2LMHeadModel"}},
                                                          {"model_type", "gpt2"},
                                                          {"n_embd", sizes.hidden},
                                                          {"n_layer", sizes.layers},
                                                          {"n_head", sizes.heads},
                                                          {"n_positions", 1024},
                                                          {"vocab_size", 50257},
                                                          {"activation_function", "gelu_new"},
                                                          {"layer_norm_epsilon", 1e-5},
                                                          {"bos_token_id", 50256},
                                                          {"eos_token_id", 50256},
                                                          {"torch_dtype", "float32"}}
                                       .dump(2)});
  return presets;
}

std::string gpt2_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_decoder_config(
      keys, {.architecture = "GPT2LMHeadModel", .model_type = "gpt2", .eps = "layer_norm_epsilon"});
  for (const auto& [ours, theirs] :
       {std::pair{"hidden_size", "n_embd"}, std::pair{"intermediate_size", "n_inner"},
        std::pair{"num_hidden_layers", "n_layer"}, std::pair{"num_attention_heads", "n_head"},
        std::pair{"max_position_embeddings", "n_positions"}})
    config[theirs] = config[ours];
  config["activation_function"] = "gelu_new";
  return config.dump(2);
}

}  // namespace

Family gpt2_family() { return {"gpt2", make_gpt2, gpt2_presets, {"gpt2", gpt2_of_gguf}}; }

}  // namespace sluice
