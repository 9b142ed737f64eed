// Llama 1, 2, 3.x: pre-norm with RMSNorm, rotary positions (linear and llama-3 scaling),
// grouped-query attention, SwiGLU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/model/families/decoder_names.h"
#include "src/model/families/families.h"

namespace sluice {

namespace {

// Hugging Face's "llama3" rule: long wavelengths are divided by `factor`, short ones kept, those
// between interpolated.
void scale_llama3(const ModelConfig& scaling, std::vector<float>& inverse_frequencies) {
  const double factor = scaling.number("factor");
  const double low = scaling.number("low_freq_factor");
  const double high = scaling.number("high_freq_factor");
  const double original = scaling.number("original_max_position_embeddings");
  if (!(factor >= 1 && factor <= 1e6 && high > low && low > 0 && original > 0))
    scaling.refuse(
        "llama3 scaling needs 1 <= factor <= 1e6 and high_freq_factor > low_freq_factor > 0",
        "mend the config.json");
  for (float& frequency : inverse_frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < original / high) continue;
    if (wavelength > original / low) {
      frequency = static_cast<float>(frequency / factor);
      continue;
    }
    const double smooth = (original / wavelength - low) / (high - low);
    frequency = static_cast<float>((1 - smooth) * frequency / factor + smooth * frequency);
  }
}

// By one object's "rope_type" (older: "type"); `theta` is its own or the model's.
std::vector<float> scaled_frequencies(const ModelConfig* scaling, const ModelConfig& config,
                                      double theta, int64_t head_dim) {
  if (!(theta >= 1 && theta <= 1e12))
    config.refuse(fmt::format("\"rope_theta\" is {}, outside 1..1e12", theta),
                  "mend the config.json");
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = static_cast<float>(
        1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  if (!scaling) return frequencies;
  const std::string type = scaling->text_or("rope_type", scaling->text_or("type", "default"));
  if (type != "llama3" && type != "linear" && type != "default")
    scaling->refuse(fmt::format("rope type \"{}\" is not supported", type),
                    "sluice knows default, linear and llama3");
  if (scaling->text_or("type", type) != type)
    scaling->refuse("\"rope_type\" and \"type\" differ", "remove the one that is wrong");
  scaling->require_known(
      {"rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
       "original_max_position_embeddings", "partial_rotary_factor"},
      "sluice knows the rope types default, linear and llama3");
  if (scaling->number_or("partial_rotary_factor", 1) != 1)
    scaling->refuse("only a part of each head is rotated", "such models are not read");
  if (type == "llama3") {
    scale_llama3(*scaling, frequencies);
  } else if (type == "linear") {
    const double factor = scaling->number("factor");
    if (!(factor >= 1e-3 && factor <= 1e6))
      scaling->refuse(fmt::format("\"factor\" is {}, outside 0.001..1e6", factor),
                      "mend the config.json");
    for (float& frequency : frequencies) frequency = static_cast<float>(frequency / factor);
  }
  return frequencies;
}

// transformers 5 keeps theta and scaling in one object, earlier versions scaling in another. Where
// a file has both, they must say the same: which of them a reader believes is its own affair.
std::vector<float> rope_frequencies(const ModelConfig& config, int64_t head_dim) {
  const auto ours = [](const std::optional<ModelConfig>& object) {
    return object ? &*object : nullptr;
  };
  const auto parameters = config.object("rope_parameters");
  const auto scaling = config.object("rope_scaling");
  const double outer = config.number_or("rope_theta", 10000.0);
  const auto theta_of = [&](const std::optional<ModelConfig>& object) {
    return object ? object->number_or("rope_theta", outer) : outer;
  };
  const double theta = theta_of(parameters ? parameters : scaling);
  const auto frequencies =
      scaled_frequencies(ours(parameters ? parameters : scaling), config, theta, head_dim);
  const bool is_one_theta = !config.has("rope_theta") || theta == outer;
  const bool is_one_scaling =
      !parameters || !scaling ||
      scaled_frequencies(ours(scaling), config, theta_of(scaling), head_dim) == frequencies;
  if (!is_one_theta || !is_one_scaling)
    config.refuse(fmt::format("\"rope_parameters\" and \"{}\" differ",
                              is_one_theta ? "rope_scaling" : "rope_theta"),
                  "remove the one that the model was not trained with");
  return frequencies;
}

class LlamaModel final : public FamilyModel {
 public:
  explicit LlamaModel(const ModelConfig& config) {
    read_shape(config);
    frequencies_ = rope_frequencies(config, shape_.head_dim);
    const double eps = config.number_or("rms_norm_eps", 1e-6);
    if (!(eps >= 0 && eps < 1))
      config.refuse(fmt::format("\"rms_norm_eps\" is {}, outside 0..1", eps),
                    "mend the config.json");
    eps_ = static_cast<float>(eps);
    list_weights(config);
  }

  // down's inputs are products with up's outputs. The gate's outputs pass through silu: not them.
  std::vector<ScalingPlace> scaling_places(const SublayerShape& sublayer) const override {
    if (sublayer.kind == SublayerKind::kMlp) return {{"norm", {"gate", "up"}}, {"up", {"down"}}};
    if (sublayer.kind != SublayerKind::kAttention) return {};
    std::vector<ScalingPlace> places{{"norm", {"q", "k", "v"}}};
    // Weighted sums of v's rows are o's inputs, one for one where each head has its own.
    if (shape_.num_heads == shape_.num_kv_heads) places.push_back({"v", {"o"}});
    return places;
  }

 private:
  NormSpec norm() const { return {NormKind::kRms, "norm", {}, eps_}; }

  void embed(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    layer.gather_tokens("tokens", x);
    layer.set_hidden(x);
  }

  void attention(LayerBuilder& layer) const override {
    const int64_t q_cols = shape_.num_heads * shape_.head_dim;
    const int64_t kv_cols = shape_.num_kv_heads * shape_.head_dim;
    const View x = layer.workspace(shape_.hidden_size);
    const View qkv = layer.workspace(q_cols + 2 * kv_cols);
    const View q = qkv.columns(0, q_cols);
    const View k = qkv.columns(q_cols, kv_cols);
    const View v = qkv.columns(q_cols + kv_cols, kv_cols);
    layer.norm_hidden(norm(), x);
    layer.linear("q", attention_bias_ ? "q.bias" : "", x, q);
    layer.linear("k", attention_bias_ ? "k.bias" : "", x, k);
    layer.linear("v", attention_bias_ ? "v.bias" : "", x, v);
    layer.rope(q, shape_.num_heads, frequencies_, 1.0f);
    layer.rope(k, shape_.num_kv_heads, frequencies_, 1.0f);
    const View attended = layer.workspace(q_cols);
    layer.attend(q, k, v, attended);
    layer.linear("o", attention_bias_ ? "o.bias" : "", attended, x);
    layer.add_to_hidden(x);
  }

  void mlp(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    const View gate = layer.workspace(shape_.intermediate_size);
    const View up = layer.workspace(shape_.intermediate_size);
    layer.norm_hidden(norm(), x);
    layer.linear("gate", mlp_bias_ ? "gate.bias" : "", x, gate);
    layer.linear("up", mlp_bias_ ? "up.bias" : "", x, up);
    layer.silu_mul(gate, up, gate);
    layer.linear("down", mlp_bias_ ? "down.bias" : "", gate, x);
    layer.add_to_hidden(x);
  }

  void head(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    layer.read_needed_hidden(x);
    layer.norm(norm(), x);
    layer.logits("logits", x);
  }

  void read_shape(const ModelConfig& config) {
    constexpr int64_t kWide = 1 << 20;
    ModelShape& s = shape_;
    s.family = "llama";
    s.weight_dtype = config_dtype(config);
    s.hidden_size = config.integer("hidden_size", 1, kWide);
    s.intermediate_size = config.integer("intermediate_size", 1, 8 * kWide);
    s.num_layers = config.integer("num_hidden_layers", 1, 4096);
    s.num_heads = config.integer("num_attention_heads", 1, 4096);
    s.num_kv_heads = config.integer_or("num_key_value_heads", s.num_heads, 1, s.num_heads);
    s.vocab_size = config.integer("vocab_size", 1, 1 << 24);
    s.max_positions = config.integer_or("max_position_embeddings", 2048, 1, int64_t{1} << 31);
    if (!config.has("head_dim") && s.hidden_size % s.num_heads != 0)
      config.refuse(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                                s.hidden_size, s.num_heads),
                    "mend the config.json");
    s.head_dim = config.integer_or("head_dim", s.hidden_size / s.num_heads, 2, 1024);
    if (s.head_dim % 2 != 0)
      config.refuse(fmt::format("head_dim {} is odd", s.head_dim), "rotary positions need pairs");
    if (s.num_heads % s.num_kv_heads != 0)
      config.refuse(fmt::format("{} attention heads can't share {} KV heads evenly", s.num_heads,
                                s.num_kv_heads),
                    "mend the config.json");
    const std::string activation = config.text_or("hidden_act", "silu");
    if (activation != "silu")
      config.refuse(fmt::format("hidden_act \"{}\" is not supported for llama", activation),
                    "sluice knows silu here");
    attention_bias_ = config.boolean_or("attention_bias", false);
    mlp_bias_ = config.boolean_or("mlp_bias", false);
    const int64_t q_cols = s.num_heads * s.head_dim;
  }

  void add_bias(SublayerShape& sublayer, const std::string& role, int64_t size,
                const std::string& name) const {
    sublayer.weights.push_back(
        vector(role + ".bias", size, {name + ".bias", "model." + name + ".bias"}));
  }

  void add_linear(SublayerShape& sublayer, const std::string& role, int64_t rows, int64_t cols,
                  const std::string& name, bool has_bias) const {
    sublayer.weights.push_back(
        matrix(role, rows, cols, {"model." + name + ".weight", name + ".weight"}));
    if (has_bias) add_bias(sublayer, role, rows, name);
  }

  void list_weights(const ModelConfig& config) {
    const ModelShape& s = shape_;
    const bool is_tied = config.boolean_or("tie_word_embeddings", false);
    const std::vector<std::string> token_names{"model.embed_tokens.weight", "embed_tokens.weight"};
    shape_.sublayers.push_back(
        {SublayerKind::kEmbed, -1, {table("tokens", s.vocab_size, s.hidden_size, token_names)}});
    for (int64_t layer = 0; layer < s.num_layers; ++layer) {
      const std::string prefix = fmt::format("layers.{}.", layer);
      const auto norm_names = [&](const char* name) {
        return std::vector<std::string>{"model." + prefix + name, prefix + name};
      };
      SublayerShape attention{SublayerKind::kAttention, layer, {}};
      attention.weights.push_back(
          vector("norm", s.hidden_size, norm_names("input_layernorm.weight")));
      const int64_t q_rows = s.num_heads * s.head_dim;
      const int64_t kv_rows = s.num_kv_heads * s.head_dim;
      add_linear(attention, "q", q_rows, s.hidden_size, prefix + "self_attn.q_proj",
                 attention_bias_);
      add_linear(attention, "k", kv_rows, s.hidden_size, prefix + "self_attn.k_proj",
                 attention_bias_);
      add_linear(attention, "v", kv_rows, s.hidden_size, prefix + "self_attn.v_proj",
                 attention_bias_);
      add_linear(attention, "o", s.hidden_size, q_rows, prefix + "self_attn.o_proj",
                 attention_bias_);
      shape_.sublayers.push_back(std::move(attention));
      SublayerShape mlp{SublayerKind::kMlp, layer, {}};
      mlp.weights.push_back(
          vector("norm", s.hidden_size, norm_names("post_attention_layernorm.weight")));
      add_linear(mlp, "gate", s.intermediate_size, s.hidden_size, prefix + "mlp.gate_proj",
                 mlp_bias_);
      add_linear(mlp, "up", s.intermediate_size, s.hidden_size, prefix + "mlp.up_proj", mlp_bias_);
      add_linear(mlp, "down", s.hidden_size, s.intermediate_size, prefix + "mlp.down_proj",
                 mlp_bias_);
      shape_.sublayers.push_back(std::move(mlp));
    }
    SublayerShape head{SublayerKind::kHead, -1, {}};
    head.weights.push_back(vector("norm", s.hidden_size, {"model.norm.weight", "norm.weight"}));
    WeightShape logits = matrix("logits", s.vocab_size, s.hidden_size, {"lm_head.weight"});
    logits.shares_table = is_tied;
    if (is_tied) logits.names = token_names;
    head.weights.push_back(std::move(logits));
    shape_.sublayers.push_back(std::move(head));
  }

  std::vector<float> frequencies_;
  float eps_ = 1e-6f;
  bool attention_bias_ = false;
  bool mlp_bias_ = false;
};

}  // namespace

std::unique_ptr<FamilyModel> make_llama(const ModelConfig& config) {
  return std::make_unique<LlamaModel>(config);
}

}  // namespace sluice
