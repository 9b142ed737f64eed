#pragma once
// In which groups and which order a packed store holds a model's weights: embed, one group a layer,
// head, as a pass reads.
#include <optional>
#include <vector>

#include "io/convert.h"
#include "src/model/bound_model.h"

namespace sluice::app {

/// `to`: the element type of all matrices and vectors; nothing: as they are.
std::vector<io::StoreGroup> store_groups(const BoundModel& model, std::optional<WeightFormat> to);

}  // namespace sluice::app
