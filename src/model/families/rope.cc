#include "src/model/families/rope.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <optional>

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

}  // namespace

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

}  // namespace sluice
