#pragma once
// The decoder that most families are, with what they differ in as traits: norms and where they
// stand, rotary or other positions, layers that are not alike, gated and plain MLPs, fused tensors,
// scales. As it stands it is Llama's: pre-norm with RMSNorm, rotary positions, grouped-query
// attention, a gated MLP with silu, Hugging Face's names.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/model/families/rope.h"
#include "src/model/family.h"

namespace sluice {

/// What config.json calls its sizes; null: the family has no such key.
struct DecoderKeys {
  const char* hidden = "hidden_size";
  const char* intermediate = "intermediate_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";
  const char* positions = "max_position_embeddings";
  const char* eps = "rms_norm_eps";
  const char* activation = "hidden_act";
};

/// A tensor, without ".weight": behind the model's prefix, or "layers.3." and it; in GGUF files
/// (null: they don't have it), or "blk.3." and that.
struct TensorName {
  const char* name = nullptr;  ///< null: the family has none
  const char* gguf = nullptr;
};

/// What checkpoints call a decoder's tensors.
struct DecoderNames {
  /// Not inline, so that traits stay no nested lists of values: where one of those throws, gcc 12
  /// destroys the lists behind it, which are not there yet.
  DecoderNames();

  /// The last are of models that see, whose part for text it is.
  std::vector<std::string> prefixes{"model.", "", "language_model.model.", "model.language_model."};
  const char* layers = "layers";
  TensorName tokens{"embed_tokens", "token_embd"};
  TensorName positions{nullptr, "position_embd"};
  TensorName embed_norm{nullptr, "token_embd_norm"};
  TensorName attention_norm{"input_layernorm", "attn_norm"};
  TensorName attention_post_norm{"post_attention_layernorm", "post_attention_norm"};
  TensorName q{"self_attn.q_proj", "attn_q"}, k{"self_attn.k_proj", "attn_k"};
  TensorName v{"self_attn.v_proj", "attn_v"}, o{"self_attn.o_proj", "attn_output"};
  TensorName qkv{"self_attn.qkv_proj", "attn_qkv"};
  TensorName q_norm{"self_attn.q_norm", "attn_q_norm"}, k_norm{"self_attn.k_norm", "attn_k_norm"};
  TensorName mlp_norm{"post_attention_layernorm", "ffn_norm"};
  TensorName mlp_post_norm{"post_feedforward_layernorm", "post_ffw_norm"};
  TensorName gate{"mlp.gate_proj", "ffn_gate"}, up{"mlp.up_proj", "ffn_up"};
  TensorName down{"mlp.down_proj", "ffn_down"};
  TensorName gate_up{"mlp.gate_up_proj", "ffn_up"};
  // Of mixtures of experts; "{e}" stands for an expert's number. Stacks hold all experts' matrices,
  // as GGUF files have them: their names without ".{e}".
  TensorName router{"mlp.gate", "ffn_gate_inp"};
  TensorName correction{"mlp.gate.e_score_correction_bias",
                        "exp_probs_b.bias"};  ///< the whole name
  TensorName expert_gate{"mlp.experts.{e}.gate_proj", "ffn_gate_exps.{e}"};
  TensorName expert_up{"mlp.experts.{e}.up_proj", "ffn_up_exps.{e}"};
  TensorName expert_down{"mlp.experts.{e}.down_proj", "ffn_down_exps.{e}"};
  TensorName gate_up_stack{nullptr, nullptr}, down_stack{nullptr, nullptr};
  /// Whole names, of all; GGUF files have ups' beside gates'.
  TensorName gate_up_bias{"mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias"};
  TensorName down_bias{"mlp.experts.down_proj_bias", "ffn_down_exps.bias"};
  TensorName sinks{"self_attn.sinks", "attn_sinks.weight"};  ///< the whole name
  TensorName shared_gate{"mlp.shared_experts.gate_proj", "ffn_gate_shexp"};
  TensorName shared_up{"mlp.shared_experts.up_proj", "ffn_up_shexp"};
  TensorName shared_down{"mlp.shared_experts.down_proj", "ffn_down_shexp"};
  TensorName shared_gate_up{nullptr, nullptr};  ///< both in one tensor
  TensorName shared_router{"mlp.shared_expert_gate", "ffn_gate_inp_shexp"};
  // Of layers that keep latent rows; the two that are run are parts of one tensor.
  TensorName q_a{"self_attn.q_a_proj", "attn_q_a"}, q_b{"self_attn.q_b_proj", "attn_q_b"};
  TensorName q_a_norm{"self_attn.q_a_layernorm", "attn_q_a_norm"};
  TensorName kv_a{"self_attn.kv_a_proj_with_mqa", nullptr};
  TensorName latent{"self_attn.kv_latent_proj", "attn_kv_a_mqa.latent"};
  TensorName turned{"self_attn.k_rope_proj", "attn_kv_a_mqa.turned"};
  TensorName latent_norm{"self_attn.kv_a_layernorm", "attn_kv_a_norm"};
  TensorName kv_b{"self_attn.kv_b_proj", "attn_kv_b"};
  // Of layers with a recurrent state.
  TensorName delta_qkv{"linear_attn.in_proj_qkv", "attn_qkv"};
  TensorName delta_z{"linear_attn.in_proj_z", "attn_gate"};
  TensorName delta_b{"linear_attn.in_proj_b", "ssm_beta"};
  TensorName delta_a{"linear_attn.in_proj_a", "ssm_alpha"};
  /// All four in two tensors, by groups of heads that share a key head.
  TensorName delta_qkvz{"linear_attn.in_proj_qkvz", "ssm_in"};
  TensorName delta_ba{"linear_attn.in_proj_ba", "ssm_ba"};
  TensorName delta_conv{"linear_attn.conv1d", "ssm_conv1d"};
  TensorName delta_norm{"linear_attn.norm", "ssm_norm"};
  TensorName delta_a_log{"linear_attn.A_log", "ssm_a"};         ///< the whole name
  TensorName delta_bias{"linear_attn.dt_bias", "ssm_dt.bias"};  ///< the whole name
  TensorName delta_out{"linear_attn.out_proj", "ssm_out"};
  // Of layers with a state space. Its first three are parts of one tensor.
  TensorName space_in{"mixer.in_proj", nullptr}, space_conv{"mixer.conv1d", "ssm_conv1d"};
  TensorName space_z{"mixer.z_proj", "ssm_in.z"}, space_xbc{"mixer.xbc_proj", "ssm_in.xbc"};
  TensorName space_dt{"mixer.dt_proj", "ssm_in.dt"};
  TensorName space_a_log{"mixer.A_log", "ssm_a"};         ///< the whole name
  TensorName space_bias{"mixer.dt_bias", "ssm_dt.bias"};  ///< likewise
  TensorName space_skip{"mixer.D", "ssm_d"};              ///< likewise
  TensorName space_norm{"mixer.norm", "ssm_norm"}, space_out{"mixer.out_proj", "ssm_out"};
  TensorName norm{"norm", "output_norm"};
  /// GGUF files have gate and up in one tensor, or apart. (Those of all families may have q, k and
  /// v so.)
  void join_gguf_rows();
  std::vector<std::string> head{"lm_head", "language_model.lm_head"};  ///< without prefix
};

/// Of a sublayer: its input, its output before it is added, or both.
enum class NormPlace : uint8_t { kBefore, kBehind, kAround };
/// Of q and k before they are turned
/// (or, without gains, behind that, in layers that turn them). Heads may have gains of their own,
/// in one tensor or each in one.
enum class QkNorm : uint8_t { kNone, kEachHead, kOwnGains, kOwnTensors, kWholeWidth, kBehindRope };
/// A layer's attention and MLP: one after the other; both of the layer's input under one norm, or
/// with a norm each.
enum class Residual : uint8_t { kSerial, kParallel, kParallelNorms };
/// Matrices that are one tensor: none; q, k, v and gate, up, each of which is a run of its rows; or
/// q, k, v as one product, side by side or in groups of heads that share a KV head.
enum class Fused : uint8_t { kNone, kRows, kWhole, kGroups };

/// Latent attention (arXiv:2405.04434): keys and values of all heads are made of one latent row a
/// token, and keys end in columns that are turned and shared. Queries are made of a latent row of
/// their own, or of the hidden state.
struct LatentAttention {
  int64_t query_rank = 0;  ///< 0: none
  int64_t rank = 0;
  int64_t key_width = 0;     ///< of a head, not turned
  int64_t turned_width = 0;  ///< of its turned end
  int64_t value_width = 0;
  float eps = 1e-6f;  ///< of the latent rows' norms, whatever the others have
};

/// What a state space (arXiv:2405.21060) has beside its RecurrentShape.
struct StateSpace {
  float least_step = 0;  ///< bounds of the time steps
  float most_step = 0;
  bool has_conv_bias = false;
};

/// In place of an MLP, a router and experts of which each row goes to a few
/// (arXiv:1701.06538), perhaps beside one that every row goes to.
struct Mixture {
  RouterSpec router;
  bool is_corrected = false;     ///< scores by a vector, where experts are chosen
  bool has_router_bias = false;  ///< scores are a product and a bias
  bool has_expert_bias = false;  ///< and so are all products of an expert
  ClampedGate clamp;             ///< in place of the activation
  /// Names of stacks are whole, without ".weight".
  bool has_whole_names = false;
  /// Stacks are [experts, inputs, outputs], of which gate's and up's take turns.
  bool has_turned_stacks = false;
  bool has_turned_halves = false;  ///< likewise, but gate's lie before up's
  bool weighs_inputs = false;      ///< ExpertsSpec::weighs_inputs
  /// What config.json says experts are stored as; a checkpoint's tensors say it for themselves.
  WeightFormat stored;
  int64_t width = 0;             ///< of an expert
  int64_t shared_width = 0;      ///< of the one for every row; 0: there is none
  bool has_shared_gate = false;  ///< it counts for as much as the sigmoid of a product says
};

/// What a layer has of its own.
struct DecoderLayer {
  int64_t window = 0;         ///< LayerState::window; as wide as the longest sequence or 0: none
  int rope = 0;               ///< of DecoderTraits::ropes; -1: none
  bool is_chunked = false;    ///< LayerState::is_chunked
  bool is_recurrent = false;  ///< DecoderTraits::recurrent in place of attention
};

/// In what one family differs from another.
struct DecoderTraits {
  std::string family;  ///< config.json's model_type
  DecoderKeys keys;
  DecoderNames names;
  // Sizes where config.json has none; 0: it must. Where it says null of head_dim or of KV heads,
  // they follow from the others, as with 0 here.
  int64_t heads = 0;
  int64_t vocab_size = 0;
  int64_t head_dim = 0;  ///< 0: hidden_size / heads
  int64_t kv_heads = 0;  ///< 0: as many as heads, or the key's
  int64_t intermediate_size = 0;
  int64_t max_positions = 2048;
  double eps = 1e-6;
  bool is_tied = false;

