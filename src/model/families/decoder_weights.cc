#include "src/model/families/decoder_weights.h"

#include <fmt/format.h>

#include "src/base/error.h"
#include "src/model/families/decoder_names.h"

namespace sluice {

namespace {

class WeightLister {
 public:
  WeightLister(const DecoderTraits& traits, ModelShape& shape) : traits_(traits), shape_(shape) {}

  void list(bool is_tied) {
    const ModelShape& s = shape_;
    const DecoderNames& names = traits_.names;
    SublayerShape embed{SublayerKind::kEmbed, -1, {}};
    add(embed, table("tokens", s.vocab_size, s.hidden_size, {}), names.tokens, ".weight");
    if (traits_.has_positions)
      add(embed, table("positions", s.max_positions, s.hidden_size, {}), names.positions,
          ".weight");
    if (names.embed_norm.name) add_norm(embed, "norm", s.hidden_size, names.embed_norm);
    const WeightShape tokens = embed.weights.front();
    shape_.sublayers.push_back(std::move(embed));
    for (int64_t layer = 0; layer < s.num_layers; ++layer) list_layer(layer);
    SublayerShape head{SublayerKind::kHead, -1, {}};
    add_norm(head, "norm", s.hidden_size, names.norm);
    WeightShape logits =
        matrix("logits", s.vocab_size, s.hidden_size, suffixed(names.head, ".weight"));
    logits.gguf.name = "output.weight";
    logits.shares_table = is_tied;
    if (is_tied) {
      logits.names = tokens.names;
      logits.gguf = tokens.gguf;
    }
    head.weights.push_back(std::move(logits));
    if (traits_.has_head_bias) {
      head.weights.push_back(vector("logits.bias", s.vocab_size, suffixed(names.head, ".bias")));
      head.weights.back().gguf.name = "output.bias";
    }
    shape_.sublayers.push_back(std::move(head));
  }

 private:
  static std::vector<std::string> suffixed(std::vector<std::string> names, const char* end) {
    for (std::string& name : names) name += end;
    return names;
  }
  int64_t q_cols() const { return shape_.num_heads * shape_.head_dim; }
  int64_t kv_cols() const { return shape_.num_kv_heads * shape_.head_dim; }

  std::vector<std::string> names_of(const SublayerShape& sublayer, const TensorName& tensor,
                                    const char* end) const {
    SLUICE_ASSERT(tensor.name, "a family names what it has");
    const int64_t layer = sublayer.layer_index;
    const std::string within =
        layer < 0 ? std::string() : fmt::format("{}.{}.", traits_.names.layers, layer);
    return prefixed(traits_.names.prefixes, within + tensor.name + end);
  }

  WeightShape& add(SublayerShape& sublayer, WeightShape weight, const TensorName& tensor,
                   const char* end) const {
    const int64_t layer = sublayer.layer_index;
    weight.names = names_of(sublayer, tensor, end);
    if (tensor.gguf)
      weight.gguf.name =
          fmt::format("{}{}{}", layer < 0 ? "" : fmt::format("blk.{}.", layer), tensor.gguf, end);
    return sublayer.weights.emplace_back(std::move(weight));
  }

  void add_norm(SublayerShape& sublayer, const std::string& role, int64_t size,
                const TensorName& tensor) const {
    add(sublayer, vector(role, size, {}), tensor, ".weight").added = traits_.norm_added;
    if (traits_.has_norm_bias) add(sublayer, vector(role + ".bias", size, {}), tensor, ".bias");
  }

  // `paired_heads`: of q and k, whose rows GGUF files may have in pairs.
  void add_linear(SublayerShape& sublayer, const std::string& role, int64_t rows, int64_t cols,
                  const TensorName& tensor, bool has_bias, int64_t paired_heads = 0) const {
    if (!traits_.gguf_pairs_rows) paired_heads = 0;
    WeightShape& added = add(sublayer, matrix(role, rows, cols, {}), tensor, ".weight");
    added.gguf.paired_heads = paired_heads;
    added.is_transposed = traits_.is_transposed;
    if (has_bias)
      add(sublayer, vector(role + ".bias", rows, {}), tensor, ".bias").gguf.paired_heads =
          paired_heads;
  }

