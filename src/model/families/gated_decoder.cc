#include "src/model/families/gated_decoder.h"

#include <fmt/format.h>

#include "src/model/families/decoder_names.h"
#include "src/model/families/rope.h"

namespace sluice {

namespace {

constexpr int64_t kMostPositions = int64_t{1} << 31;

class GatedDecoder final : public FamilyModel {
 public:
  GatedDecoder(const ModelConfig& config, const DecoderTraits& traits) : traits_(traits) {
    read_shape(config);
    frequencies_ = rope_frequencies(config, shape_.head_dim);
    const double eps = config.number_or("rms_norm_eps", 1e-6);
    if (!(eps >= 0 && eps < 1))
      config.refuse(fmt::format("\"rms_norm_eps\" is {}, outside 0..1", eps),
                    "mend the config.json");
    eps_ = static_cast<float>(eps);
    list_weights(config.boolean_or("tie_word_embeddings", false));
  }

 private:
  NormSpec norm(std::string_view gain = "norm") const { return {NormKind::kRms, gain, {}, eps_}; }
  int64_t q_cols() const { return shape_.num_heads * shape_.head_dim; }
  int64_t kv_cols() const { return shape_.num_kv_heads * shape_.head_dim; }

  void embed(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    layer.gather_tokens("tokens", x);
    layer.set_hidden(x);
  }

  void attention(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    // Heads with norms of their own are rows of a slot; others leave q, k and v side by side.
    View q, k, v;
    if (traits_.has_head_norms) {
      q = layer.workspace(q_cols());
      k = layer.workspace(kv_cols());
      v = layer.workspace(kv_cols());
    } else {
      const View qkv = layer.workspace(q_cols() + 2 * kv_cols());
      q = qkv.columns(0, q_cols());
      k = qkv.columns(q_cols(), kv_cols());
      v = qkv.columns(q_cols() + kv_cols(), kv_cols());
    }
    layer.norm_hidden(norm(), x);
    layer.linear("q", traits_.has_qkv_bias ? "q.bias" : "", x, q);
    layer.linear("k", traits_.has_qkv_bias ? "k.bias" : "", x, k);
    layer.linear("v", traits_.has_qkv_bias ? "v.bias" : "", x, v);
    if (traits_.has_head_norms) {
      layer.norm_heads(norm("q_norm"), q, shape_.num_heads);
      layer.norm_heads(norm("k_norm"), k, shape_.num_kv_heads);
    }
    layer.rope(q, shape_.num_heads, frequencies_, 1.0f);
    layer.rope(k, shape_.num_kv_heads, frequencies_, 1.0f);
    const View attended = layer.workspace(q_cols());
    layer.attend(q, k, v, attended);
    layer.linear("o", traits_.has_o_bias ? "o.bias" : "", attended, x);
    layer.add_to_hidden(x);
  }

  void mlp(LayerBuilder& layer) const override {
    const bool has_bias = traits_.has_mlp_bias;
    const View x = layer.workspace(shape_.hidden_size);
    const View gate = layer.workspace(shape_.intermediate_size);
    const View up = layer.workspace(shape_.intermediate_size);
    layer.norm_hidden(norm(), x);
    layer.linear("gate", has_bias ? "gate.bias" : "", x, gate);
    layer.linear("up", has_bias ? "up.bias" : "", x, up);
    layer.silu_mul(gate, up, gate);
    layer.linear("down", has_bias ? "down.bias" : "", gate, x);
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
    s.family = traits_.family;
    s.weight_dtype = config_dtype(config);
    s.hidden_size = config.integer("hidden_size", 1, kWide);
    s.intermediate_size = config.integer("intermediate_size", 1, 8 * kWide);
    s.num_layers = config.integer("num_hidden_layers", 1, 4096);
    s.num_heads = config.integer("num_attention_heads", 1, 4096);
    s.num_kv_heads = config.integer_or("num_key_value_heads", s.num_heads, 1, s.num_heads);
    s.vocab_size = config.integer("vocab_size", 1, 1 << 24);
    s.max_positions = config.integer_or("max_position_embeddings", 2048, 1, kMostPositions);
    const bool is_derived = !config.has("head_dim") && traits_.head_dim == 0;
    if (is_derived && s.hidden_size % s.num_heads != 0)
      config.refuse(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                                s.hidden_size, s.num_heads),
                    "mend the config.json");
    s.head_dim = config.integer_or(
        "head_dim", traits_.head_dim > 0 ? traits_.head_dim : s.hidden_size / s.num_heads, 2, 1024);
    if (s.head_dim % 2 != 0)
      config.refuse(fmt::format("head_dim {} is odd", s.head_dim), "rotary positions need pairs");
    if (s.num_heads % s.num_kv_heads != 0)
      config.refuse(fmt::format("{} attention heads can't share {} KV heads evenly", s.num_heads,
                                s.num_kv_heads),
                    "mend the config.json");
    const std::string activation = config.text_or("hidden_act", "silu");
    if (activation != "silu")
      config.refuse(
          fmt::format("hidden_act \"{}\" is not supported for {}", activation, traits_.family),
          "sluice knows silu here");
  }

