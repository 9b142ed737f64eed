#include "src/model/families/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "src/base/error.h"
#include "src/model/families/decoder_weights.h"
#include "src/model/positions.h"

namespace sluice {

namespace {

constexpr int64_t kMostPositions = int64_t{1} << 31;
constexpr int64_t kMostTimes = 64;  // that a sequence may be longer than a model was made for
constexpr float kLongestStep = std::numeric_limits<float>::infinity();

// One slope a head (arXiv:2108.12409): powers of 2^(-8 / n); where the heads are no power of two,
// those of the next lower one and then every other one of the next higher.
std::vector<float> alibi_slopes(int64_t heads) {
  int64_t whole = 1;
  while (2 * whole <= heads) whole *= 2;
  const auto power = [](double exponent) { return static_cast<float>(std::exp2(exponent)); };
  std::vector<float> slopes;
  for (int64_t i = 1; i <= whole; ++i)
    slopes.push_back(power(-8.0 * static_cast<double>(i) / static_cast<double>(whole)));
  for (int64_t i = 1; whole + (i + 1) / 2 <= heads; i += 2)
    slopes.push_back(power(-4.0 * static_cast<double>(i) / static_cast<double>(whole)));
  return slopes;
}

class Decoder final : public FamilyModel {
 public:
  Decoder(const ModelConfig& config, DecoderTraits traits) : traits_(std::move(traits)) {
    read_shape(config);
    read_positions(config);
    if (!traits_.activation)
      traits_.activation = read_activation(config, traits_.keys.activation, "silu");
    const char* const key = traits_.keys.eps;
    const double eps = config.number_or(key, traits_.eps);
    if (!(eps >= 0 && eps < 1))
      config.refuse(fmt::format("\"{}\" is {}, outside 0..1", key, eps), "mend the config.json");
    eps_ = static_cast<float>(eps);
    list_decoder_weights(traits_, config.boolean_or("tie_word_embeddings", traits_.is_tied),
                         shape_);
    std::vector<LayerState> states;
    for (const DecoderLayer& layer : traits_.layers) states.push_back(state_of(layer));
    shape_.set_states(states);
  }

 private:
  LayerState state_of(const DecoderLayer& layer) const {
    if (layer.is_recurrent) return recurrent_state(traits_.recurrent);
    if (traits_.latent) return latent_state(traits_.latent->turned_width, traits_.latent->rank);
    return {.heads = shape_.num_kv_heads,
            .width = shape_.head_dim,
            .window = layer.window,
            .is_chunked = layer.is_chunked};
  }
  NormSpec norm(std::string_view gain, std::string_view bias) const {
    return {traits_.norm, gain, traits_.has_norm_bias ? bias : std::string_view{}, eps_};
  }
  NormSpec norm() const { return norm("norm", "norm.bias"); }
  NormSpec post_norm() const { return norm("post_norm", "post_norm.bias"); }
  int64_t q_cols() const { return shape_.num_heads * shape_.head_dim; }
  int64_t kv_cols() const { return shape_.num_kv_heads * shape_.head_dim; }
  bool is_parallel() const { return traits_.residual != Residual::kSerial; }

  void embed(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    layer.gather_tokens("tokens", x);
    if (traits_.embed_scale != 1) layer.scale(x, traits_.embed_scale);
    if (traits_.has_positions) {
      const View positions = layer.workspace(shape_.hidden_size);
      layer.gather_positions("positions", 0, positions);
      layer.add(x, positions);
    }
    if (traits_.names.embed_norm.name) layer.norm(norm(), x);
    layer.set_hidden(x);
  }

  struct Qkv {
    View q, k, v;
  };
  Qkv side_by_side(const View& qkv) const {
    return {qkv.columns(0, q_cols()), qkv.columns(q_cols(), kv_cols()),
            qkv.columns(q_cols() + kv_cols(), kv_cols())};
  }
  // Those with norms of their own are rows of a slot; others lie side by side.
  Qkv qkv_slots(LayerBuilder& layer) const {
    if (traits_.qk_norm == QkNorm::kNone)
      return side_by_side(layer.workspace(q_cols() + 2 * kv_cols()));
    const View q = layer.workspace(q_cols());
    const View k = layer.workspace(kv_cols());
    return {q, k, layer.workspace(kv_cols())};
  }

