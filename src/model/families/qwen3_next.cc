// Qwen3-Next: Qwen3.5's gated delta nets, whose projections are two tensors by groups of heads, and
// experts in most layers beside one that every row goes to as far as a gate says.
#include <fmt/format.h>

#include "src/model/families/decoder_presets.h"
#include "src/model/families/delta_traits.h"
#include "src/model/families/gguf_delta.h"
#include "src/model/families/gguf_mixture.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_qwen3_next(const ModelConfig& config) {
  DecoderTraits traits = read_delta_nets(config, "qwen3_next");
  traits.vocab_size = 151936;
  traits.kv_heads = 2;
  // GGUF files have one of the two projections taken apart ("is_delta_in_order", of our own
  // making).
  traits.has_grouped_delta = !config.boolean_or("is_delta_in_order", false);
  traits.has_grouped_gates = true;
  Mixture mixture = read_mixture(config, {}, 512, 10, 512);
  mixture.router.renormalises = config.boolean_or("norm_topk_prob", true);
  read_gated_expert(config, 512, mixture, traits.names);
  traits.mixture = mixture;
  traits.mixture_layers = read_sparse_step(config);
  return make_decoder(config, std::move(traits));
}

constexpr DecoderKind kQwen3Next{"Qwen3NextForCausalLM", "qwen3_next", 151643, 151645};
constexpr DecoderSizes kQwen3Nexts[] = {
    {"qwen3-next-80b-a3b", 48, 2048, 5120, 16, 2, 256, 151936, 262144, 1e7, 1e-6, false}};

std::vector<KnownModel> qwen3_next_presets() {
  return decoder_presets(kQwen3Nexts, kQwen3Next,
                         {{"partial_rotary_factor", 0.25},
                          {"full_attention_interval", 4},
                          {"linear_num_key_heads", 16},
                          {"linear_num_value_heads", 32},
                          {"linear_key_head_dim", 128},
                          {"linear_value_head_dim", 128},
                          {"linear_conv_kernel_dim", 4},
                          {"num_experts", 512},
                          {"num_experts_per_tok", 10},
                          {"moe_intermediate_size", 512},
                          {"shared_expert_intermediate_size", 512},
                          {"norm_topk_prob", true}});
}

// Older files have both projections as Hugging Face's.
std::string qwen3_next_of_gguf(const GgufKeys& keys) {
  nlohmann::json config = gguf_mixture_config(
      keys,
      {.architecture = kQwen3Next.architecture,
       .model_type = kQwen3Next.model_type,
       .turns_a_part = true,
       .also = {std::begin(kGgufDeltaKeys), std::end(kGgufDeltaKeys)}},
      {.shared_width = "shared_expert_intermediate_size", .renormalises = true});
  add_gguf_delta_keys(keys, false, config);
  bool is_whole = false;
  for (int64_t layer = 0; layer < config["num_hidden_layers"].get<int64_t>(); ++layer)
    is_whole = is_whole || keys.tensor(fmt::format("blk.{}.ssm_in.weight", layer));
  config["is_delta_in_order"] = !is_whole;
  return config.dump(2);
}

}  // namespace

Family qwen3_next_family() {
  return {"qwen3_next", make_qwen3_next, qwen3_next_presets, {"qwen3next", qwen3_next_of_gguf}};
}

}  // namespace sluice
