// GPT-BigCode: StarCoder and SantaCoder. GPT-2 whose matrices are not turned and whose heads share
// one key and value.
#include "src/model/families/gpt2_traits.h"

namespace sluice {

namespace {

std::unique_ptr<FamilyModel> make_gpt_bigcode(const ModelConfig& config) {
  DecoderTraits traits = gpt2_traits(config, "gpt_bigcode", "gelu_pytorch_tanh");
  const bool shares = config.boolean_or("multi_query", true);
  if (shares)
    traits.kv_heads = 1;
  else
    traits.fused = Fused::kGroups;
  return make_decoder(config, std::move(traits));
}

}  // namespace

Family gpt_bigcode_family() { return {"gpt_bigcode", make_gpt_bigcode, nullptr, {}}; }

}  // namespace sluice