  Qkv project(LayerBuilder& layer, const View& x) const {
    const bool has_bias = traits_.has_qkv_bias;
    if (traits_.fused == Fused::kWhole || traits_.fused == Fused::kGroups) {
      const View qkv = layer.workspace(q_cols() + 2 * kv_cols());
      layer.linear("qkv", has_bias ? "qkv.bias" : "", x, qkv);
      if (traits_.fused == Fused::kWhole) return side_by_side(qkv);
      const View regrouped = layer.workspace(q_cols() + 2 * kv_cols());
      layer.regroup(qkv, regrouped, shape_.num_kv_heads, shape_.head_dim);
      return side_by_side(regrouped);
    }
    const Qkv to = qkv_slots(layer);
    layer.linear("q", has_bias ? "q.bias" : "", x, to.q);
    layer.linear("k", has_bias ? "k.bias" : "", x, to.k);
    layer.linear("v", has_bias ? "v.bias" : "", x, to.v);
    return to;
  }

  // Heads of q and of the gate take turns.
  Qkv project_gated(LayerBuilder& layer, const View& x, View& gate) const {
    const bool has_bias = traits_.has_qkv_bias;
    const View both = layer.workspace(2 * q_cols());
    layer.linear("q", has_bias ? "q.bias" : "", x, both);
    const Qkv to = qkv_slots(layer);
    layer.take_heads(both, to.q, shape_.num_heads, 0);
    gate = layer.workspace(q_cols());
    layer.take_heads(both, gate, shape_.num_heads, 1);
    layer.linear("k", has_bias ? "k.bias" : "", x, to.k);
    layer.linear("v", has_bias ? "v.bias" : "", x, to.v);
    return to;
  }

  void norm_one_by_one(LayerBuilder& layer, const char* role, const View& rows,
                       int64_t heads) const {
    const View one = layer.workspace(shape_.head_dim);
    for (int64_t head = 0; head < heads; ++head) {
      const std::string gain = fmt::format("{}.{}", role, head);
      layer.take_heads(rows, one, 1, head);
      layer.norm({traits_.norm, gain, "", eps_}, one);
      layer.take_heads(one, rows.columns(head * shape_.head_dim, shape_.head_dim), 1, 0);
    }
  }

  void place(LayerBuilder& layer, const DecoderLayer& kind, const Qkv& to) const {
    if (traits_.qk_norm == QkNorm::kEachHead) {
      layer.norm_heads(norm("q_norm", "q_norm.bias"), to.q, shape_.num_heads);
      layer.norm_heads(norm("k_norm", "k_norm.bias"), to.k, shape_.num_kv_heads);
    } else if (traits_.qk_norm == QkNorm::kOwnGains) {
      layer.norm_heads(norm("", ""), to.q, shape_.num_heads);
      layer.scale_columns("q_norm", to.q);
      layer.norm_heads(norm("", ""), to.k, shape_.num_kv_heads);
      layer.scale_columns("k_norm", to.k);
    } else if (traits_.qk_norm == QkNorm::kOwnTensors) {
      norm_one_by_one(layer, "q_norm", to.q, shape_.num_heads);
      norm_one_by_one(layer, "k_norm", to.k, shape_.num_kv_heads);
    } else if (traits_.qk_norm == QkNorm::kWholeWidth) {
      layer.norm(norm("q_norm", "q_norm.bias"), to.q);
      layer.norm(norm("k_norm", "k_norm.bias"), to.k);
    }
    if (traits_.qkv_limit > 0)
      for (const View& view : {to.q, to.k, to.v}) layer.clamp(view, traits_.qkv_limit);
    if (kind.rope >= 0) {
      const Rope& rope = traits_.ropes[static_cast<size_t>(kind.rope)];
      layer.rope(to.q, shape_.num_heads, rope.frequencies, rope.factor, traits_.rope);
      layer.rope(to.k, shape_.num_kv_heads, rope.frequencies, rope.factor, traits_.rope);
    }
    if (kind.rope >= 0 && traits_.qk_norm == QkNorm::kBehindRope) {
      layer.norm_heads(norm("", ""), to.q, shape_.num_heads);
      layer.norm_heads(norm("", ""), to.k, shape_.num_kv_heads);
    }
    if (traits_.query_factor != 0 && (kind.rope < 0 || traits_.scales_turned_queries))
      layer.scale_by_position(to.q, traits_.query_factor, traits_.query_period,
                              traits_.query_shift);
  }

