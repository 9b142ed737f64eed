#include "src/model/foreign/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <vector>

#include "io/input_file.h"
#include "src/base/error.h"

namespace sluice {

namespace {
using Json = nlohmann::json;
constexpr int64_t kMostFactors = 4096;

class Keys {
 public:
  Keys(const Json& metadata, std::string where) : metadata_(metadata), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& problem, const std::string& mend) const {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", where_, problem), mend);
  }
  const Json* find(const std::string& key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : &*found;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, value] : metadata_.items()) out.push_back(name);
    return out;
  }
  std::string text_or(const std::string& key, std::string fallback) const {
    const Json* value = find(key);
    if (!value) return fallback;
    if (!value->is_string()) wrong(key, "a text");
    return value->get<std::string>();
  }
  std::optional<int64_t> integer(const std::string& key) const {
    const Json* value = find(key);
    if (!value) return std::nullopt;
    // One for all layers may be written as a list of equal ones.
    if (value->is_array() && !value->empty()) {
      for (const Json& one : *value)
        if (one != value->front())
          refuse(fmt::format("{} differs from layer to layer", key), "such models are not read");
      value = &value->front();
    }
    if (!value->is_number_integer()) wrong(key, "a whole number");
    if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT32_MAX})
      wrong(key, "a number below 2^31");
    return value->get<int64_t>();
  }
  int64_t need_integer(const std::string& key) const {
    const auto value = integer(key);
    if (!value) refuse(fmt::format("key {} is missing", key), "download the file again");
    return *value;
  }
  std::optional<double> number(const std::string& key) const {
    const Json* value = find(key);
    if (!value) return std::nullopt;
    if (!value->is_number()) wrong(key, "a number");
    return value->get<double>();
  }

 private:
  [[noreturn]] void wrong(const std::string& key, const char* wanted) const {
    refuse(fmt::format("key {} is not {}", key, wanted), "download the file again");
  }
  const Json& metadata_;
  std::string where_;
};

// Llama 3's rule of scaling, which the file has as one factor for each frequency; null without it.
Json llama3_scaling(const Keys& keys, const io::Checkpoint& checkpoint, double theta,
                    int64_t head_dim) {
  const io::TensorEntry* tensor = checkpoint.find("rope_freqs.weight");
  if (!tensor) return nullptr;
  const int64_t count = head_dim / 2;
  if (tensor->dtype != DType::kF32 || tensor->shape != std::vector<int64_t>{count} ||
      count > kMostFactors)
    keys.refuse("rope_freqs.weight is no f32 vector of half a head", "download the file again");
  std::vector<float> factors(static_cast<size_t>(count));
  const io::InputFile file(checkpoint.files()[static_cast<size_t>(tensor->file_index)].path);
  file.read(tensor->offset, std::as_writable_bytes(std::span(factors)), "rope_freqs");
  const double factor = *std::max_element(factors.begin(), factors.end());
  constexpr double kLow = 1, kHigh = 4, kOriginal = 8192;
  for (int64_t i = 0; i < count; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double wavelength = 2 * std::numbers::pi / frequency;
    double expected = 1;
    if (wavelength > kOriginal / kLow) {
      expected = factor;
    } else if (wavelength >= kOriginal / kHigh) {
      const double smooth = (kOriginal / wavelength - kLow) / (kHigh - kLow);
      expected = 1 / ((1 - smooth) / factor + smooth);
    }
    if (!(std::abs(factors[static_cast<size_t>(i)] - expected) <= 1e-3 * expected))
      keys.refuse("its rotary positions are scaled in a way that is not Llama 3's",
                  "convert the Hugging Face checkpoint of the model instead");
  }
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLow},
          {"high_freq_factor", kHigh},
          {"original_max_position_embeddings", static_cast<int64_t>(kOriginal)}};
}

// A factor without a type is linear, and so is the key that older writers gave it; null: none.
Json rope_scaling(const Keys& keys, const std::string& p, const io::Checkpoint& checkpoint,
                  double theta, int64_t head_dim) {
  const std::string type = keys.text_or(p + "rope.scaling.type", "linear");
  if (type != "linear" && type != "none")
    keys.refuse(fmt::format("rotary positions are scaled by \"{}\"", type),
                "none, linear and Llama 3's are read");
  if (keys.number(p + "rope.scaling.attn_factor").value_or(1) != 1)
    keys.refuse("rope.scaling.attn_factor is not 1", "such models are not read");
  double factor = keys.number(p + "rope.scaling.factor")
                      .value_or(keys.number(p + "rope.scale_linear").value_or(1));
  if (factor == 0 || type == "none") factor = 1;  // as the readers of the format have it
  Json llama3 = llama3_scaling(keys, checkpoint, theta, head_dim);
  if (factor == 1) return llama3;
  if (!llama3.is_null())
    keys.refuse(fmt::format("rotary positions are scaled by {} and by rope_freqs.weight", factor),
                "such models are not read");
  return {{"rope_type", "linear"}, {"factor", factor}};
}

