#include "src/model/families/gguf_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace sluice {

namespace {
constexpr double kOriginal = 8192;  // length that Llama 3's rule of scaling begins with
constexpr double kLow = 1;
constexpr int64_t kUnsaidContext = 2048;
constexpr const char* kTurnedFactor = "rope.scaling.attn_factor";  // of cosine and sine
constexpr const char* kYarnScale = "rope.scaling.yarn_log_multiplier";

// Whether the factors are those of the rule: wavelengths up to a `high`th of the original length
// stay.
bool is_llama3(const std::vector<float>& factors, double factor, double high, double theta) {
  const auto pairs = static_cast<double>(factors.size());
  for (size_t i = 0; i < factors.size(); ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / pairs);
    const double wavelength = 2 * std::numbers::pi / frequency;
    double expected = 1;
    if (wavelength > kOriginal / kLow) {
      expected = factor;
    } else if (wavelength >= kOriginal / high && high > kLow) {
      const double smooth = (kOriginal / wavelength - kLow) / (high - kLow);
      expected = 1 / ((1 - smooth) / factor + smooth);
    }
    if (!(std::abs(factors[i] - expected) <= 1e-3 * expected)) return false;
  }
  return true;
}

// Llama 3's rule, which the file has as one factor for each frequency; null without it. Llama 4
// Scout's has no ramp. Factors that no rule makes are LongRoPE's, of every length.
nlohmann::json factor_scaling(const GgufKeys& keys, double theta, int64_t turned) {
  const io::TensorEntry* tensor = keys.tensor("rope_freqs.weight");
  if (!tensor) return nullptr;
  const std::vector<float> factors = keys.read_vector(*tensor, turned / 2);
  const double factor = *std::max_element(factors.begin(), factors.end());
  for (const double high : {4.0, 1.0})
    if (is_llama3(factors, factor, high, theta))
      return {{"rope_type", "llama3"},
              {"factor", factor},
              {"low_freq_factor", kLow},
              {"high_freq_factor", high},
              {"original_max_position_embeddings", static_cast<int64_t>(kOriginal)}};
  return {{"rope_type", "longrope"},
          {"short_factor", factors},
          {"long_factor", factors},
          {"original_max_position_embeddings",
           keys.integer(keys.prefix() + "context_length").value_or(kUnsaidContext)},
          {"attention_factor", 1.0}};
}