  // `to` = of each group of columns of `from` those from `offset` on: in one go where the group is
  // a whole number of such runs, and so is what lies before them.
  static void take_runs(LayerBuilder& layer, const View& from, const View& to, int64_t groups,
                        int64_t offset) {
    const int64_t period = from.cols / groups, width = to.cols / groups;
    if (period % width == 0 && offset % width == 0)
      return layer.take_heads(from, to, groups, offset / width);
    for (int64_t group = 0; group < groups; ++group)
      layer.take_heads(from.columns(group * period + offset, width),
                       to.columns(group * width, width), 1, 0);
  }

  struct DeltaInputs {
    View qkv, z, learned, kept;
  };
  DeltaInputs project_delta(LayerBuilder& layer, const View& x) const {
    const RecurrentShape& shape = traits_.recurrent;
    const int64_t heads = shape.value_heads, groups = shape.key_heads;
    const int64_t values = shape.value_columns(), keys = shape.key_columns();
    View both, gates;
    if (traits_.has_grouped_delta) {
      both = layer.workspace(shape.columns() + values);
      layer.linear("qkvz", "", x, both);
    }
    if (traits_.has_grouped_gates) {
      gates = layer.workspace(2 * heads);
      layer.linear("ba", "", x, gates);
    }
    const View qkv = layer.workspace(shape.columns()), z = layer.workspace(values);
    const View learned = layer.workspace(heads), kept = layer.workspace(heads);
    if (traits_.has_grouped_delta) {
      take_runs(layer, both, qkv.columns(0, keys), groups, 0);
      take_runs(layer, both, qkv.columns(keys, keys), groups, shape.key_width);
      take_runs(layer, both, qkv.columns(2 * keys, values), groups, 2 * shape.key_width);
      take_runs(layer, both, z, groups, 2 * shape.key_width + values / groups);
    } else {
      layer.linear("qkv", "", x, qkv);
      layer.linear("z", "", x, z);
    }
    if (traits_.has_grouped_gates) {
      take_runs(layer, gates, learned, groups, 0);
      take_runs(layer, gates, kept, groups, heads / groups);
    } else {
      layer.linear("b", "", x, learned);
      layer.linear("a", "", x, kept);
    }
    layer.activate(Activation::kSigmoid, learned);
    return {qkv, z, learned, kept};
  }

  // Value heads that share a key head, side by side: the rule's order.
  View untiled_inputs(LayerBuilder& layer, const View& tiled) const {
    const RecurrentShape& shape = traits_.recurrent;
    const int64_t groups = shape.key_heads, keys = 2 * shape.key_columns();
    const int64_t run = shape.value_columns() / groups;
    const View out = layer.workspace(shape.columns());
    layer.take_heads(tiled.columns(0, keys), out.columns(0, keys), 1, 0);
    const View values = tiled.columns(keys, shape.value_columns());
    for (int64_t group = 0; group < groups; ++group)
      layer.take_heads(values, out.columns(keys + group * run, run), shape.value_heads / groups,
                       group);
    return out;
  }
  View tiled_answer(LayerBuilder& layer, const View& answer) const {
    const RecurrentShape& shape = traits_.recurrent;
    const int64_t tiles = shape.value_heads / shape.key_heads;
    const int64_t run = shape.value_columns() / tiles;
    const View out = layer.workspace(shape.value_columns());
    for (int64_t tile = 0; tile < tiles; ++tile)
      layer.take_heads(answer, out.columns(tile * run, run), shape.key_heads, tile);
    return out;
  }