  // Weights whose rows lie one below the other in one tensor of the layer.
  void fuse(SublayerShape& sublayer, const TensorName& tensor,
            std::initializer_list<std::string_view> roles) const {
    for (WeightShape* matrix : join_rows(sublayer, roles))
      matrix->fused.tensors = names_of(sublayer, tensor, ".weight");
  }

  // A gain a head, each a tensor.
  void add_head_norms(SublayerShape& sublayer, const char* role, const TensorName& tensor,
                      int64_t heads) const {
    for (int64_t head = 0; head < heads; ++head) {
      const std::string name = fmt::format("{}.{}", tensor.name, head);
      add(sublayer, vector(fmt::format("{}.{}", role, head), shape_.head_dim, {}),
          {name.c_str(), nullptr}, ".weight");
    }
  }

  void add_attention(SublayerShape& sublayer) const {
    const ModelShape& s = shape_;
    const DecoderNames& names = traits_.names;
    const bool has_bias = traits_.has_qkv_bias;
    if (traits_.place != NormPlace::kBehind)
      add_norm(sublayer, "norm", s.hidden_size, names.attention_norm);
    if (traits_.fused == Fused::kWhole || traits_.fused == Fused::kGroups) {
      add_linear(sublayer, "qkv", q_cols() + 2 * kv_cols(), s.hidden_size, names.qkv, has_bias);
    } else {
      add_linear(sublayer, "q", (traits_.has_output_gate ? 2 : 1) * q_cols(), s.hidden_size,
                 names.q, has_bias, s.num_heads);
      add_linear(sublayer, "k", kv_cols(), s.hidden_size, names.k, has_bias, s.num_kv_heads);
      add_linear(sublayer, "v", kv_cols(), s.hidden_size, names.v, has_bias);
      join_rows(sublayer, {"q", "k", "v"});
    }
    add_linear(sublayer, "o", s.hidden_size, q_cols(), names.o, traits_.has_o_bias);
    if (traits_.has_sinks) add(sublayer, vector("sinks", s.num_heads, {}), names.sinks, "");
    if (traits_.qk_norm == QkNorm::kEachHead || traits_.qk_norm == QkNorm::kWholeWidth) {
      const bool is_whole = traits_.qk_norm == QkNorm::kWholeWidth;
      add_norm(sublayer, "q_norm", is_whole ? q_cols() : s.head_dim, names.q_norm);
      add_norm(sublayer, "k_norm", is_whole ? kv_cols() : s.head_dim, names.k_norm);
    }
    if (traits_.qk_norm == QkNorm::kOwnTensors) {
      add_head_norms(sublayer, "q_norm", names.q_norm, s.num_heads);
      add_head_norms(sublayer, "k_norm", names.k_norm, s.num_kv_heads);
    }
    if (traits_.qk_norm == QkNorm::kOwnGains) {
      add(sublayer, vector("q_norm", q_cols(), {}), names.q_norm, ".weight").tensor_shape = {
          s.num_heads, s.head_dim};
      add(sublayer, vector("k_norm", kv_cols(), {}), names.k_norm, ".weight").tensor_shape = {
          s.num_kv_heads, s.head_dim};
    }
    if (traits_.place != NormPlace::kBefore)
      add_norm(sublayer, "post_norm", s.hidden_size, names.attention_post_norm);
    if (traits_.fused == Fused::kRows) fuse(sublayer, names.qkv, {"q", "k", "v"});
  }