// LongRoPE's factors, of short and of long sequences; null without them. A file that does not say
// up to which length those of short ones go has no longer ones.
nlohmann::json longrope_scaling(const GgufKeys& keys, const std::string& p, int64_t turned) {
  const char* const names[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
  const io::TensorEntry* const tensors[] = {keys.tensor(names[0]), keys.tensor(names[1])};
  if (!tensors[0] && !tensors[1]) return nullptr;
  for (int i = 0; i < 2; ++i)
    if (!tensors[i])
      keys.refuse(fmt::format("{} is missing beside {}", names[i], names[1 - i]),
                  "download the file again");
  const std::string length = p + "rope.scaling.original_context_length";
  nlohmann::json out{
      {"rope_type", "longrope"},
      {"short_factor", keys.read_vector(*tensors[0], turned / 2)},
      {"long_factor", keys.read_vector(*tensors[1], turned / 2)},
      {"original_max_position_embeddings",
       keys.integer(length).value_or(keys.integer(p + "context_length").value_or(kUnsaidContext))}};
  if (const auto factor = keys.number(p + kTurnedFactor)) out["attention_factor"] = *factor;
  return out;
}

// What is left out is as transformers has it.
nlohmann::json yarn_scaling(const GgufKeys& keys, const std::string& p) {
  nlohmann::json out{{"rope_type", "yarn"}};
  for (const auto& [theirs, ours] : {std::pair{"rope.scaling.factor", "factor"},
                                     {"rope.scaling.yarn_beta_fast", "beta_fast"},
                                     {"rope.scaling.yarn_beta_slow", "beta_slow"},
                                     {"rope.scaling.yarn_attn_factor", "attention_factor"}})
    if (const auto value = keys.number(p + theirs)) out[ours] = *value;
  if (const auto length = keys.integer(p + "rope.scaling.original_context_length"))
    out["original_max_position_embeddings"] = *length;
  if (!out.contains("factor") || !out.contains("original_max_position_embeddings"))
    keys.refuse("rope.scaling.type is yarn, but its factor or original length is missing",
                "download the file again");
  if (const double scale = keys.number(p + kYarnScale).value_or(0); scale != 0) {
    out["mscale"] = 1.0;
    out["mscale_all_dim"] = scale;
  }
  // Times what YaRN has of its own.
  if (const double turned = keys.number(p + kTurnedFactor).value_or(1); turned != 1) {
    if (out.contains("mscale") || out.contains("attention_factor"))
      keys.refuse("rope.scaling.attn_factor is not 1 beside another factor of YaRN",
                  "such models are not read");
    const double factor = std::max(out["factor"].get<double>(), 1.0);
    out["attention_factor"] = turned * (0.1 * std::log(factor) + 1);
  }
  return out;
}

// A factor without a type is linear, and so is the key that older writers gave it; null: none.
nlohmann::json rope_scaling(const GgufKeys& keys, const GgufDecoderKind& kind, const std::string& p,
                            double theta, int64_t turned) {
  nlohmann::json longrope = longrope_scaling(keys, p, turned);
  if (!longrope.is_null() && !kind.has_longrope)
    keys.refuse("rope_factors_long.weight scales its rotary positions", "such models are not read");
  const std::string type = keys.text_or(p + "rope.scaling.type", "linear");
  const bool is_known = type == "linear" || type == "none" || (type == "yarn" && kind.has_yarn) ||
                        (type == "longrope" && !longrope.is_null());
  if (!is_known)
    keys.refuse(fmt::format("rotary positions are scaled by \"{}\"", type),
                "none, linear and Llama 3's are read");
  if (!longrope.is_null()) return longrope;
  if (type == "yarn") return yarn_scaling(keys, p);
  if (keys.number(p + kTurnedFactor).value_or(1) != 1)
    keys.refuse("rope.scaling.attn_factor is not 1", "such models are not read");
  double factor = keys.number(p + "rope.scaling.factor")
                      .value_or(keys.number(p + "rope.scale_linear").value_or(1));
  if (factor == 0 || type == "none") factor = 1;  // as the readers of the format have it
  nlohmann::json by_factors = factor_scaling(keys, theta, turned);
  if (factor == 1) return by_factors;
  if (!by_factors.is_null())
    keys.refuse(fmt::format("rotary positions are scaled by {} and by rope_freqs.weight", factor),
                "such models are not read");
  return {{"rope_type", "linear"}, {"factor", factor}};
}

// What changes nothing: keys that no reader of the format uses to compute, and features that are
// off, by the value that says so.
bool is_neutral(const GgufKeys& keys, const std::string& p, const std::string& own) {
  constexpr std::string_view kOfNoUse[] = {
      "pooling_type",     "classifier.output_labels", "features_length", "dense_2_feat_in",
      "dense_2_feat_out", "dense_3_feat_in",          "dense_3_feat_out"};
  struct Off {
    std::string_view key;
    double value;
  };
  constexpr Off kOff[] = {{"attention.sliding_window", 0},
                          {"attention.clamp_kqv", 0},
                          {"attention.max_alibi_bias", 0},
                          {"attention.scale", 0},
                          {"attention.shared_kv_layers", 0},
                          {"attn_logit_softcapping", 0},
                          {"final_logit_softcapping", 0},
                          {"router_logit_softcapping", 0},
                          {"logit_scale", 1},
                          {"embedding_scale", 1},
                          {"residual_scale", 1},
                          {"expert_shared_count", 0},
                          {"expert_group_count", 0},
                          {"expert_group_used_count", 0},
                          {"expert_feed_forward_length", 0},
                          {"expert_weights_scale", 1},
                          {"leading_dense_block_count", 0},
                          {"nextn_predict_layers", 0},
                          {"rope.scaling.yarn_ext_factor", 1},
                          {"rope.scaling.yarn_log_multiplier", 0}};
  if (own == "attention.causal") return keys.boolean(p + own).value_or(true);
  if (own == "use_parallel_residual") return !keys.boolean(p + own).value_or(false);
  if (std::find(std::begin(kOfNoUse), std::end(kOfNoUse), own) != std::end(kOfNoUse)) return true;
  const auto* off = std::find_if(std::begin(kOff), std::end(kOff),
                                 [&](const Off& one) { return one.key == own; });
  return off != std::end(kOff) && keys.number(p + own) == off->value;
}

// What the architecture's keys may say beside those that are read: sizes that tensors show, and
// features that are off.
void refuse_unknown_keys(const GgufKeys& keys, const GgufDecoderKind& kind, const std::string& p,
                         int64_t head_dim) {
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
                                        "attention.layer_norm_epsilon",
                                        "rope.dimension_count",
                                        "rope.freq_base",
                                        "rope.scale_linear",
                                        "rope.scaling.type",
                                        "rope.scaling.factor",
                                        "rope.scaling.attn_factor",
                                        "rope.scaling.original_context_length",
                                        "rope.scaling.finetuned"};
  constexpr std::string_view kOfExperts[] = {
      "expert_feed_forward_length", "expert_shared_feed_forward_length",
      "expert_gating_func",         "expert_weights_norm",
      "expert_weights_scale",       "expert_shared_count",
      "leading_dense_block_count",  "nextn_predict_layers",
      "expert_group_count",         "expert_group_used_count"};
  const auto is_of_experts = [&](const std::string& own) {
    return kind.has_experts &&
           std::find(std::begin(kOfExperts), std::end(kOfExperts), own) != std::end(kOfExperts);
  };
  const auto is_of_yarn = [](const std::string& own) {
    return own.starts_with("rope.scaling.yarn_beta_") || own == "rope.scaling.yarn_attn_factor" ||
           own == kYarnScale;
  };
  for (const std::string& name : keys.names()) {
    if (!name.starts_with(p)) continue;
    const std::string own = name.substr(p.size());
    if (std::find(std::begin(kRead), std::end(kRead), own) == std::end(kRead) &&
        !is_of_experts(own) && !(kind.has_yarn && is_of_yarn(own)) &&
        std::find(kind.also.begin(), kind.also.end(), own) == kind.also.end() &&
        !is_neutral(keys, p, own))
      keys.refuse(fmt::format("key {} is not known, and what it asks for would not be done", name),
                  "convert the Hugging Face checkpoint of the model instead");
  }
  if (kind.head_dim == 0 &&
      keys.integer(p + "attention.value_length").value_or(head_dim) != head_dim)
    keys.refuse("heads of keys and of values differ in length", "such models are not read");
  // The last is Falcon's: q, k and v in order.
  const std::string layout = keys.text_or(p + "tensor_data_layout", "reference");
  if (layout != "Meta AI original pth" && layout != "reference" && layout != "jploski")
    keys.refuse(fmt::format("tensor_data_layout \"{}\" is not read", layout),
                "download another file of the model");
}