  // Gated delta net: keys, queries and values through a short convolution into a state that decays,
  // forgets and learns; what it answers is normalised by head and gated.
  void delta_net(LayerBuilder& layer) const {
    const RecurrentShape& shape = traits_.recurrent;
    const View x = layer.workspace(shape_.hidden_size);
    layer.norm_hidden(norm(), x);
    const auto [qkv, z, learned, kept] = project_delta(layer, x);
    layer.time_steps("a.bias", 0, kLongestStep, kept);
    layer.decay("a_log", kept, kept);
    View convolved = layer.workspace(shape.columns());
    layer.convolve("conv", "", shape, qkv, convolved);
    if (traits_.has_tiled_delta) convolved = untiled_inputs(layer, convolved);
    View answer = layer.workspace(shape.value_columns());
    layer.recurrent_rule(shape, convolved, learned, kept, "", answer);
    if (traits_.has_tiled_delta) answer = tiled_answer(layer, answer);
    layer.norm_heads({NormKind::kRms, "delta_norm", "", eps_}, answer, shape.value_heads);
    layer.gate(Activation::kSilu, z, answer, z);
    layer.linear("o", "", z, x);
    layer.add_to_hidden(x);
  }

  // Mamba-2: values, keys and queries through a short convolution into a state that decays and adds
  // up as the token's time steps say; what it answers is gated and then normalised, by the groups
  // of heads that share their keys.
  void state_space(LayerBuilder& layer) const {
    const RecurrentShape& shape = traits_.recurrent;
    const StateSpace& space = traits_.space;
    const int64_t values = shape.value_columns();
    const View x = layer.workspace(shape_.hidden_size);
    layer.norm_hidden(norm(), x);
    const View z = layer.workspace(values), in = layer.workspace(shape.columns());
    const View steps = layer.workspace(shape.value_heads), kept = layer.workspace(steps.cols);
    layer.linear("z", "", x, z);
    layer.linear("xbc", "", x, in);
    layer.linear("dt", "", x, steps);
    layer.time_steps("dt.bias", space.least_step, space.most_step, steps);
    layer.decay("a_log", steps, kept);
    const View convolved = layer.workspace(shape.columns());
    layer.convolve("conv", space.has_conv_bias ? "conv.bias" : "", shape, in, convolved);
    const View answer = layer.workspace(values);
    layer.recurrent_rule(shape, convolved, steps, kept, "skip", answer);
    layer.gate(Activation::kSilu, z, answer, z);
    if (shape.key_heads == 1) {
      layer.norm({NormKind::kRms, "space_norm", "", eps_}, z);
    } else {
      layer.norm_heads({NormKind::kRms, "", "", eps_}, z, shape.key_heads);
      layer.scale_columns("space_norm", z);
    }
    layer.linear("o", "", z, x);
    if (traits_.residual_scale != 1) layer.scale(x, traits_.residual_scale);
    layer.add_to_hidden(x);
  }

  // Absorbed: queries are brought to the latent rows' width and attend to these as to one head that
  // all share; answers are brought back. A row is [turned | latent], so that what is turned begins
  // each head.
  void latent_attention(LayerBuilder& layer, const DecoderLayer& kind) const {
    const LatentAttention& latent = *traits_.latent;
    const Rope& rope = traits_.ropes[static_cast<size_t>(kind.rope)];
    const int64_t heads = shape_.num_heads, width = latent.turned_width + latent.rank;
    const View x = layer.workspace(shape_.hidden_size);
    layer.norm_hidden(norm(), x);
    const View q = layer.workspace(q_cols());
    if (latent.query_rank > 0) {
      const View low = layer.workspace(latent.query_rank);
      layer.linear("q_a", "", x, low);
      layer.norm({NormKind::kRms, "q_a_norm", "", latent.eps}, low);
      layer.linear("q_b", "", low, q);
    } else {
      layer.linear("q", "", x, q);
    }
    const View row = layer.workspace(width);
    const View c = layer.workspace(latent.rank);
    layer.linear("turned", "", x, row.columns(0, latent.turned_width));
    layer.linear("latent", "", x, c);
    layer.norm({NormKind::kRms, "latent_norm", "", latent.eps}, c);
    layer.take_heads(c, row.columns(latent.turned_width, latent.rank), 1, 0);
    const View absorbed = layer.workspace(heads * width);
    layer.absorb("kv_b", heads, latent.key_width, q, absorbed);
    layer.rope(absorbed, heads, rope.frequencies, rope.factor, traits_.rope);
    layer.rope(row, 1, rope.frequencies, rope.factor, traits_.rope);
    const View attended = layer.workspace(heads * width);
    layer.attend(absorbed, row, {}, attended, {.scale = traits_.attention_scale, .slopes = {}});
    const View values = layer.workspace(heads * latent.value_width);
    layer.expand("kv_b", heads, latent.key_width, attended, values);
    layer.linear("o", "", values, x);
    if (traits_.residual_scale != 1) layer.scale(x, traits_.residual_scale);
    layer.add_to_hidden(x);
  }

