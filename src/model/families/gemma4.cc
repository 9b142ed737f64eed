// Gemma 4, its part for text: layers with a window and layers without have heads of
// their own widths and rotary positions; the last layers may read the keys and values that the last
// one of their kind before them keeps; a token may have a row for each layer beside its embedding;
// a mixture's layers have experts beside their MLP, each with norms of its own, chosen by a router
// that sees the residual stream.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/base/error.h"
#include "src/model/families/decoder.h"
#include "src/model/families/decoder_names.h"
#include "src/model/families/decoder_presets.h"
#include "src/model/families/gemma4_gguf.h"
#include "src/model/families/mixture_traits.h"

namespace sluice {

namespace {

const std::vector<std::string> kPrefixes{"model.", "", "model.language_model.",
                                         "language_model.model."};

struct Gemma4Layer {
  bool has_window = false;
  int64_t head_dim = 0;
  int64_t kv_heads = 0;
  int64_t source = -1;  // whose keys and values it reads; -1: it keeps its own
  int64_t intermediate_size = 0;
  bool keys_are_values = false;
};

class Gemma4 final : public FamilyModel {
 public:
  explicit Gemma4(const ModelConfig& config) {
    refuse_others(config);
    read_shape(config);
    if (config.boolean_or("enable_moe_block", false)) read_experts(config);
    read_layers(config);
    read_ropes(config);
    list_weights(config);
    std::vector<LayerState> states;
    std::vector<int64_t> sources;
    for (const Gemma4Layer& layer : layers_) {
      const bool sees_all = !layer.has_window || window_ >= shape_.max_positions;
      states.push_back(
          {.heads = layer.kv_heads, .width = layer.head_dim, .window = sees_all ? 0 : window_});
      sources.push_back(layer.source);
    }
    shape_.set_states(states, sources);
  }

 private:
  NormSpec norm(std::string_view gain) const { return {NormKind::kRms, gain, "", eps_}; }
  std::string_view bias(std::string_view role) const {
    return has_bias_ ? role : std::string_view{};
  }
  const Gemma4Layer& at(const LayerBuilder& layer) const {
    return layers_[static_cast<size_t>(layer.layer_index())];
  }

  void embed(LayerBuilder& layer) const override {
    const auto hidden = static_cast<float>(shape_.hidden_size);
    const View x = layer.workspace(shape_.hidden_size);
    layer.gather_tokens("tokens", x);
    layer.scale(x, std::sqrt(hidden));
    if (token_columns_ > 0) {
      // Half of each token's rows is its own, half is made of its embedding.
      const View own = layer.workspace(shape_.carried_columns);
      layer.gather_tokens("layer_tokens", own);
      layer.scale(own, std::sqrt(static_cast<float>(token_columns_)));
      const View made = layer.workspace(shape_.carried_columns);
      layer.linear("layer_inputs", "", x, made);
      layer.scale(made, 1 / std::sqrt(hidden));
      layer.norm_heads(norm("layer_norm"), made, shape_.num_layers);
      layer.add(made, own);
      layer.scale(made, std::sqrt(0.5f));
      layer.carry(made);
    }
    layer.set_hidden(x);
  }

  void attention(LayerBuilder& layer) const override {
    const Gemma4Layer& own = at(layer);
    const Rope& rope = own.has_window ? window_rope_ : full_rope_;
    const int64_t heads = shape_.num_heads;
    const View x = layer.workspace(shape_.hidden_size);
    layer.norm_hidden(norm("norm"), x);
    const View q = layer.workspace(heads * own.head_dim);
    layer.linear("q", bias("q.bias"), x, q);
    layer.norm_heads(norm("q_norm"), q, heads);
    layer.rope(q, heads, rope.frequencies, rope.factor);
    View k, v;
    if (own.source < 0) {
      k = layer.workspace(own.kv_heads * own.head_dim);
      v = layer.workspace(own.kv_heads * own.head_dim);
      layer.linear("k", bias("k.bias"), x, k);
      if (own.keys_are_values)
        layer.take_heads(k, v, own.kv_heads, 0);
      else
        layer.linear("v", bias("v.bias"), x, v);
      layer.norm_heads(norm("k_norm"), k, own.kv_heads);
      layer.norm_heads(norm(""), v, own.kv_heads);
      layer.rope(k, own.kv_heads, rope.frequencies, rope.factor);
    }
    const View attended = layer.workspace(heads * own.head_dim);
    layer.attend(q, k, v, attended, {.scale = 1, .slopes = {}});
    layer.linear("o", bias("o.bias"), attended, x);
    layer.norm(norm("post_norm"), x);
    layer.add_to_hidden(x);
  }