  void add_latent_attention(SublayerShape& sublayer) const {
    const LatentAttention& latent = *traits_.latent;
    const DecoderNames& names = traits_.names;
    const int64_t hidden = shape_.hidden_size, heads = shape_.num_heads;
    add_norm(sublayer, "norm", hidden, names.attention_norm);
    if (latent.query_rank > 0) {
      add_linear(sublayer, "q_a", latent.query_rank, hidden, names.q_a, false);
      add_norm(sublayer, "q_a_norm", latent.query_rank, names.q_a_norm);
      add_linear(sublayer, "q_b", q_cols(), latent.query_rank, names.q_b, false);
    } else {
      add_linear(sublayer, "q", q_cols(), hidden, names.q, false);
    }
    add_linear(sublayer, "latent", latent.rank, hidden, names.latent, false);
    add_linear(sublayer, "turned", latent.turned_width, hidden, names.turned, false);
    add_norm(sublayer, "latent_norm", latent.rank, names.latent_norm);
    add(sublayer, matrix("kv_b", heads * (latent.key_width + latent.value_width), latent.rank, {}),
        names.kv_b, ".weight")
        .is_by_head = true;
    add_linear(sublayer, "o", hidden, heads * latent.value_width, names.o, false);
    fuse(sublayer, names.kv_a, {"latent", "turned"});
  }

  void add_delta_net(SublayerShape& sublayer) const {
    const RecurrentShape& shape = traits_.recurrent;
    const DecoderNames& names = traits_.names;
    const int64_t hidden = shape_.hidden_size, heads = shape.value_heads;
    add_norm(sublayer, "norm", hidden, names.attention_norm);
    if (traits_.has_grouped_delta) {
      add_linear(sublayer, "qkvz", shape.columns() + shape.value_columns(), hidden,
                 names.delta_qkvz, false);
    } else {
      add_linear(sublayer, "qkv", shape.columns(), hidden, names.delta_qkv, false);
      add_linear(sublayer, "z", shape.value_columns(), hidden, names.delta_z, false);
    }
    if (traits_.has_grouped_gates) {
      add_linear(sublayer, "ba", 2 * heads, hidden, names.delta_ba, false);
    } else {
      add_linear(sublayer, "b", heads, hidden, names.delta_b, false);
      add_linear(sublayer, "a", heads, hidden, names.delta_a, false);
    }
    add(sublayer, vector("conv", shape.columns() * shape.taps, {}), names.delta_conv, ".weight")
        .tensor_shape = {shape.columns(), 1, shape.taps};
    add(sublayer, vector("a_log", heads, {}), names.delta_a_log, "");
    add(sublayer, vector("a.bias", heads, {}), names.delta_bias, "");
    add(sublayer, vector("delta_norm", shape.value_width, {}), names.delta_norm, ".weight");
    add_linear(sublayer, "o", hidden, shape.value_columns(), names.delta_out, false);
  }

  void add_state_space(SublayerShape& sublayer) const {
    const RecurrentShape& shape = traits_.recurrent;
    const DecoderNames& names = traits_.names;
    const int64_t hidden = shape_.hidden_size, heads = shape.value_heads;
    const int64_t values = shape.value_columns();
    add_norm(sublayer, "norm", hidden, names.attention_norm);
    add_linear(sublayer, "z", values, hidden, names.space_z, false);
    add_linear(sublayer, "xbc", shape.columns(), hidden, names.space_xbc, false);
    add_linear(sublayer, "dt", heads, hidden, names.space_dt, false);
    fuse(sublayer, names.space_in, {"z", "xbc", "dt"});
    add(sublayer, vector("conv", shape.columns() * shape.taps, {}), names.space_conv, ".weight")
        .tensor_shape = {shape.columns(), 1, shape.taps};
    if (traits_.space.has_conv_bias)
      add(sublayer, vector("conv.bias", shape.columns(), {}), names.space_conv, ".bias");
    add(sublayer, vector("a_log", heads, {}), names.space_a_log, "");
    add(sublayer, vector("dt.bias", heads, {}), names.space_bias, "");
    add(sublayer, vector("skip", heads, {}), names.space_skip, "");
    add(sublayer, vector("space_norm", values, {}), names.space_norm, ".weight");
    add_linear(sublayer, "o", hidden, values, names.space_out, false);
  }