  float scale_of(int64_t layer) const {
    if (!traits_.divides_by_layer) return traits_.attention_scale;
    const float usual = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    const float scale = traits_.attention_scale > 0 ? traits_.attention_scale : usual;
    return scale / static_cast<float>(layer + 1);
  }

  // What a sublayer gives; the residual stream is still its input.
  void add_to_stream(LayerBuilder& layer, const View& x) const {
    if (traits_.residual_scale != 1) layer.scale(x, traits_.residual_scale);
    if (!traits_.adds_to_normed) return layer.add_to_hidden(x);
    const View normed = layer.workspace(shape_.hidden_size);
    layer.norm_hidden(norm(), normed);
    layer.add(x, normed);
    layer.set_hidden(x);
  }

  void attention(LayerBuilder& layer) const override {
    const DecoderLayer& kind = traits_.layers[static_cast<size_t>(layer.layer_index())];
    if (kind.is_recurrent)
      return traits_.recurrent.is_delta() ? delta_net(layer) : state_space(layer);
    if (traits_.latent) return latent_attention(layer, kind);
    const View x = layer.workspace(shape_.hidden_size);
    if (traits_.place == NormPlace::kBehind)
      layer.read_hidden(x);
    else
      layer.norm_hidden(norm(), x);
    View gate;
    const Qkv qkv = traits_.has_output_gate ? project_gated(layer, x, gate) : project(layer, x);
    place(layer, kind, qkv);
    const View attended = layer.workspace(q_cols());
    layer.attend(qkv.q, qkv.k, qkv.v, attended,
                 {scale_of(layer.layer_index()), traits_.attention_cap, slopes_}, gate,
                 traits_.has_sinks ? "sinks" : "");
    if (traits_.has_output_gate) layer.gate(Activation::kSigmoid, gate, attended, attended);
    layer.linear("o", traits_.has_o_bias ? "o.bias" : "", attended, x);
    if (traits_.place != NormPlace::kBefore) layer.norm(post_norm(), x);
    if (is_parallel()) {
      // The residual stream is still the layer's input.
      const View y = layer.workspace(shape_.hidden_size);
      layer.norm_hidden(
          traits_.residual == Residual::kParallelNorms ? norm("mlp_norm", "mlp_norm.bias") : norm(),
          y);
      feed_forward(layer, y);
      layer.add(x, y);
    }
    add_to_stream(layer, x);
  }

  void feed_forward(LayerBuilder& layer, const View& x) const {
    const auto bias = [&](const char* role) { return traits_.has_mlp_bias ? role : ""; };
    const View inner = layer.workspace(shape_.intermediate_size);
    layer.linear(traits_.is_gated ? "gate" : "up", bias(traits_.is_gated ? "gate.bias" : "up.bias"),
                 x, inner);
    if (traits_.is_gated) {
      const View up = layer.workspace(shape_.intermediate_size);
      layer.linear("up", bias("up.bias"), x, up);
      layer.gate(*traits_.activation, inner, up, inner);
    } else {
      layer.activate(*traits_.activation, inner);
    }
    layer.linear("down", bias("down.bias"), inner, x);
  }