int64_t layer_count(const GgufKeys& keys, const GgufDecoderKind& kind, const std::string& p) {
  constexpr int64_t kMostLayers = 4096;
  const int64_t layers = keys.need_integer(p + "block_count");
  if (layers < 1 || layers > kMostLayers)
    keys.refuse(fmt::format("key {}block_count is {}, outside 1..{}", p, layers, kMostLayers),
                "download the file again");
  int64_t drafting = 0;  // those at the end
  if (kind.has_experts || kind.has_drafts) {
    drafting = keys.integer(p + "nextn_predict_layers").value_or(0);
    if (drafting < 0 || drafting >= layers)
      keys.refuse(
          fmt::format("key {}nextn_predict_layers is {}, of {} layers", p, drafting, layers),
          "download the file again");
  }
  if (kind.has_experts) return layers - drafting;
  if (keys.integer(p + "expert_count").value_or(0) > 0)
    keys.refuse("a mixture of experts is not read", "choose a dense model");
  for (int64_t layer = 0; layer < layers; ++layer)
    if (const std::string name = fmt::format("blk.{}.ffn_gate_exps.weight", layer);
        keys.tensor(name))
      keys.refuse(
          fmt::format("{} holds experts, but key {}expert_count says that there are none", name, p),
          "download the file again");
  return layers - drafting;
}