  void add_mlp(SublayerShape& sublayer) const {
    const ModelShape& s = shape_;
    const DecoderNames& names = traits_.names;
    const bool has_bias = traits_.has_mlp_bias;
    if (traits_.residual == Residual::kParallelNorms)
      add_norm(sublayer, "mlp_norm", s.hidden_size, names.mlp_norm);
    else if (traits_.residual == Residual::kSerial && traits_.place != NormPlace::kBehind)
      add_norm(sublayer, "norm", s.hidden_size, names.mlp_norm);
    if (traits_.is_gated)
      add_linear(sublayer, "gate", s.intermediate_size, s.hidden_size, names.gate, has_bias);
    add_linear(sublayer, "up", s.intermediate_size, s.hidden_size, names.up, has_bias);
    add_linear(sublayer, "down", s.hidden_size, s.intermediate_size, names.down, has_bias);
    if (traits_.place != NormPlace::kBefore)
      add_norm(sublayer, "post_norm", s.hidden_size, names.mlp_post_norm);
    if (traits_.fused == Fused::kRows && traits_.is_gated)
      fuse(sublayer, names.gate_up, {"gate", "up"});
  }

  // Of every expert the same matrix.
  WeightShape& add_experts(SublayerShape& sublayer, const std::string& role, int64_t rows,
                           int64_t cols, const TensorName& tensor) const {
    const int64_t experts = traits_.mixture->router.experts;
    WeightShape& added = add(sublayer, matrix(role, experts * rows, cols, {}), tensor, ".weight");
    added.experts = experts;
    added.quantised = traits_.mixture->stored;
    return added;
  }

  // A stack of all experts' rows: of each `tensor_rows`, some of which are the weight's.
  void stack(SublayerShape& sublayer, const char* role, const TensorName& tensor, int64_t first_row,
             int64_t tensor_rows) const {
    const char* const end = traits_.mixture->has_whole_names ? "" : ".weight";
    for (WeightShape& weight : sublayer.weights)
      if (weight.role == role)
        weight.fused = {names_of(sublayer, tensor, end), first_row, tensor_rows};
  }

  // Stacks whose name is whole, [experts, inputs, outputs]; the `first_row`th row and every
  // `step`th are the weight's.
  void turned_stack(SublayerShape& sublayer, const char* role, const TensorName& tensor,
                    int64_t first_row, int64_t tensor_rows, int64_t step) const {
    for (WeightShape& weight : sublayer.weights)
      if (weight.role == role)
        weight.fused = {names_of(sublayer, tensor, ""), first_row, tensor_rows, step, true};
  }

  void add_stacks(SublayerShape& sublayer) const {
    const Mixture& of = *traits_.mixture;
    const DecoderNames& names = traits_.names;
    if (!names.gate_up_stack.name) return;
    const int64_t hidden = shape_.hidden_size;
    if (of.has_turned_stacks) {
      turned_stack(sublayer, "experts.gate", names.gate_up_stack, 0, 2 * of.width, 2);
      turned_stack(sublayer, "experts.up", names.gate_up_stack, 1, 2 * of.width, 2);
      turned_stack(sublayer, "experts.down", names.down_stack, 0, hidden, 1);
    } else if (of.has_turned_halves) {
      turned_stack(sublayer, "experts.gate", names.gate_up_stack, 0, 2 * of.width, 1);
      turned_stack(sublayer, "experts.up", names.gate_up_stack, of.width, 2 * of.width, 1);
      turned_stack(sublayer, "experts.down", names.down_stack, 0, hidden, 1);
    } else {
      stack(sublayer, "experts.gate", names.gate_up_stack, 0, 2 * of.width);
      stack(sublayer, "experts.up", names.gate_up_stack, of.width, 2 * of.width);
      stack(sublayer, "experts.down", names.down_stack, 0, hidden);
    }
  }