  // A tensor of a layer: "layers.3.", then its name, with and without "model."; in GGUF files
  // "blk.3." and a name of theirs.
  struct LayerTensor {
    const char* name;
    const char* gguf_name;
  };
  static void set_names(WeightShape& weight, int64_t layer, const LayerTensor& tensor,
                        const char* end) {
    const std::string name = fmt::format("layers.{}.{}{}", layer, tensor.name, end);
    weight.names = {"model." + name, name};
    weight.gguf.name = fmt::format("blk.{}.{}{}", layer, tensor.gguf_name, end);
  }

  static void add_gain(SublayerShape& sublayer, const char* role, int64_t size,
                       const LayerTensor& tensor) {
    set_names(sublayer.weights.emplace_back(vector(role, size, {})), sublayer.layer_index, tensor,
              ".weight");
  }

  // `paired_heads`: of q and k, whose rows GGUF files may have in pairs.
  void add_linear(SublayerShape& sublayer, const std::string& role, int64_t rows, int64_t cols,
                  const LayerTensor& tensor, bool has_bias, int64_t paired_heads = 0) const {
    std::vector<WeightShape> added{matrix(role, rows, cols, {})};
    set_names(added.front(), sublayer.layer_index, tensor, ".weight");
    if (has_bias)
      set_names(added.emplace_back(vector(role + ".bias", rows, {})), sublayer.layer_index, tensor,
                ".bias");
    for (WeightShape& weight : added) {
      if (traits_.gguf_pairs_rows) weight.gguf.paired_heads = paired_heads;
      sublayer.weights.push_back(std::move(weight));
    }
  }

  // Weights whose rows lie one below the other in one tensor of the layer.
  static void fuse(SublayerShape& sublayer, const char* name,
                   std::initializer_list<std::string_view> roles) {
    std::vector<WeightShape*> parts;
    int64_t rows = 0;
    for (const std::string_view role : roles)
      for (WeightShape& weight : sublayer.weights)
        if (weight.role == role) {
          weight.fused = {fmt::format("model.layers.{}.{}.weight", sublayer.layer_index, name),
                          rows, 0};
          rows += weight.rows;
          parts.push_back(&weight);
        }
    for (WeightShape* part : parts) part->fused.tensor_rows = rows;
  }

  void list_layer(int64_t layer) {
    const ModelShape& s = shape_;
    SublayerShape attention{SublayerKind::kAttention, layer, {}};
    add_gain(attention, "norm", s.hidden_size, {"input_layernorm", "attn_norm"});
    const bool has_bias = traits_.has_qkv_bias;
    add_linear(attention, "q", q_cols(), s.hidden_size, {"self_attn.q_proj", "attn_q"}, has_bias,
               s.num_heads);
    add_linear(attention, "k", kv_cols(), s.hidden_size, {"self_attn.k_proj", "attn_k"}, has_bias,
               s.num_kv_heads);
    add_linear(attention, "v", kv_cols(), s.hidden_size, {"self_attn.v_proj", "attn_v"}, has_bias);
    add_linear(attention, "o", s.hidden_size, q_cols(), {"self_attn.o_proj", "attn_output"},
               traits_.has_o_bias);
    if (traits_.has_head_norms) {
      add_gain(attention, "q_norm", s.head_dim, {"self_attn.q_norm", "attn_q_norm"});
      add_gain(attention, "k_norm", s.head_dim, {"self_attn.k_norm", "attn_k_norm"});
    }
    if (traits_.is_fused) fuse(attention, "self_attn.qkv_proj", {"q", "k", "v"});
    shape_.sublayers.push_back(std::move(attention));
    SublayerShape mlp{SublayerKind::kMlp, layer, {}};
    add_gain(mlp, "norm", s.hidden_size, {"post_attention_layernorm", "ffn_norm"});
    add_linear(mlp, "gate", s.intermediate_size, s.hidden_size, {"mlp.gate_proj", "ffn_gate"},
               traits_.has_mlp_bias);
    add_linear(mlp, "up", s.intermediate_size, s.hidden_size, {"mlp.up_proj", "ffn_up"},
               traits_.has_mlp_bias);
    add_linear(mlp, "down", s.hidden_size, s.intermediate_size, {"mlp.down_proj", "ffn_down"},
               traits_.has_mlp_bias);
    if (traits_.is_fused) fuse(mlp, "mlp.gate_up_proj", {"gate", "up"});
    shape_.sublayers.push_back(std::move(mlp));
  }