  // What the experts give is normalised and in another slot than what the router sees.
  View mix_experts(LayerBuilder& layer) const {
    const int64_t hidden = shape_.hidden_size;
    const RouterSpec& router = mixture_->router;
    const View seen = layer.workspace(hidden), x = layer.workspace(hidden);
    layer.norm_hidden(norm("router.gain"), seen);
    const View scores = layer.workspace(router.experts);
    layer.linear("router", "", seen, scores);
    layer.norm_hidden(norm("experts_norm"), x);
    const View choices = layer.workspace(LayerBuilder::route_columns(router));
    layer.route(router, "router.factors", scores, choices);
    const View y = layer.workspace(hidden);
    layer.experts({.activation = activation_}, x, choices, y);
    layer.norm(norm("experts_post_norm"), y);
    return y;
  }

  void mlp(LayerBuilder& layer) const override {
    const View mixed = mixture_ ? mix_experts(layer) : View{};
    const View x = layer.workspace(shape_.hidden_size);
    layer.norm_hidden(norm("norm"), x);
    const View gate = layer.workspace(at(layer).intermediate_size);
    const View up = layer.workspace(at(layer).intermediate_size);
    layer.linear("gate", "", x, gate);
    layer.linear("up", "", x, up);
    layer.gate(activation_, gate, up, gate);
    layer.linear("down", "", gate, x);
    if (mixture_) {
      layer.norm(norm("dense_post_norm"), x);
      layer.add(x, mixed);
    }
    layer.norm(norm("post_norm"), x);
    layer.add_to_hidden(x);
    if (token_columns_ > 0) {
      layer.read_hidden(x);
      const View inner = layer.workspace(token_columns_);
      const View own = layer.workspace(token_columns_);
      layer.linear("layer_gate", "", x, inner);
      layer.read_carried(layer.layer_index() * token_columns_, own);
      layer.gate(activation_, inner, own, inner);
      layer.linear("layer_out", "", inner, x);
      layer.norm(norm("layer_post_norm"), x);
      layer.add_to_hidden(x);
    }
    layer.scale_hidden("scalar");
  }

  void head(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    layer.read_needed_hidden(x);
    layer.norm(norm("norm"), x);
    layer.logits("logits", x, "", logit_cap_);
  }

  static void refuse_others(const ModelConfig& config) {
    if (config.has("use_bidirectional_attention") &&
        config.text_or("use_bidirectional_attention", "") != "vision")
      config.refuse("attention looks ahead", "sluice runs models that generate text");
  }

