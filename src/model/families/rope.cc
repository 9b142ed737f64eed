#include "src/model/families/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "src/model/positions.h"

namespace sluice {

namespace {

constexpr std::string_view kProportional = "proportional";

// What a kind of scaling is told beside its own object.
struct Plain {
  const ModelConfig& config;
  double theta;
  int64_t rotary_dim;
};

double checked(const ModelConfig& scaling, const char* key, double value, double least) {
  if (!(value >= least && value <= 1e9))
    scaling.refuse(fmt::format("\"{}\" is {}, outside {}..1e9", key, value, least),
                   "mend the config.json");
  return value;
}

std::vector<float> plain_frequencies(double theta, int64_t rotary_dim) {
  std::vector<float> frequencies(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = static_cast<float>(
        1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim)));
  return frequencies;
}

// Hugging Face's "llama3" rule: long wavelengths are divided by `factor`, short ones kept, those
// between interpolated.
void scale_llama3(const ModelConfig& scaling, Rope& rope) {
  const double factor = scaling.number("factor");
  const double low = scaling.number("low_freq_factor");
  const double high = scaling.number("high_freq_factor");
  const double original = scaling.number("original_max_position_embeddings");
  if (!(factor >= 1 && factor <= 1e6 && high >= low && low > 0 && original > 0))
    scaling.refuse(
        "llama3 scaling needs 1 <= factor <= 1e6 and high_freq_factor >= low_freq_factor > 0",
        "mend the config.json");
  for (float& frequency : rope.frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < original / high) continue;
    if (wavelength > original / low) {
      frequency = static_cast<float>(frequency / factor);
      continue;
    }
    const double smooth = high > low ? (original / wavelength - low) / (high - low) : 0;
    frequency = static_cast<float>((1 - smooth) * frequency / factor + smooth * frequency);
  }
}

void scale_linear(const ModelConfig& scaling, Rope& rope) {
  const double factor = scaling.number("factor");
  if (!(factor >= 1e-3 && factor <= 1e6))
    scaling.refuse(fmt::format("\"factor\" is {}, outside 0.001..1e6", factor),
                   "mend the config.json");
  for (float& frequency : rope.frequencies) frequency = static_cast<float>(frequency / factor);
}

// Frequencies that turn more than `beta_fast` times within the original length stay, those that
// turn less than `beta_slow` times are divided, a ramp lies between.
void scale_yarn(const ModelConfig& scaling, const Plain& plain, Rope& rope) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const double most = plain.config.number_or("max_position_embeddings", 2048);
  const double original = checked(scaling, kOriginal, scaling.number_or(kOriginal, most), 1);
  const double factor =
      checked(scaling, "factor", scaling.number_or("factor", most / original), 1e-3);
  const auto dim = static_cast<double>(plain.rotary_dim);
  const auto turning = [&](double rotations) {
    return dim * std::log(original / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(plain.theta));
  };
  const auto beta = [&](const char* key, double fallback) {
    const double value = scaling.number_or(key, fallback);
    return checked(scaling, key, value == 0 ? fallback : value, 1e-6);
  };
  double low = turning(beta("beta_fast", 32)), high = turning(beta("beta_slow", 1));
  if (scaling.boolean_or("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    rope.frequencies[i] = static_cast<float>(rope.frequencies[i] * ((1 - ramp) + ramp / factor));
  }
  const auto scale_of = [&](double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; };
  const double m = scaling.number_or("mscale", 0), m_all = scaling.number_or("mscale_all_dim", 0);
  const double own = m != 0 && m_all != 0 ? scale_of(m) / scale_of(m_all) : scale_of(1);
  rope.factor = static_cast<float>(
      checked(scaling, "attention_factor", scaling.number_or("attention_factor", own), 1e-6));
}

// Every frequency is divided by a factor of its own: one list up to the original length, another
// for longer sequences, from their first position on, which is read where such are wanted.
void scale_longrope(const ModelConfig& scaling, const Plain& plain, Rope& rope) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const double most = plain.config.number_or("max_position_embeddings", 2048);
  const double original = checked(
      scaling, kOriginal, scaling.number_or(kOriginal, plain.config.number_or(kOriginal, most)), 2);
  const bool is_long = original < most && plain.config.number_or(kLongestKey, 0) > original;
  const char* const list = is_long ? "long_factor" : "short_factor";
  const std::vector<double> factors = scaling.numbers(list);
  if (scaling.numbers("short_factor").size() != rope.frequencies.size() ||
      scaling.numbers("long_factor").size() != rope.frequencies.size())
    scaling.refuse(fmt::format("\"short_factor\" and \"long_factor\" are no lists of {} numbers",
                               rope.frequencies.size()),
                   "mend the config.json");
  for (size_t i = 0; i < factors.size(); ++i)
    rope.frequencies[i] =
        static_cast<float>(rope.frequencies[i] / checked(scaling, list, factors[i], 1e-6));
  const double factor = scaling.number_or("factor", most / original);
  const double own = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original));
  rope.factor = static_cast<float>(
      checked(scaling, "attention_factor", scaling.number_or("attention_factor", own), 1e-6));
  if (original < most && !is_long) rope.longest = static_cast<int64_t>(original);
  rope.is_of_long = is_long;
}

