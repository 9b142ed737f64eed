#include "src/model/text_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace sluice {

namespace {

// Where releases put the config of the text part, and of what has one in turn.
constexpr std::array<const char*, 4> kPartKeys{"text_config", "thinker_config", "llm_config",
                                               "language_config"};
constexpr const char* kQuantised = "quantization_config";
constexpr const char* kTied = "tie_word_embeddings";

// What stands for "model." in the names of a text part's tensors.
constexpr std::array<const char*, 10> kPlaces{"language_model.model.",
                                              "model.language_model.",
                                              "model.language_model.model.",
                                              "language_model.",
                                              "model.text_model.",
                                              "text_model.",
                                              "thinker.model.",
                                              "model.llm.",
                                              "llm.model.",
                                              "model.model."};

// What stands before the names of the rest: heads, and families whose tensors begin otherwise.
constexpr std::array kOuters{
    "language_model.", "model.language_model.", "text_model.", "thinker.", "model.", "llm."};

// transformers leaves what its classes have by default out of text parts: sizes of released models,
// which the shapes of tensors confirm.
struct Usual {
  std::string_view model_type;
  std::string_view sizes;
};
constexpr std::array kUsual{
    Usual{"llama",
          R"({"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
              "num_attention_heads": 32, "vocab_size": 32000})"},
    Usual{"mistral",
          R"({"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000})"},
    Usual{"qwen2",
          R"({"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936})"}};

// Models whose text is not computed as their text part alone would.
struct Other {
  std::string_view model_type;
  const char* why;
};
constexpr std::array kOthers{Other{"gemma4_assistant", "it drafts for another model"},
                             Other{"gemma4_unified_assistant", "it drafts for another model"},
                             Other{"paligemma", "its prompts are attended to in both directions"}};

void refuse_others(const ModelConfig& config, std::string_view type) {
  for (const Other& other : kOthers)
    if (other.model_type == type)
      config.refuse(fmt::format("model_type \"{}\" is not supported: {}", type, other.why),
                    "sluice runs the text part of models that compute text as it alone would");
}

ModelConfig with_usual_sizes(ModelConfig config) {
  const std::string type = config.text_or("model_type", "");
  for (const Usual& usual : kUsual)
    if (usual.model_type == type) return config.with_defaults(usual.sizes);
  return config;
}

bool has_head(const io::Checkpoint& checkpoint) {
  for (const std::string& head : head_names())
    for (const char* end : {".weight", ".weight_packed", ".qweight", ".weight_scale"})
      if (checkpoint.find(head + end)) return true;
  return false;
}

}  // namespace

TextPart text_part(const ModelConfig& config) {
  const std::string type = config.text_or("model_type", "");
  for (const char* const key : kPartKeys) {
    auto inner =
        config.object(key, {kTied}, {kQuantised, "compression_config", "torch_dtype", "dtype"});
    if (!inner || !inner->has("model_type")) continue;
    refuse_others(config, type);
    if (config.has(kQuantised) && !config.agrees_with(*inner, kQuantised))
      config.refuse(fmt::format("\"{}\" and that of \"{}\" differ", kQuantised, key),
                    "remove the one that the weights were not made with");
    TextPart part = text_part(*inner);
    part.is_head_said = part.is_head_said && config.has(kTied);
    part.config = with_usual_sizes(std::move(part.config));
    part.whole = type;
    return part;
  }
  // Older releases have the text's sizes beside what is said of the rest.
  const bool is_flat = config.has("vision_config") || config.has("audio_config");
  return {config.with_values("{}"), is_flat ? type : "", !is_flat || config.has(kTied)};
}

TextPart text_part(const ModelConfig& config, const io::Checkpoint& checkpoint) {
  TextPart part = text_part(config);
  if (!part.whole.empty() && !part.is_head_said)
    part.config = part.config.with_values(
        fmt::format(R"({{"{}": {}}})", kTied, has_head(checkpoint) ? "false" : "true"));
  return part;
}

namespace {
// transformers 5.24 saves the stacks of this one's experts upright; released ones are turned.
void stand_upright(const io::Checkpoint& checkpoint, WeightShape& weight) {
  FusedRows& stack = weight.fused;
  for (const std::string& name : stack.tensors)
    if (const io::TensorEntry* tensor = checkpoint.find(name))
      if (tensor->shape == std::vector<int64_t>{weight.experts, stack.tensor_rows, weight.cols})
        stack.is_transposed = false;
}
}  // namespace

void name_as_part(const std::string& whole, const io::Checkpoint& checkpoint, ModelShape& shape) {
  constexpr std::string_view kModel = "model.";
  const auto extend = [&](std::vector<std::string>& names) {
    const std::vector<std::string> own = names;
    const auto add = [&](std::string name) {
      if (std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(std::move(name));
    };
    for (const std::string& name : own) {
      const bool is_longer = name.find("language_model.") != std::string::npos;
      const bool is_bare =
          std::find(own.begin(), own.end(), std::string(kModel) + name) != own.end();
      if (is_longer || is_bare) continue;
      if (name.starts_with(kModel)) {
        for (const char* place : kPlaces) add(place + name.substr(kModel.size()));
      } else {
        for (const char* place : kOuters) add(place + name);
      }
    }
  };
  // transformers 5.24 saves the layers of this one's text under a name of its vision tower.
  const auto add_saved = [&](std::vector<std::string>& names) {
    constexpr std::string_view kLayers = "language_model.model.layers.";
    for (size_t i = names.size(); whole == "kimi_k25" && i-- > 0;)
      if (names[i].starts_with(kLayers))
        names.push_back("language_model.model.blocks." + names[i].substr(kLayers.size()));
  };
  for (SublayerShape& sublayer : shape.sublayers)
    for (WeightShape& weight : sublayer.weights) {
      add_saved(weight.names);
      extend(weight.names);
      add_saved(weight.fused.tensors);
      extend(weight.fused.tensors);
      if (whole == "qwen3_vl_moe") stand_upright(checkpoint, weight);
    }
}

const std::vector<std::string>& head_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out{"lm_head"};
    for (const char* place : kOuters) out.push_back(std::string(place) + "lm_head");
    return out;
  }();
  return names;
}

}  // namespace sluice