  void read_shape(const ModelConfig& config) {
    constexpr int64_t kWide = 1 << 20;
    ModelShape& s = shape_;
    s.family = "gemma4_text";
    s.weight_dtype = config_dtype(config);
    s.hidden_size = config.integer("hidden_size", 1, kWide);
    s.intermediate_size = config.integer("intermediate_size", 1, 8 * kWide);
    s.num_layers = config.integer("num_hidden_layers", 1, 4096);
    s.num_heads = config.integer_or("num_attention_heads", 8, 1, 4096);
    s.num_kv_heads = config.integer_or("num_key_value_heads", 4, 1, s.num_heads);
    s.head_dim = config.integer_or("head_dim", 256, 1, 1024);
    s.vocab_size = config.integer_or("vocab_size", 262144, 1, 1 << 24);
    s.max_positions = config.integer_or("max_position_embeddings", 131072, 1, int64_t{1} << 31);
    window_ = config.integer_or("sliding_window", 512, 1, int64_t{1} << 31);
    const bool is_unified = config.text_or("model_type", "") == "gemma4_unified_text";
    token_columns_ = is_unified || config.is_null("hidden_size_per_layer_input")
                         ? 0
                         : config.integer_or("hidden_size_per_layer_input", 256, 0, kWide);
    s.carried_columns = s.num_layers * token_columns_;
    token_rows_ = config.integer_or("vocab_size_per_layer_input", 262144, 1, 1 << 24);
    if (token_columns_ > 0 && token_rows_ < s.vocab_size)
      config.refuse(fmt::format("\"vocab_size_per_layer_input\" {} is less than \"vocab_size\" {}",
                                token_rows_, s.vocab_size),
                    "every token needs a row of its own for the layers");
    has_bias_ = config.boolean_or("attention_bias", false);
    activation_ = read_activation(config, "hidden_activation", "gelu_pytorch_tanh");
    logit_cap_ = read_soft_cap(config, "final_logit_softcapping", 0);
    const double eps = config.number_or("rms_norm_eps", 1e-6);
    if (!(eps >= 0 && eps < 1))
      config.refuse(fmt::format("\"rms_norm_eps\" is {}, outside 0..1", eps),
                    "mend the config.json");
    eps_ = static_cast<float>(eps);
  }

  // Scores are those of rows that are divided by the root of their width.
  void read_experts(const ModelConfig& config) {
    mixture_ = read_mixture(config, {.chosen = "top_k_experts"}, 0, 0, 0);
    RouterSpec& router = mixture_->router;
    router.renormalises = true;
    router.vector_scales = true;
    router.score_scale = 1 / std::sqrt(static_cast<float>(shape_.hidden_size));
    shape_.num_experts = router.experts;
    shape_.experts_per_token = router.chosen;
  }

  std::vector<bool> read_windows(const ModelConfig& config) const {
    std::vector<bool> windows = read_window_layers(config, 6);
    windows.back() = false;  // whatever its type says
    return windows;
  }

  void read_layers(const ModelConfig& config) {
    const ModelShape& s = shape_;
    const std::vector<bool> windows = read_windows(config);
    const int64_t shared = config.integer_or("num_kv_shared_layers", 0, 0, s.num_layers - 1);
    const bool keys_are_values = config.boolean_or("attention_k_eq_v", false);
    const bool is_double = config.boolean_or("use_double_wide_mlp", false);
    const int64_t first_shared = s.num_layers - shared;
    for (int64_t i = 0; i < s.num_layers; ++i) {
      Gemma4Layer layer;
      layer.has_window = windows[static_cast<size_t>(i)];
      layer.head_dim = s.head_dim;
      layer.kv_heads = s.num_kv_heads;
      layer.keys_are_values = keys_are_values && !layer.has_window;
      layer.intermediate_size = s.intermediate_size * (is_double && i >= first_shared ? 2 : 1);
      if (!layer.has_window) read_full_layer(config, keys_are_values, layer);
      read_own_sizes(config, i, layer);
      if (s.num_heads % layer.kv_heads != 0)
        config.refuse(fmt::format("{} attention heads can't share {} KV heads evenly", s.num_heads,
                                  layer.kv_heads),
                      "mend the config.json");
      if (i >= first_shared) layer.source = source_of(config, first_shared, i, layer);
      layers_.push_back(layer);
    }
  }

  static void read_full_layer(const ModelConfig& config, bool keys_are_values, Gemma4Layer& layer) {
    layer.head_dim = config.integer_or("global_head_dim", 512, 1, 1024);
    if (keys_are_values)
      layer.kv_heads = config.integer_or("num_global_key_value_heads", layer.kv_heads, 1, 4096);
  }

  // What transformers writes in place of the keys for layers without a window.
  static void read_own_sizes(const ModelConfig& config, int64_t index, Gemma4Layer& layer) {
    const auto all = config.object("per_layer_config");
    const auto own = all ? all->object(std::to_string(index)) : std::nullopt;
    if (!own) return;
    own->require_known({"head_dim", "num_key_value_heads"},
                       "sluice knows head_dim and num_key_value_heads of single layers");
    layer.head_dim = own->integer_or("head_dim", layer.head_dim, 1, 1024);
    layer.kv_heads = own->integer_or("num_key_value_heads", layer.kv_heads, 1, 4096);
  }