  NormKind norm = NormKind::kRms;
  bool has_norm_bias = false;
  float norm_added = 0;  ///< to all gains as checkpoints have them
  NormPlace place = NormPlace::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  Residual residual = Residual::kSerial;
  /// What sublayers give is added to their normed input instead of the residual stream.
  bool adds_to_normed = false;

  float qkv_limit = 0;  ///< magnitude that q, k and v are clamped to, behind their norms; 0: none
  bool has_qkv_bias = false;
  bool has_o_bias = false;
  bool has_mlp_bias = false;
  bool has_head_bias = false;
  Fused fused = Fused::kNone;
  bool is_gated = true;
  std::optional<Activation> activation;  ///< none: as config.json says, silu where it doesn't
  bool is_transposed = false;    ///< checkpoints have matrices of layers as [inputs, outputs]
  bool gguf_pairs_rows = false;  ///< GGUF files have rows of q and k in pairs

  /// Empty: one, as config.json says, of the whole head.
  std::vector<Rope> ropes;
  RopeLayout rope = RopeLayout::kHalves;
  std::vector<DecoderLayer> layers;  ///< empty: alike, with `sliding_window` and the first rope
  int64_t sliding_window = 0;        ///< 0: none
  bool has_alibi = false;            ///< and no rope
  bool rounds_slopes = false;        ///< ALiBi's, to bf16 (kernels/attention.h)
  bool has_positions = false;        ///< a table, and no rope
  float attention_scale = 0;         ///< 0: 1 / sqrt(head_dim)
  bool divides_by_layer = false;     ///< scores, by 1 in the first layer, by 2 in the second
  float attention_cap = 0;
  /// Keys from which on attention chooses some, by an index that is not computed; 0: never.
  int64_t sparse_from = 0;
  bool has_sinks = false;  ///< AttentionShape::sinks, learned
  /// q has a second head behind each: the sigmoid of these is what passes of the attended values.
  bool has_output_gate = false;
  std::optional<LatentAttention> latent;  ///< in place of q, k and v in all layers
  RecurrentShape recurrent;               ///< of layers that have a recurrent state
  StateSpace space;                       ///< where its rule is a state space's
  bool has_mlp = true;                    ///< layers have an MLP behind their attention
  bool has_grouped_delta = false;         ///< two of its projections are DecoderNames::delta_qkvz
  bool has_grouped_gates = false;         ///< and two delta_ba
  /// Values, z and what is multiplied with them have the first value head of every key head, then
  /// the second of each.
  bool has_tiled_delta = false;
  std::optional<Mixture> mixture;
  std::vector<bool> mixture_layers;  ///< which of the layers are mixtures; empty: all
  /// Queries are scaled by position: 1 + factor ln(1 + floor(position / period)).
  float query_factor = 0;
  int64_t query_period = 0;
  int32_t query_shift = 0;            ///< is added to the position
  bool scales_turned_queries = true;  ///< else those of layers without a rope
  float embed_scale = 1;
  float residual_scale = 1;  ///< of what a sublayer adds
  float logit_scale = 1;
  float logit_cap = 0;
};

/// Whether a layer is a mixture of experts.
bool is_mixture(const DecoderTraits& traits, int64_t layer);

/// Errors: kFile for fields that are missing or don't fit together.
std::unique_ptr<FamilyModel> make_decoder(const ModelConfig& config, DecoderTraits traits);

/// The activation that config.json names. Errors: kFile for an unknown one.
Activation read_activation(const ModelConfig& config, const char* key, const char* fallback);

/// How q, k and v lie in the one tensor that they are in: in groups of heads, or side by side as
/// GGUF files have them ("is_qkv_in_order", of our own making). Errors: kFile.
Fused read_qkv_order(const ModelConfig& config);

/// Names of GPT-2's tensors.
void name_as_gpt2(DecoderNames& names);
/// A soft cap; 0 where config.json says null. Errors: kFile.
float read_soft_cap(const ModelConfig& config, const char* key, double fallback);
/// A factor. Errors: kFile where it is no number from 1e-6 to 1e6.
float read_factor(const ModelConfig& config, const char* key, double fallback);
/// The width of a head, as a decoder takes it. Errors: kFile.
int64_t read_head_dim(const ModelConfig& config, int64_t fallback = 0);

/// "sliding_window" where the family's layers all have one or none: config.json's, `fallback` where
/// it says nothing, 0 where it says null. Errors: kFile.
int64_t read_sliding_window(const ModelConfig& config, int64_t fallback);
/// The same of families whose config.json has "use_sliding_window" and "layer_types" or
/// "max_window_layers": one for each layer, empty where none has a window. Errors: kFile.
std::vector<DecoderLayer> read_optional_windows(const ModelConfig& config);
/// A window of the layers from "max_window_layers" on, or of the layers that "layer_types" names.
/// Errors: kFile.
std::vector<DecoderLayer> read_late_windows(const ModelConfig& config, int64_t window,
                                            int64_t first);
/// Which layers "layer_types" says to have a window; where it is absent `has_window` does. Errors:
/// kFile for other types and other counts of layers.
std::vector<bool> read_layer_types(const ModelConfig& config,
                                   const std::function<bool(int64_t)>& has_window);
/// The same, where it is absent every `period`-th has none
/// (from the `period`-th on). Errors: kFile for other types and other counts of layers.
std::vector<bool> read_window_layers(const ModelConfig& config, int64_t period);

}  // namespace sluice