// By one object's "rope_type" (older: "type").
Rope scaled(const ModelConfig* scaling, const Plain& plain) {
  if (!(plain.theta >= 1 && plain.theta <= 1e12))
    plain.config.refuse(fmt::format("\"rope_theta\" is {}, outside 1..1e12", plain.theta),
                        "mend the config.json");
  Rope rope{plain_frequencies(plain.theta, plain.rotary_dim)};
  if (!scaling) return rope;
  std::string type = scaling->text_or("rope_type", scaling->text_or("type", "default"));
  if (scaling->text_or("type", type) != type)
    scaling->refuse("\"rope_type\" and \"type\" differ", "remove the one that is wrong");
  constexpr const char* kKnown =
      "default, linear, dynamic, yarn, longrope, llama3 and proportional";
  scaling->require_known({"rope_type",
                          "type",
                          "rope_theta",
                          "factor",
                          "low_freq_factor",
                          "high_freq_factor",
                          "original_max_position_embeddings",
                          "partial_rotary_factor",
                          "beta_fast",
                          "beta_slow",
                          "attention_factor",
                          "mscale",
                          "mscale_all_dim",
                          "truncate",
                          "short_factor",
                          "long_factor",
                          "llama_4_scaling_beta",
                          "max_position_embeddings",
                          "mrope_section",
                          "mrope_interleaved"},
                         fmt::format("sluice knows the rope types {}", kKnown));
  if (type == kProportional) {
    if (scaling->has("factor")) scale_linear(*scaling, rope);
  } else if (type == "llama3")
    scale_llama3(*scaling, rope);
  else if (type == "linear")
    scale_linear(*scaling, rope);
  else if (type == "yarn")
    scale_yarn(*scaling, plain, rope);
  else if (type == "longrope" || type == "su")
    scale_longrope(*scaling, plain, rope);
  else if (type == "dynamic")  // theta grows with lengths beyond those it was trained on
    rope.longest = plain.config.integer_or("max_position_embeddings", 2048, 1, int64_t{1} << 31);
  else if (type != "default" && type != "mrope")  // whose sections have one position in text
    scaling->refuse(fmt::format("rope type \"{}\" is not supported", type),
                    fmt::format("sluice knows {}", kKnown));
  return rope;
}

}  // namespace

// transformers 5 keeps theta and scaling in one object, earlier versions scaling in another. Where
// a file has both, they must say the same: which of them a reader believes is its own affair.
Rope read_rope(const ModelConfig& config, int64_t head_dim, const RopeKeys& keys) {
  const auto ours = [](const std::optional<ModelConfig>& object) {
    return object ? &*object : nullptr;
  };
  auto parameters = config.object("rope_parameters");
  if (parameters && !keys.layer_type.empty() && parameters->has(keys.layer_type))
    parameters = parameters->object(keys.layer_type);
  const auto scaling =
      keys.is_scaled ? config.object("rope_scaling") : std::optional<ModelConfig>{};
  const double outer = config.number_or(keys.theta_key, keys.theta);
  const auto theta_of = [&](const std::optional<ModelConfig>& object) {
    return object ? object->number_or("rope_theta", outer) : outer;
  };
  const auto& said = parameters ? parameters : scaling;
  const double outer_share = config.number_or("partial_rotary_factor", keys.share);
  const double share = said ? said->number_or("partial_rotary_factor", outer_share) : outer_share;
  const bool is_proportional =
      said ? said->text_or("rope_type", "") == kProportional : keys.is_proportional;
  const auto turned = static_cast<int64_t>(share * static_cast<double>(head_dim));
  const int64_t rotary_dim = is_proportional ? head_dim : turned;
  if (share == 1 && head_dim % 2 != 0)
    config.refuse(fmt::format("head_dim {} is odd", head_dim), "rotary positions need pairs");
  if (!(share > 0 && share <= 1) || rotary_dim < 2 || rotary_dim % 2 != 0)
    config.refuse(fmt::format("{} of {} columns of a head are turned", share, head_dim),
                  "rotary positions need pairs: mend \"partial_rotary_factor\"");
  const double theta = theta_of(said);
  Rope rope = scaled(ours(said), {config, theta, rotary_dim});
  // All pairs are as wide as the head says; those behind the share stand still.
  for (auto pair = static_cast<size_t>(turned / 2);
       is_proportional && pair < rope.frequencies.size(); ++pair)
    rope.frequencies[pair] = 0;
  const bool is_one_theta = !config.has(keys.theta_key) || theta == outer;
  const bool is_one_scaling =
      !parameters || !scaling ||
      scaled(ours(scaling), {config, theta_of(scaling), rotary_dim}).frequencies ==
          rope.frequencies;
  if (!is_one_theta || !is_one_scaling)
    config.refuse(fmt::format("\"rope_parameters\" and \"{}\" differ",
                              is_one_theta ? "rope_scaling" : "rope_theta"),
                  "remove the one that the model was not trained with");
  return rope;
}

}  // namespace sluice