  // The last of its kind that keeps its own.
  int64_t source_of(const ModelConfig& config, int64_t first_shared, int64_t index,
                    const Gemma4Layer& layer) const {
    for (int64_t i = first_shared; i-- > 0;) {
      const Gemma4Layer& source = layers_[static_cast<size_t>(i)];
      if (source.has_window != layer.has_window) continue;
      if (source.head_dim == layer.head_dim && source.kv_heads == layer.kv_heads) return i;
      config.refuse(
          fmt::format("layers {} and {} share keys and values, but their heads differ", i, index),
          "mend the config.json");
    }
    config.refuse(
        fmt::format("layer {} shares keys and values, but no layer of its type before layer {} "
                    "keeps any",
                    index, first_shared),
        "mend \"num_kv_shared_layers\" or \"layer_types\"");
  }

  void read_ropes(const ModelConfig& config) {
    const auto width = [&](bool has_window) {
      const auto found =
          std::find_if(layers_.begin(), layers_.end(),
                       [&](const Gemma4Layer& layer) { return layer.has_window == has_window; });
      for (const Gemma4Layer& layer : layers_)
        if (layer.has_window == has_window && layer.head_dim != found->head_dim)
          config.refuse("layers of one type have heads of different widths",
                        "mend the config.json");
      return found == layers_.end() ? 0 : found->head_dim;
    };
    full_rope_ = read_rope(config, width(false),
                           {.theta = 1e6,
                            .share = 0.25,
                            .is_scaled = false,
                            .layer_type = "full_attention",
                            .is_proportional = true});
    if (width(true) > 0)
      window_rope_ =
          read_rope(config, width(true),
                    {.theta = 1e4, .is_scaled = false, .layer_type = "sliding_attention"});
  }

  WeightShape named(WeightShape weight, const std::string& tensor) const {
    weight.names = prefixed(kPrefixes, tensor);
    weight.gguf.name = gemma4_gguf_name(tensor);
    return weight;
  }
  void add_vector(SublayerShape& to, const char* role, int64_t size,
                  const std::string& tensor) const {
    to.weights.push_back(named(vector(role, size, {}), tensor));
  }
  void add_matrix(SublayerShape& to, const char* role, int64_t rows, int64_t cols,
                  const std::string& tensor, bool has_bias = false) const {
    to.weights.push_back(named(matrix(role, rows, cols, {}), tensor + ".weight"));
    if (has_bias)
      to.weights.push_back(named(vector(std::string(role) + ".bias", rows, {}), tensor + ".bias"));
  }

  void list_attention(int64_t index, const std::string& prefix) {
    const Gemma4Layer& layer = layers_[static_cast<size_t>(index)];
    const int64_t hidden = shape_.hidden_size;
    const int64_t q = shape_.num_heads * layer.head_dim, kv = layer.kv_heads * layer.head_dim;
    const std::string own = prefix + "self_attn.";
    SublayerShape attention{SublayerKind::kAttention, index, {}};
    add_vector(attention, "norm", hidden, prefix + "input_layernorm.weight");
    add_matrix(attention, "q", q, hidden, own + "q_proj", has_bias_);
    add_vector(attention, "q_norm", layer.head_dim, own + "q_norm.weight");
    if (layer.source < 0) {
      add_matrix(attention, "k", kv, hidden, own + "k_proj", has_bias_);
      if (!layer.keys_are_values) add_matrix(attention, "v", kv, hidden, own + "v_proj", has_bias_);
      add_vector(attention, "k_norm", layer.head_dim, own + "k_norm.weight");
      join_rows(attention, {"q", "k", "v"});
    }
    add_matrix(attention, "o", hidden, q, own + "o_proj", has_bias_);
    add_vector(attention, "post_norm", hidden, prefix + "post_attention_layernorm.weight");
    shape_.sublayers.push_back(std::move(attention));
  }