  void list_weights(bool is_tied) {
    const ModelShape& s = shape_;
    const auto named = [](WeightShape weight, const char* gguf_name) {
      weight.gguf.name = gguf_name;
      return weight;
    };
    const WeightShape tokens = named(table("tokens", s.vocab_size, s.hidden_size,
                                           {"model.embed_tokens.weight", "embed_tokens.weight"}),
                                     "token_embd.weight");
    shape_.sublayers.push_back({SublayerKind::kEmbed, -1, {tokens}});
    for (int64_t layer = 0; layer < s.num_layers; ++layer) list_layer(layer);
    SublayerShape head{SublayerKind::kHead, -1, {}};
    head.weights.push_back(named(
        vector("norm", s.hidden_size, {"model.norm.weight", "norm.weight"}), "output_norm.weight"));
    WeightShape logits =
        named(matrix("logits", s.vocab_size, s.hidden_size, {"lm_head.weight"}), "output.weight");
    logits.shares_table = is_tied;
    if (is_tied) {
      logits.names = tokens.names;
      logits.gguf = tokens.gguf;
    }
    head.weights.push_back(std::move(logits));
    shape_.sublayers.push_back(std::move(head));
    set_windows();
  }

  // One as wide as the longest sequence is none.
  void set_windows() {
    std::vector<LayerState> states;
    const std::vector<int64_t>& windows = traits_.windows;
    for (size_t layer = 0; layer < static_cast<size_t>(shape_.num_layers); ++layer) {
      const int64_t window = windows.empty()       ? 0
                             : windows.size() == 1 ? windows.front()
                                                   : windows.at(layer);
      states.push_back({.heads = shape_.num_kv_heads,
                        .width = shape_.head_dim,
                        .window = window < shape_.max_positions ? window : 0});
    }
    shape_.set_states(states);
  }

  DecoderTraits traits_;
  std::vector<float> frequencies_;
  float eps_ = 1e-6f;
};

}  // namespace

std::unique_ptr<FamilyModel> make_gated_decoder(const ModelConfig& config,
                                                const DecoderTraits& traits) {
  return std::make_unique<GatedDecoder>(config, traits);
}

int64_t read_sliding_window(const ModelConfig& config, int64_t fallback) {
  if (!config.has("sliding_window")) return config.is_null("sliding_window") ? 0 : fallback;
  return config.integer("sliding_window", 1, kMostPositions);
}

std::vector<int64_t> read_layer_windows(const ModelConfig& config) {
  if (!config.boolean_or("use_sliding_window", false)) return {};
  const int64_t window = read_sliding_window(config, 4096);
  const int64_t layers = config.integer("num_hidden_layers", 1, 4096);
  const int64_t first = config.integer_or("max_window_layers", 28, 0, 4096);
  const std::vector<std::string> types = config.texts("layer_types");
  if (!types.empty() && std::ssize(types) != layers)
    config.refuse(fmt::format("\"layer_types\" has {} entries for {} layers", types.size(), layers),
                  "mend the config.json");
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string type = !types.empty()   ? types[static_cast<size_t>(layer)]
                             : layer >= first ? "sliding_attention"
                                              : "full_attention";
    if (type != "sliding_attention" && type != "full_attention")
      config.refuse(fmt::format("layer {} has type \"{}\"", layer, type),
                    "sluice knows sliding_attention and full_attention here");
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  return windows;
}

}  // namespace sluice