  // In place of feed_forward: what the experts give is written to another slot than x.
  View mix_experts(LayerBuilder& layer, const View& x) const {
    const Mixture& of = *traits_.mixture;
    const View scores = layer.workspace(of.router.experts);
    layer.linear("router", of.has_router_bias ? "router.bias" : "", x, scores);
    const View choices = layer.workspace(LayerBuilder::route_columns(of.router));
    layer.route(of.router, of.is_corrected ? "router.bias" : "", scores, choices);
    const View y = layer.workspace(shape_.hidden_size);
    ExpertsSpec experts{
        .activation = *traits_.activation, .clamp = of.clamp, .weighs_inputs = of.weighs_inputs};
    if (of.has_expert_bias) {
      experts.gate_up_bias = "experts.gate_up.bias";
      experts.down_bias = "experts.down.bias";
    }
    layer.experts(experts, x, choices, y);
    if (of.shared_width == 0) return y;
    const View inner = layer.workspace(of.shared_width), up = layer.workspace(of.shared_width);
    layer.linear("shared.gate", "", x, inner);
    layer.linear("shared.up", "", x, up);
    layer.gate(*traits_.activation, inner, up, inner);
    const View z = layer.workspace(shape_.hidden_size);
    layer.linear("shared.down", "", inner, z);
    if (!of.has_shared_gate) {
      layer.add(y, z);
      return y;
    }
    const View by = layer.workspace(1);
    layer.linear("shared.router", "", x, by);
    layer.activate(Activation::kSigmoid, by);
    layer.add_weighted(y, z, by);
    return y;
  }

  void mlp(LayerBuilder& layer) const override {
    View x = layer.workspace(shape_.hidden_size);
    if (traits_.place == NormPlace::kBehind)
      layer.read_hidden(x);
    else
      layer.norm_hidden(norm(), x);
    if (is_mixture(traits_, layer.layer_index()))
      x = mix_experts(layer, x);
    else
      feed_forward(layer, x);
    if (traits_.place != NormPlace::kBefore) layer.norm(post_norm(), x);
    add_to_stream(layer, x);
  }

  void head(LayerBuilder& layer) const override {
    const View x = layer.workspace(shape_.hidden_size);
    layer.read_needed_hidden(x);
    layer.norm(norm(), x);
    if (traits_.logit_scale != 1) layer.scale(x, traits_.logit_scale);
    layer.logits("logits", x, traits_.has_head_bias ? "logits.bias" : "", traits_.logit_cap);
  }

  void read_shape(const ModelConfig& config) {
    constexpr int64_t kWide = 1 << 20;
    const DecoderKeys& keys = traits_.keys;
    ModelShape& s = shape_;
    s.family = traits_.family;
    s.weight_dtype = config_dtype(config);
    s.hidden_size = config.integer(keys.hidden, 1, kWide);
    s.intermediate_size =
        keys.intermediate && (traits_.intermediate_size == 0 || config.has(keys.intermediate))
            ? config.integer(keys.intermediate, 1, 8 * kWide)
            : traits_.intermediate_size;
    s.num_layers = config.integer(keys.layers, 1, 4096);
    s.num_heads = traits_.heads > 0 ? config.integer_or(keys.heads, traits_.heads, 1, 4096)
                                    : config.integer(keys.heads, 1, 4096);
    const bool is_null = keys.kv_heads && config.is_null(keys.kv_heads);
    s.num_kv_heads = traits_.kv_heads > 0 && !is_null ? traits_.kv_heads : s.num_heads;
    if (keys.kv_heads)
      s.num_kv_heads = config.integer_or(keys.kv_heads, s.num_kv_heads, 1, s.num_heads);
    s.vocab_size = traits_.vocab_size > 0
                       ? config.integer_or("vocab_size", traits_.vocab_size, 1, 1 << 24)
                       : config.integer("vocab_size", 1, 1 << 24);
    s.max_positions = config.integer_or(keys.positions, traits_.max_positions, 1, kMostPositions);
    read_heads(config);
    if (traits_.mixture) {
      s.num_experts = traits_.mixture->router.experts;
      s.experts_per_token = traits_.mixture->router.chosen;
    }
  }

  void read_heads(const ModelConfig& config) {
    ModelShape& s = shape_;
    if (traits_.latent) {  // "head_dim" is what is turned
      s.head_dim = traits_.latent->key_width + traits_.latent->turned_width;
      return;
    }
    const int64_t usual = config.is_null("head_dim") ? 0 : traits_.head_dim;
    const bool is_derived = !config.has("head_dim") && usual == 0;
    if (is_derived && s.hidden_size % s.num_heads != 0)
      config.refuse(fmt::format("{} {} is not a multiple of {} {}", traits_.keys.hidden,
                                s.hidden_size, traits_.keys.heads, s.num_heads),
                    "mend the config.json");
    s.head_dim =
        config.integer_or("head_dim", usual > 0 ? usual : s.hidden_size / s.num_heads, 1, 1024);
    if (s.num_heads % s.num_kv_heads != 0)
      config.refuse(fmt::format("{} attention heads can't share {} KV heads evenly", s.num_heads,
                                s.num_kv_heads),
                    "mend the config.json");
  }