  // Of every expert the same matrix: rows of a stack of all.
  void add_experts(SublayerShape& to, const std::string& part, int64_t rows, int64_t cols,
                   const std::string& stack, int64_t first_row, int64_t stack_rows) const {
    const int64_t experts = mixture_->router.experts;
    const std::string prefix = fmt::format("layers.{}.experts.", to.layer_index);
    WeightShape weight = named(matrix("experts." + part, experts * rows, cols, {}),
                               prefix + "{e}." + part + "_proj.weight");
    weight.experts = experts;
    weight.fused = {prefixed(kPrefixes, prefix + stack), first_row, stack_rows};
    to.weights.push_back(std::move(weight));
  }

  void list_experts(SublayerShape& mlp, const std::string& prefix) const {
    const int64_t hidden = shape_.hidden_size, width = mixture_->width;
    const int64_t experts = mixture_->router.experts;
    add_vector(mlp, "router.gain", hidden, prefix + "router.scale");
    add_matrix(mlp, "router", experts, hidden, prefix + "router.proj");
    mlp.weights.back().is_never_quantised = true;
    add_vector(mlp, "router.factors", experts, prefix + "router.per_expert_scale");
    add_vector(mlp, "experts_norm", hidden, prefix + "pre_feedforward_layernorm_2.weight");
    add_experts(mlp, "gate", width, hidden, "gate_up_proj", 0, 2 * width);
    add_experts(mlp, "up", width, hidden, "gate_up_proj", width, 2 * width);
    add_experts(mlp, "down", hidden, width, "down_proj", 0, hidden);
    add_vector(mlp, "experts_post_norm", hidden, prefix + "post_feedforward_layernorm_2.weight");
    add_vector(mlp, "dense_post_norm", hidden, prefix + "post_feedforward_layernorm_1.weight");
  }

  void list_mlp(int64_t index, const std::string& prefix) {
    const int64_t hidden = shape_.hidden_size;
    const int64_t inner = layers_[static_cast<size_t>(index)].intermediate_size;
    SublayerShape mlp{SublayerKind::kMlp, index, {}};
    add_vector(mlp, "norm", hidden, prefix + "pre_feedforward_layernorm.weight");
    add_matrix(mlp, "gate", inner, hidden, prefix + "mlp.gate_proj");
    add_matrix(mlp, "up", inner, hidden, prefix + "mlp.up_proj");
    add_matrix(mlp, "down", hidden, inner, prefix + "mlp.down_proj");
    add_vector(mlp, "post_norm", hidden, prefix + "post_feedforward_layernorm.weight");
    if (token_columns_ > 0) {
      add_matrix(mlp, "layer_gate", token_columns_, hidden, prefix + "per_layer_input_gate");
      add_matrix(mlp, "layer_out", hidden, token_columns_, prefix + "per_layer_projection");
      add_vector(mlp, "layer_post_norm", hidden, prefix + "post_per_layer_input_norm.weight");
    }
    if (mixture_) list_experts(mlp, prefix);
    add_vector(mlp, "scalar", 1, prefix + "layer_scalar");
    shape_.sublayers.push_back(std::move(mlp));
  }

  void list_weights(const ModelConfig& config) {
    const ModelShape& s = shape_;
    SublayerShape embed{SublayerKind::kEmbed, -1, {}};
    const WeightShape tokens =
        named(table("tokens", s.vocab_size, s.hidden_size, {}), "embed_tokens.weight");
    embed.weights.push_back(tokens);
    if (token_columns_ > 0) {
      embed.weights.push_back(named(table("layer_tokens", token_rows_, s.carried_columns, {}),
                                    "embed_tokens_per_layer.weight"));
      add_matrix(embed, "layer_inputs", s.carried_columns, s.hidden_size,
                 "per_layer_model_projection");
      add_vector(embed, "layer_norm", token_columns_, "per_layer_projection_norm.weight");
    }
    shape_.sublayers.push_back(std::move(embed));
    for (int64_t layer = 0; layer < s.num_layers; ++layer) {
      const std::string prefix = fmt::format("layers.{}.", layer);
      list_attention(layer, prefix);
      list_mlp(layer, prefix);
    }
    SublayerShape head{SublayerKind::kHead, -1, {}};
    add_vector(head, "norm", s.hidden_size, "norm.weight");
    WeightShape logits = matrix("logits", s.vocab_size, s.hidden_size,
                                {"lm_head.weight", "language_model.lm_head.weight"});
    logits.gguf.name = "output.weight";
    logits.shares_table = config.boolean_or("tie_word_embeddings", true);
    if (logits.shares_table) {
      logits.names = tokens.names;
      logits.gguf = tokens.gguf;
    }
    head.weights.push_back(std::move(logits));
    shape_.sublayers.push_back(std::move(head));
  }

