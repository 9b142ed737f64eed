// OPT (arXiv:2205.01068), 125M to 175B: learned positions, LayerNorm before (or, in 350M, after)
// each sublayer, ReLU, biases everywhere, and in 350M a projection between a narrow embedding and
// the hidden state.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/model/families/decoder.h"
#include "src/model/families/decoder_names.h"
#include "src/model/family.h"

namespace sluice {

namespace {

// The position table has two rows more than positions: position p uses row p + 2.
constexpr int64_t kPositionOffset = 2;
const std::vector<std::string> kPrefixes{"model.decoder.", "decoder."};

class OptModel final : public FamilyModel {
 public:
  explicit OptModel(const ModelConfig& config) {
    read_shape(config);
    list_weights(config);
  }

 private:
  NormSpec norm() const {
    return {NormKind::kLayer, has_affine_norm_ ? "norm" : "", has_affine_norm_ ? "norm.bias" : "",
            1e-5f};
  }
  std::string_view bias(std::string_view role) const {
    return has_bias_ ? role : std::string_view{};
  }

  void embed(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    const View positions = layer.workspace(shape_.hidden_size);
    if (embed_dim_ != shape_.hidden_size) {
      const View narrow = layer.workspace(embed_dim_);
      layer.gather_tokens("tokens", narrow);
      layer.linear("project_in", "", narrow, x);
    } else {
      layer.gather_tokens("tokens", x);
    }
    layer.gather_positions("positions", kPositionOffset, positions);
    layer.add(x, positions);
    layer.set_hidden(x);
  }

  void attention(LayerBuilder& layer) const override {
    const int64_t h = shape_.hidden_size;
    const View x = layer.workspace(h);
    const View qkv = layer.workspace(3 * h);
    if (norm_before_)
      layer.norm_hidden(norm(), x);
    else
      layer.read_hidden(x);
    layer.linear("q", bias("q.bias"), x, qkv.columns(0, h));
    layer.linear("k", bias("k.bias"), x, qkv.columns(h, h));
    layer.linear("v", bias("v.bias"), x, qkv.columns(2 * h, h));
    const View attended = layer.workspace(h);
    layer.attend(qkv.columns(0, h), qkv.columns(h, h), qkv.columns(2 * h, h), attended);
    layer.linear("o", bias("o.bias"), attended, x);
    layer.add_to_hidden(x);
    if (!norm_before_) layer.norm_hidden_in_place(norm());
  }

  void mlp(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    const View inner = layer.workspace(shape_.intermediate_size);
    if (norm_before_)
      layer.norm_hidden(norm(), x);
    else
      layer.read_hidden(x);
    layer.linear("fc1", bias("fc1.bias"), x, inner);
    layer.activate(activation_, inner);
    layer.linear("fc2", bias("fc2.bias"), inner, x);
    layer.add_to_hidden(x);
    if (!norm_before_) layer.norm_hidden_in_place(norm());
  }

  void head(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    layer.read_needed_hidden(x);
    if (has_final_norm_) layer.norm(norm(), x);
    if (embed_dim_ == shape_.hidden_size) return layer.logits("logits", x);
    const View narrow = layer.workspace(embed_dim_);
    layer.linear("project_out", "", x, narrow);
    layer.logits("logits", narrow);
  }

  void read_shape(const ModelConfig& config) {
    constexpr int64_t kWide = 1 << 20;
    ModelShape& s = shape_;
    s.family = "opt";
    s.weight_dtype = config_dtype(config);
    s.hidden_size = config.integer("hidden_size", 1, kWide);
    s.intermediate_size = config.integer("ffn_dim", 1, 8 * kWide);
    s.num_layers = config.integer("num_hidden_layers", 1, 4096);
    s.num_heads = s.num_kv_heads = config.integer("num_attention_heads", 1, 4096);
    if (s.hidden_size % s.num_heads != 0)
      config.refuse(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                                s.hidden_size, s.num_heads),
                    "mend the config.json");
    s.head_dim = s.hidden_size / s.num_heads;
    s.vocab_size = config.integer("vocab_size", 1, 1 << 24);
    s.max_positions = config.integer("max_position_embeddings", 1, int64_t{1} << 31);
    embed_dim_ = config.integer_or("word_embed_proj_dim", s.hidden_size, 1, kWide);
    norm_before_ = config.boolean_or("do_layer_norm_before", true);
    has_final_norm_ = norm_before_ && !config.boolean_or("_remove_final_layer_norm", false);
    has_bias_ = config.boolean_or("enable_bias", true);
    has_affine_norm_ = config.boolean_or("layer_norm_elementwise_affine", true);
    activation_ = read_activation(config, "activation_function", "relu");
  }

  void add_norm(SublayerShape& sublayer, const std::string& name) const {
    if (!has_affine_norm_) return;
    sublayer.weights.push_back(
        vector("norm", shape_.hidden_size, prefixed(kPrefixes, name + ".weight")));
    sublayer.weights.push_back(
        vector("norm.bias", shape_.hidden_size, prefixed(kPrefixes, name + ".bias")));
  }

