#include "src/engine/runners/backend.h"

#include <fmt/ranges.h>

#include <set>

namespace sluice {

std::string with_16_bit_inputs(const ModelShape& model, const kernels::QuantisedOptions& compute,
                               bool (*takes)(const WeightFormat&, kernels::ActivationFormat)) {
  if (compute.activations == kernels::ActivationFormat::k16Bit) return {};
  std::set<std::string> names;
  for (const SublayerShape& sublayer : model.sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.quantised.is_quantised() && !takes(weight.quantised, compute.activations))
        names.insert(format_name(weight.quantised));
  if (names.empty()) return {};
  return fmt::format("inputs of 16 bits with {} weights", fmt::join(names, ", "));
}

}  // namespace sluice