  // Which positions a layer sees, and how.
  void read_positions(const ModelConfig& config) {
    ModelShape& s = shape_;
    const bool has_rope = !traits_.has_alibi && !traits_.has_positions;
    if (has_rope && traits_.ropes.empty()) traits_.ropes.push_back(read_rope(config, s.head_dim));
    if (traits_.has_alibi) slopes_ = alibi_slopes(s.num_heads);
    s.rounds_slopes = traits_.rounds_slopes;
    if (traits_.rounds_slopes)
      for (float& slope : slopes_) slope = bf16_to_f32(f32_to_bf16(slope));
    if (traits_.layers.empty())
      traits_.layers.assign(static_cast<size_t>(s.num_layers),
                            {traits_.sliding_window, has_rope ? 0 : -1});
    SLUICE_ASSERT(std::ssize(traits_.layers) == s.num_layers, "a family says it of every layer");
    bool may_be_longer = !traits_.has_positions;
    for (const Rope& rope : traits_.ropes) {
      if (rope.is_of_long)
        s.note = "sequences are longer than it was first trained on: all are turned as those are";
      if (rope.longest == 0) continue;
      may_be_longer = false;
      if (rope.longest >= s.max_positions) continue;
      s.note = fmt::format(
          "its rotary positions are scaled for longer sequences as a whole: it runs up to {} "
          "positions; with `context_tokens` of up to {} all sequences are turned as long ones are",
          rope.longest, s.max_positions);
      s.max_positions = rope.longest;
    }
    if (traits_.sparse_from > 0 && traits_.sparse_from < s.max_positions) {
      s.max_positions = traits_.sparse_from;
      s.note = fmt::format(
          "from {} positions on its attention chooses keys by an index, which sluice does not "
          "compute: it runs up to there, where all keys are chosen",
          traits_.sparse_from);
      may_be_longer = false;
    }
    const int64_t wanted = config.integer_or(kContextKey, 0, 0, kMostPositions);
    if (may_be_longer && wanted > s.max_positions && wanted <= kMostTimes * s.max_positions) {
      s.note = fmt::format(
          "it was made for {} positions: beyond them answers may mean nothing{}", s.max_positions,
          has_rope
              ? fmt::format(" (models are stretched with `rope_scaling` yarn and `rope_factor` "
                            "{})",
                            (wanted + s.max_positions - 1) / s.max_positions)
              : "");
      s.max_positions = wanted;
    }
    for (DecoderLayer& layer : traits_.layers) {
      if (layer.window >= s.max_positions) layer.window = 0;  // as wide as the longest sequence
      if (layer.window == 0) layer.is_chunked = false;
      SLUICE_ASSERT(layer.rope < std::ssize(traits_.ropes), "layers have ropes of the model");
    }
  }