// What may be a list of one for each layer: the first.
std::optional<int64_t> first_of(const GgufKeys& keys, const GgufDecoderKind& kind,
                                const std::string& key, int64_t layers) {
  if (!kind.differs_by_layer) return keys.integer(key);
  const std::vector<int64_t> all = keys.integers(key, layers);
  return all.empty() ? std::nullopt : std::optional(all.front());
}

// Mixtures whose layers all are need not say how wide dense ones would be.
int64_t mlp_width(const GgufKeys& keys, const GgufDecoderKind& kind, int64_t layers) {
  const std::string p = keys.prefix();
  auto said = first_of(keys, kind, p + "feed_forward_length", layers);
  if (!said && kind.has_experts) said = keys.integer(p + "expert_feed_forward_length");
  return said ? *said : keys.need_integer(p + "feed_forward_length");
}

int64_t vocabulary(const GgufKeys& keys) {
  const io::TensorEntry* table = keys.tensor("token_embd.weight");
  if (!table || table->shape.size() != 2)
    keys.refuse("token_embd.weight is missing or no matrix", "download the file again");
  return table->shape[0];
}
}  // namespace

nlohmann::json gguf_decoder_config(const GgufKeys& keys, const GgufDecoderKind& kind) {
  const std::string p = keys.prefix();
  const int64_t layers = layer_count(keys, kind, p);
  const int64_t heads = keys.need_integer(p + "attention.head_count");
  const int64_t hidden = keys.need_integer(p + "embedding_length");
  if (heads < 1 && kind.has_attention)
    keys.refuse("it has no attention heads", "download the file again");
  const int64_t head_dim = kind.head_dim > 0
                               ? kind.head_dim
                               : keys.integer(p + "attention.key_length").value_or(hidden / heads);
  const int64_t turned = keys.integer(p + "rope.dimension_count").value_or(head_dim);
  if (turned != head_dim && !kind.turns_a_part)
    keys.refuse("only a part of each head is rotated", "such models are not read");
  refuse_unknown_keys(keys, kind, p, head_dim);
  const double theta = keys.number(p + "rope.freq_base").value_or(10000.0);
  nlohmann::json config{
      {"architectures", {kind.architecture}},
      {"model_type", kind.model_type},
      {"torch_dtype", "float16"},
      {"hidden_act", "silu"},
      {"hidden_size", hidden},
      {"intermediate_size", mlp_width(keys, kind, layers)},
      {"num_hidden_layers", layers},
      {"num_attention_heads", heads},
      {"num_key_value_heads",
       first_of(keys, kind, p + "attention.head_count_kv", layers).value_or(heads)},
      {"head_dim", head_dim},
      {"max_position_embeddings", keys.integer(p + "context_length").value_or(kUnsaidContext)},
      {kind.eps, keys.number(p + "attention.layer_norm_rms_epsilon")
                     .value_or(keys.number(p + "attention.layer_norm_epsilon").value_or(1e-5))},
      {"rope_theta", theta},
      {"vocab_size", vocabulary(keys)},
      {"tie_word_embeddings", keys.tensor("output.weight") == nullptr}};
  if (turned != head_dim)
    config["partial_rotary_factor"] = static_cast<double>(turned) / static_cast<double>(head_dim);
  if (nlohmann::json scaling =
          kind.differs_by_layer ? nlohmann::json() : rope_scaling(keys, kind, p, theta, turned);
      !scaling.is_null())
    config["rope_scaling"] = std::move(scaling);
  keys.add_ends(config);
  return config;
}

}  // namespace sluice