  // Of all experts, gate's and up's elements by turns.
  void add_expert_biases(SublayerShape& sublayer) const {
    const int64_t experts = traits_.mixture->router.experts, width = traits_.mixture->width;
    add(sublayer, vector("experts.gate_up.bias", experts * 2 * width, {}),
        traits_.names.gate_up_bias, "")
        .tensor_shape = {experts, 2 * width};
    add(sublayer, vector("experts.down.bias", experts * shape_.hidden_size, {}),
        traits_.names.down_bias, "")
        .tensor_shape = {experts, shape_.hidden_size};
  }

  void add_mixture(SublayerShape& sublayer) const {
    const Mixture& of = *traits_.mixture;
    const DecoderNames& names = traits_.names;
    const int64_t hidden = shape_.hidden_size;
    if (traits_.place != NormPlace::kBehind) add_norm(sublayer, "norm", hidden, names.mlp_norm);
    add(sublayer, matrix("router", of.router.experts, hidden, {}), names.router, ".weight")
        .is_never_quantised = true;
    SLUICE_ASSERT(!of.is_corrected || !of.has_router_bias, "a router has one vector");
    if (of.has_router_bias)
      add(sublayer, vector("router.bias", of.router.experts, {}), names.router, ".bias");
    if (of.is_corrected)
      add(sublayer, vector("router.bias", of.router.experts, {}), names.correction, "")
          .tensor_shape = {1, of.router.experts};  // of some
    add_experts(sublayer, "experts.gate", of.width, hidden, names.expert_gate);
    add_experts(sublayer, "experts.up", of.width, hidden, names.expert_up);
    add_experts(sublayer, "experts.down", hidden, of.width, names.expert_down);
    add_stacks(sublayer);
    if (of.has_expert_bias) add_expert_biases(sublayer);
    if (of.shared_width > 0) {
      add_linear(sublayer, "shared.gate", of.shared_width, hidden, names.shared_gate, false);
      add_linear(sublayer, "shared.up", of.shared_width, hidden, names.shared_up, false);
      add_linear(sublayer, "shared.down", hidden, of.shared_width, names.shared_down, false);
      if (names.shared_gate_up.name)
        fuse(sublayer, names.shared_gate_up, {"shared.gate", "shared.up"});
      if (of.has_shared_gate)
        add(sublayer, matrix("shared.router", 1, hidden, {}), names.shared_router, ".weight")
            .is_never_quantised = true;
    }
    if (traits_.place != NormPlace::kBefore)
      add_norm(sublayer, "post_norm", hidden, names.mlp_post_norm);
  }

  void list_layer(int64_t layer) {
    SublayerShape attention{SublayerKind::kAttention, layer, {}};
    if (!traits_.layers[static_cast<size_t>(layer)].is_recurrent)
      traits_.latent ? add_latent_attention(attention) : add_attention(attention);
    else if (traits_.recurrent.is_delta())
      add_delta_net(attention);
    else
      add_state_space(attention);
    if (!traits_.has_mlp) {
      shape_.sublayers.push_back(std::move(attention));
      return;
    }
    if (traits_.residual != Residual::kSerial) {
      add_mlp(attention);
      shape_.sublayers.push_back(std::move(attention));
      return;
    }
    shape_.sublayers.push_back(std::move(attention));
    SublayerShape mlp{SublayerKind::kMlp, layer, {}};
    if (is_mixture(traits_, layer))
      add_mixture(mlp);
    else
      add_mlp(mlp);
    shape_.sublayers.push_back(std::move(mlp));
  }

  const DecoderTraits& traits_;
  ModelShape& shape_;
};

}  // namespace

void list_decoder_weights(const DecoderTraits& traits, bool is_tied, ModelShape& shape) {
  WeightLister(traits, shape).list(is_tied);
}

}  // namespace sluice