  std::vector<Gemma4Layer> layers_;
  std::optional<Mixture> mixture_;
  Rope window_rope_, full_rope_;
  int64_t window_ = 0;
  int64_t token_columns_ = 0;  // of a token's row for one layer; 0: it has none
  int64_t token_rows_ = 0;
  bool has_bias_ = false;
  Activation activation_ = Activation::kGeluTanh;
  float logit_cap_ = 0;
  float eps_ = 1e-6f;
};

std::unique_ptr<FamilyModel> make_gemma4(const ModelConfig& config) {
  return std::make_unique<Gemma4>(config);
}

constexpr DecoderKind kGemma4{"Gemma4ForCausalLM", "gemma4_text", 2, 1};

KnownModel preset(const DecoderSizes& sizes, int period, const nlohmann::ordered_json& own) {
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (int layer = 1; layer <= sizes.layers; ++layer)
    types.push_back(layer % period == 0 ? "full_attention" : "sliding_attention");
  nlohmann::ordered_json changes{
      {"hidden_act", nullptr},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"rope_theta", nullptr},
      {"layer_types", types},
      {"global_head_dim", 512},
      {"final_logit_softcapping", 30.0},
      {"rope_parameters",
       {{"full_attention",
         {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}};
  changes.merge_patch(own);
  return decoder_presets({&sizes, 1}, kGemma4, changes).front();
}

std::vector<KnownModel> gemma4_presets() {
  constexpr DecoderSizes kE2b{"gemma-4-e2b", 35,     1536,   6144, 8,    1,
                              256,           262144, 131072, 1e6,  1e-6, true};
  constexpr DecoderSizes kE4b{"gemma-4-e4b", 42,     2560,   10240, 8,    2,
                              256,           262144, 131072, 1e6,   1e-6, true};
  constexpr DecoderSizes k31b{"gemma-4-31b", 60,     5376,   21504, 32,   16,
                              256,           262144, 262144, 1e6,   1e-6, true};
  constexpr DecoderSizes k26b{
      "gemma-4-26b-a4b", 30, 2816, 2112, 16, 8, 256, 262144, 262144, 1e6, 1e-6, true};
  return {preset(kE2b, 5,
                 {{"sliding_window", 512},
                  {"num_kv_shared_layers", 20},
                  {"use_double_wide_mlp", true},
                  {"hidden_size_per_layer_input", 256}}),
          preset(kE4b, 6,
                 {{"sliding_window", 512},
                  {"num_kv_shared_layers", 18},
                  {"hidden_size_per_layer_input", 256}}),
          preset(k31b, 6,
                 {{"sliding_window", 1024},
                  {"attention_k_eq_v", true},
                  {"num_global_key_value_heads", 4},
                  {"hidden_size_per_layer_input", 0}}),
          preset(k26b, 6,
                 {{"sliding_window", 1024},
                  {"attention_k_eq_v", true},
                  {"num_global_key_value_heads", 2},
                  {"hidden_size_per_layer_input", 0},
                  {"enable_moe_block", true},
                  {"num_experts", 128},
                  {"top_k_experts", 8},
                  {"moe_intermediate_size", 704}})};
}

}  // namespace

Family gemma4_family() {
  return {"gemma4_text",
          make_gemma4,
          gemma4_presets,
          {"gemma4", gemma4_of_gguf},
          {"gemma4_unified_text"}};
}

}  // namespace sluice
