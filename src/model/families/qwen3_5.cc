// Qwen3.5 and 3.6, the dense ones, their part for text: three layers of four have a gated delta net
// (arXiv:2412.06464) in place of attention, the fourth attends with a gate on its output; norms
// that store their gain less one. Prompts of text alone have one position on all three axes of its
// rotary positions, which are then the plain ones.
#include "src/model/families/decoder_presets.h"
#include "src/model/families/delta_traits.h"
#include "src/model/families/gguf_decoder.h"
#include "src/model/families/gguf_delta.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_qwen3_5(const ModelConfig& config) {
  return make_decoder(config, read_delta_nets(config, "qwen3_5_text"));
}

constexpr DecoderKind kQwen35{"Qwen3_5ForCausalLM", "qwen3_5_text", 248044, 248044};

constexpr DecoderSizes kQwen35s[] = {
    {"qwen3.5-9b", 32, 4096, 12288, 16, 4, 256, 248320, 262144, 1e7, 1e-6, false}};
constexpr DecoderSizes kLargeQwen35s[] = {
    {"qwen3.5-27b", 64, 5120, 17408, 24, 4, 256, 248320, 262144, 1e7, 1e-6, false}};

std::vector<KnownModel> qwen3_5_presets() {
  nlohmann::ordered_json changes{{"partial_rotary_factor", 0.25}, {"full_attention_interval", 4},
                                 {"linear_num_key_heads", 16},    {"linear_num_value_heads", 32},
                                 {"linear_key_head_dim", 128},    {"linear_value_head_dim", 128},
                                 {"linear_conv_kernel_dim", 4},   {"attn_output_gate", true}};
  std::vector<KnownModel> presets = decoder_presets(kQwen35s, kQwen35, changes);
  changes["linear_num_value_heads"] = 48;
  add_presets(presets, kLargeQwen35s, kQwen35, changes);
  return presets;
}

std::string qwen3_5_of_gguf(const GgufKeys& keys) {
  nlohmann::json config =
      gguf_decoder_config(keys, {.architecture = kQwen35.architecture,
                                 .model_type = kQwen35.model_type,
                                 .turns_a_part = true,
                                 .also = {std::begin(kGgufDeltaKeys), std::end(kGgufDeltaKeys)},
                                 .has_drafts = true});
  add_gguf_delta_keys(keys, true, config);
  return config.dump(2);
}

}  // namespace

Family qwen3_5_family() {
  return {"qwen3_5_text", make_qwen3_5, qwen3_5_presets, {"qwen35", qwen3_5_of_gguf}};
}

}  // namespace sluice