  DecoderTraits traits_;
  std::vector<float> slopes_;
  float eps_ = 1e-6f;
};

}  // namespace

DecoderNames::DecoderNames() = default;

void DecoderNames::join_gguf_rows() {
  gate.gguf = "ffn_up.gate_rows";
  up.gguf = "ffn_up.up_rows";
}

bool is_mixture(const DecoderTraits& traits, int64_t layer) {
  return traits.mixture &&
         (traits.mixture_layers.empty() || traits.mixture_layers[static_cast<size_t>(layer)]);
}

std::unique_ptr<FamilyModel> make_decoder(const ModelConfig& config, DecoderTraits traits) {
  return std::make_unique<Decoder>(config, std::move(traits));
}

Activation read_activation(const ModelConfig& config, const char* key, const char* fallback) {
  // transformers' names of what sluice computes (its activations.py, ACT2FN).
  static const std::map<std::string, Activation, std::less<>> kNames = {
      {"gelu", Activation::kGelu},
      {"gelu_python", Activation::kGelu},
      {"gelu_accurate", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_python_tanh", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"relu", Activation::kRelu},
      {"relu2", Activation::kReluSquared},
      {"sigmoid", Activation::kSigmoid},
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu}};
  const std::string name = config.text_or(key, fallback);
  if (const auto found = kNames.find(name); found != kNames.end()) return found->second;
  config.refuse(fmt::format("{} \"{}\" is not supported", key, name),
                "sluice knows silu, gelu, gelu_pytorch_tanh, gelu_new, relu, relu2 and sigmoid");
}

void name_as_gpt2(DecoderNames& names) {
  names.prefixes = {"transformer.", ""};
  names.layers = "h";
  names.tokens.name = "wte";
  names.positions.name = "wpe";
  names.attention_norm.name = "ln_1";
  names.qkv.name = "attn.c_attn";
  names.o.name = "attn.c_proj";
  names.mlp_norm.name = "ln_2";
  names.up.name = "mlp.c_fc";
  names.down.name = "mlp.c_proj";
  names.norm.name = "ln_f";
}

Fused read_qkv_order(const ModelConfig& config) {
  return config.boolean_or("is_qkv_in_order", false) ? Fused::kWhole : Fused::kGroups;
}

float read_soft_cap(const ModelConfig& config, const char* key, double fallback) {
  if (config.is_null(key)) return 0;
  const double cap = config.number_or(key, fallback);
  if (!(cap >= 0 && cap <= 1e6))
    config.refuse(fmt::format("\"{}\" is {}, outside 0..1e6", key, cap), "mend the config.json");
  return static_cast<float>(cap);
}

float read_factor(const ModelConfig& config, const char* key, double fallback) {
  const double factor = config.number_or(key, fallback);
  if (!(factor >= 1e-6 && factor <= 1e6))
    config.refuse(fmt::format("\"{}\" is {}, outside 1e-6..1e6", key, factor),
                  "mend the config.json");
  return static_cast<float>(factor);
}

int64_t read_head_dim(const ModelConfig& config, int64_t fallback) {
  if (fallback == 0 || config.is_null("head_dim"))
    fallback =
        config.integer("hidden_size", 1, 1 << 20) / config.integer("num_attention_heads", 1, 4096);
  return config.integer_or("head_dim", fallback, 1, 1024);
}

int64_t read_sliding_window(const ModelConfig& config, int64_t fallback) {
  if (!config.has("sliding_window")) return config.is_null("sliding_window") ? 0 : fallback;
  return config.integer("sliding_window", 1, kMostPositions);
}

std::vector<bool> read_layer_types(const ModelConfig& config,
                                   const std::function<bool(int64_t)>& has_window) {
  const int64_t layers = config.integer("num_hidden_layers", 1, 4096);
  const std::vector<std::string> types = config.texts("layer_types");
  if (!types.empty() && std::ssize(types) != layers)
    config.refuse(fmt::format("\"layer_types\" has {} entries for {} layers", types.size(), layers),
                  "mend the config.json");
  std::vector<bool> out;
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (types.empty()) {
      out.push_back(has_window(layer));
      continue;
    }
    const std::string& type = types[static_cast<size_t>(layer)];
    if (type != "sliding_attention" && type != "full_attention")
      config.refuse(fmt::format("layer {} has type \"{}\"", layer, type),
                    "sluice knows sliding_attention and full_attention here");
    out.push_back(type == "sliding_attention");
  }
  return out;
}

std::vector<DecoderLayer> read_optional_windows(const ModelConfig& config) {
  if (!config.boolean_or("use_sliding_window", false)) return {};
  return read_late_windows(config, 4096, 28);
}

std::vector<DecoderLayer> read_late_windows(const ModelConfig& config, int64_t window,
                                            int64_t first) {
  window = read_sliding_window(config, window);
  first = config.integer_or("max_window_layers", first, 0, 4096);
  std::vector<DecoderLayer> out;
  for (const bool has_window :
       read_layer_types(config, [&](int64_t layer) { return layer >= first; }))
    out.push_back({has_window ? window : 0, 0});
  return out;
}

std::vector<bool> read_window_layers(const ModelConfig& config, int64_t period) {
  return read_layer_types(config, [&](int64_t layer) { return (layer + 1) % period != 0; });
}

}  // namespace sluice