  void add_linear(SublayerShape& sublayer, const std::string& role, int64_t rows, int64_t cols,
                  const std::string& name) const {
    sublayer.weights.push_back(matrix(role, rows, cols, prefixed(kPrefixes, name + ".weight")));
    if (has_bias_)
      sublayer.weights.push_back(vector(role + ".bias", rows, prefixed(kPrefixes, name + ".bias")));
  }

  void list_layer(int64_t layer) {
    const ModelShape& s = shape_;
    const std::string prefix = fmt::format("layers.{}.", layer);
    SublayerShape attention{SublayerKind::kAttention, layer, {}};
    add_norm(attention, prefix + "self_attn_layer_norm");
    add_linear(attention, "q", s.hidden_size, s.hidden_size, prefix + "self_attn.q_proj");
    add_linear(attention, "k", s.hidden_size, s.hidden_size, prefix + "self_attn.k_proj");
    add_linear(attention, "v", s.hidden_size, s.hidden_size, prefix + "self_attn.v_proj");
    add_linear(attention, "o", s.hidden_size, s.hidden_size, prefix + "self_attn.out_proj");
    shape_.sublayers.push_back(std::move(attention));
    SublayerShape mlp{SublayerKind::kMlp, layer, {}};
    add_norm(mlp, prefix + "final_layer_norm");
    add_linear(mlp, "fc1", s.intermediate_size, s.hidden_size, prefix + "fc1");
    add_linear(mlp, "fc2", s.hidden_size, s.intermediate_size, prefix + "fc2");
    shape_.sublayers.push_back(std::move(mlp));
  }

  void list_weights(const ModelConfig& config) {
    const ModelShape& s = shape_;
    const bool is_tied = config.boolean_or("tie_word_embeddings", true);
    const std::vector<std::string> token_names = prefixed(kPrefixes, "embed_tokens.weight");
    SublayerShape embed{
        SublayerKind::kEmbed, -1, {table("tokens", s.vocab_size, embed_dim_, token_names)}};
    embed.weights.push_back(table("positions", s.max_positions + kPositionOffset, s.hidden_size,
                                  prefixed(kPrefixes, "embed_positions.weight")));
    const bool is_projected = embed_dim_ != s.hidden_size;
    if (is_projected)
      embed.weights.push_back(matrix("project_in", s.hidden_size, embed_dim_,
                                     prefixed(kPrefixes, "project_in.weight")));
    shape_.sublayers.push_back(std::move(embed));
    for (int64_t layer = 0; layer < s.num_layers; ++layer) list_layer(layer);
    SublayerShape head{SublayerKind::kHead, -1, {}};
    if (has_final_norm_) add_norm(head, "final_layer_norm");
    if (is_projected)
      head.weights.push_back(matrix("project_out", embed_dim_, s.hidden_size,
                                    prefixed(kPrefixes, "project_out.weight")));
    WeightShape logits = matrix("logits", s.vocab_size, embed_dim_,
                                is_tied ? token_names : std::vector<std::string>{"lm_head.weight"});
    logits.shares_table = is_tied;
    head.weights.push_back(std::move(logits));
    shape_.sublayers.push_back(std::move(head));
  }

  int64_t embed_dim_ = 0;
  bool norm_before_ = true;
  bool has_final_norm_ = true;
  bool has_bias_ = true;
  bool has_affine_norm_ = true;
  Activation activation_ = Activation::kRelu;
};

std::unique_ptr<FamilyModel> make_opt(const ModelConfig& config) {
  return std::make_unique<OptModel>(config);
}

// arXiv:2205.01068 table 1; 350m is the post-norm one with narrow embeddings.
struct OptSizes {
  const char* name;
  int layers, hidden, heads, embed;
};
constexpr OptSizes kOpts[] = {{"opt-125m", 12, 768, 12, 768},    {"opt-350m", 24, 1024, 16, 512},
                              {"opt-1.3b", 24, 2048, 32, 2048},  {"opt-2.7b", 32, 2560, 32, 2560},
                              {"opt-6.7b", 32, 4096, 32, 4096},  {"opt-13b", 40, 5120, 40, 5120},
                              {"opt-30b", 48, 7168, 56, 7168},   {"opt-66b", 64, 9216, 72, 9216},
                              {"opt-175b", 96, 12288, 96, 12288}};

std::vector<KnownModel> opt_presets() {
  std::vector<KnownModel> presets;
  for (const OptSizes& row : kOpts)
    presets.push_back(
        {row.name, nlohmann::ordered_json{{"architectures", {"OPTForCausalLM"}},
                                          {"model_type", "opt"},
                                          {"hidden_size", row.hidden},
                                          {"ffn_dim", 4 * row.hidden},
                                          {"num_hidden_layers", row.layers},
                                          {"num_attention_heads", row.heads},
                                          {"word_embed_proj_dim", row.embed},
                                          {"do_layer_norm_before", row.embed == row.hidden},
                                          {"vocab_size", 50272},
                                          {"max_position_embeddings", 2048},
                                          {"activation_function", "relu"},
                                          {"bos_token_id", 2},
                                          {"eos_token_id", 2},
                                          {"pad_token_id", 1},
                                          {"torch_dtype", "float16"}}
                       .dump(2)});
  return presets;
}

}  // namespace

Family opt_family() { return {"opt", make_opt, opt_presets, {}}; }

}  // namespace sluice