// What the architecture's keys may say beside those that are read: sizes that tensors show, and
// features that are off.
void refuse_unknown_keys(const Keys& keys, const std::string& p, int64_t head_dim) {
  constexpr std::string_view kRead[] = {"context_length",
                                        "embedding_length",
                                        "block_count",
                                        "feed_forward_length",
                                        "vocab_size",
                                        "expert_count",
                                        "expert_used_count",
                                        "tensor_data_layout",
                                        "attention.head_count",
                                        "attention.head_count_kv",
                                        "attention.key_length",
                                        "attention.value_length",
                                        "attention.layer_norm_rms_epsilon",
                                        "rope.dimension_count",
                                        "rope.freq_base",
                                        "rope.scale_linear",
                                        "rope.scaling.type",
                                        "rope.scaling.factor",
                                        "rope.scaling.attn_factor",
                                        "rope.scaling.original_context_length",
                                        "rope.scaling.finetuned"};
  for (const std::string& name : keys.names()) {
    if (!name.starts_with(p)) continue;
    if (std::find(std::begin(kRead), std::end(kRead), name.substr(p.size())) == std::end(kRead))
      keys.refuse(fmt::format("key {} is not known, and what it asks for would not be done", name),
                  "convert the Hugging Face checkpoint of the model instead");
  }
  if (keys.integer(p + "attention.value_length").value_or(head_dim) != head_dim)
    keys.refuse("heads of keys and of values differ in length", "such models are not read");
  if (keys.text_or(p + "tensor_data_layout", "reference") != "Meta AI original pth" &&
      keys.text_or(p + "tensor_data_layout", "reference") != "reference")
    keys.refuse(fmt::format("tensor_data_layout \"{}\" is not read",
                            keys.text_or(p + "tensor_data_layout", "")),
                "download another file of the model");
}

int64_t vocabulary(const Keys& keys, const io::Checkpoint& checkpoint) {
  const io::TensorEntry* table = checkpoint.find("token_embd.weight");
  if (!table || table->shape.size() != 2)
    keys.refuse("token_embd.weight is missing or no matrix", "download the file again");
  return table->shape[0];
}
}  // namespace

std::string gguf_config_json(const io::Checkpoint& checkpoint) {
  const Keys keys(checkpoint.gguf_metadata(), checkpoint.files().front().path.string());
  const std::string architecture = keys.text_or("general.architecture", "");
  if (architecture != "llama")
    keys.refuse(fmt::format("GGUF architecture \"{}\" is not read", architecture),
                "llama is; convert the Hugging Face checkpoint of the model instead");
  const std::string p = architecture + ".";
  if (keys.integer(p + "expert_count").value_or(0) > 0)
    keys.refuse("a mixture of experts is not read", "choose a dense model");
  const int64_t heads = keys.need_integer(p + "attention.head_count");
  const int64_t hidden = keys.need_integer(p + "embedding_length");
  if (heads < 1) keys.refuse("it has no attention heads", "download the file again");
  const int64_t head_dim = keys.integer(p + "attention.key_length").value_or(hidden / heads);
  if (keys.integer(p + "rope.dimension_count").value_or(head_dim) != head_dim)
    keys.refuse("only a part of each head is rotated", "such models are not read");
  refuse_unknown_keys(keys, p, head_dim);
  const double theta = keys.number(p + "rope.freq_base").value_or(10000.0);
  Json config{{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"torch_dtype", "float16"},
              {"hidden_act", "silu"},
              {"hidden_size", hidden},
              {"intermediate_size", keys.need_integer(p + "feed_forward_length")},
              {"num_hidden_layers", keys.need_integer(p + "block_count")},
              {"num_attention_heads", heads},
              {"num_key_value_heads", keys.integer(p + "attention.head_count_kv").value_or(heads)},
              {"head_dim", head_dim},
              {"max_position_embeddings", keys.integer(p + "context_length").value_or(2048)},
              {"rms_norm_eps", keys.number(p + "attention.layer_norm_rms_epsilon").value_or(1e-5)},
              {"rope_theta", theta},
              {"vocab_size", vocabulary(keys, checkpoint)},
              {"attention_bias", checkpoint.find("blk.0.attn_q.bias") != nullptr},
              {"mlp_bias", checkpoint.find("blk.0.ffn_up.bias") != nullptr},
              {"tie_word_embeddings", checkpoint.find("output.weight") == nullptr}};
  if (Json scaling = rope_scaling(keys, p, checkpoint, theta, head_dim); !scaling.is_null())
    config["rope_scaling"] = std::move(scaling);
  for (const auto& [theirs, ours] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                     std::pair{"tokenizer.ggml.eos_token_id", "eos_token_id"}})
    if (const auto id = keys.integer(theirs)) config[ours] = *id;
  return config.dump(2);
}

std::optional<GgufName> gguf_name(const std::string& name, int64_t heads, int64_t kv_heads) {
  struct Pair {
    std::string_view theirs, ours;
  };
  constexpr Pair kGlobal[] = {{"model.embed_tokens.weight", "token_embd.weight"},
                              {"model.norm.weight", "output_norm.weight"},
                              {"lm_head.weight", "output.weight"}};
  for (const auto& [theirs, ours] : kGlobal)
    if (name == theirs) return GgufName{std::string(ours)};
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  const size_t dot = name.find('.', kLayers.size());
  const size_t end = name.rfind('.');
  if (dot == std::string::npos || end <= dot) return std::nullopt;
  const std::string number = name.substr(kLayers.size(), dot - kLayers.size());
  const std::string part = name.substr(dot + 1, end - dot - 1);
  constexpr Pair kParts[] = {
      {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"}, {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  for (const auto& [theirs, ours] : kParts)
    if (part == theirs)
      return GgufName{fmt::format("blk.{}.{}{}", number, ours, name.substr(end)),
                      ours == "attn_q"   ? heads
                      : ours == "attn_k" ? kv_heads
                                         : 0};
  return std::nullopt;
}

}  // namespace sluice
