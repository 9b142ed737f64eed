#pragma once
// Where the inputs of products can be scaled, column by column, without changing what a program
// computes: read off the program, so that no family says it.
#include <vector>

#include "src/layer/layer_program.h"

namespace sluice {

/// The producer's outputs (with its bias) are divided by the factors, the consumers' columns
/// multiplied by them. Indices of SublayerShape::weights.
struct ScalingPlace {
  int32_t producer = -1;           ///< a norm's gain or a matrix
  int32_t bias = -1;               ///< the producer's; -1: none
  std::vector<int32_t> consumers;  ///< matrices
};

/// In the order of their first consumers. A norm with a gain that only products read; a product
/// whose outputs reach other products column by column: through relu, as the factor of a gate, or
/// as values of attention (`attention_is_column_wise`: each head has its own).
std::vector<ScalingPlace> scaling_places(const LayerProgram& program,
                                         bool attention_is_column_wise);

}  // namespace sluice
