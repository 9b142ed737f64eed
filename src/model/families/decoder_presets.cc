#include "src/model/families/decoder_presets.h"

namespace sluice {

nlohmann::ordered_json decoder_config(const DecoderSizes& sizes, const DecoderKind& kind) {
  nlohmann::ordered_json json{
      {"architectures", {kind.architecture}}, {"model_type", kind.model_type},
      {"hidden_size", sizes.hidden},          {"intermediate_size", sizes.intermediate},
      {"num_hidden_layers", sizes.layers},    {"num_attention_heads", sizes.heads},
      {"num_key_value_heads", sizes.kv_heads}};
  if (sizes.head_dim > 0) json["head_dim"] = sizes.head_dim;
  json["vocab_size"] = sizes.vocab;
  json["max_position_embeddings"] = sizes.positions;
  json["rms_norm_eps"] = sizes.eps;
  json["rope_theta"] = sizes.theta;
  json["hidden_act"] = "silu";
  json["tie_word_embeddings"] = sizes.tied;
  json["bos_token_id"] = kind.bos;
  json["eos_token_id"] = kind.eos;
  json["torch_dtype"] = "bfloat16";
  return json;
}

void add_presets(std::vector<KnownModel>& presets, std::span<const DecoderSizes> table,
                 const DecoderKind& kind, const nlohmann::ordered_json& changes) {
  for (const DecoderSizes& sizes : table) {
    nlohmann::ordered_json json = decoder_config(sizes, kind);
    json.merge_patch(changes);
    presets.push_back({sizes.name, json.dump(2)});
  }
}

std::vector<KnownModel> decoder_presets(std::span<const DecoderSizes> table,
                                        const DecoderKind& kind,
                                        const nlohmann::ordered_json& changes) {
  std::vector<KnownModel> presets;
  add_presets(presets, table, kind, changes);
  return presets;
}

}  // namespace sluice
