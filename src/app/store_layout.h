#pragma once
// In which groups and which order a packed store holds a model's weights: embed, one group a layer,
// head, as a pass reads.
#include <optional>
#include <string>
#include <vector>

#include "io/convert/convert.h"
#include "kernels/quantise.h"
#include "src/app/activation_scaling.h"
#include "src/app/error_compensation.h"
#include "src/app/mixed_formats.h"
#include "src/model/bound_model.h"

namespace sluice::app {

/// The group of a layer's weights: "layer-00003".
std::string layer_group_name(int64_t layer);

/// `to`: the element type of all matrices and vectors (quantised: of linear layers' matrices);
/// nothing: as they are. What other tools have quantised keeps its codes where it can, and is
/// quantised anew, by `search`, where it can't or another format is asked for. The model must
/// outlive the result. `scalings`, with quantised `to` only: what weights are multiplied with
/// first. `compensator`, with scalings only: quantises what it is for, and outlives the result.
/// `formats`: what each of the matrices in it becomes in place of `to`. `requantises`: matrices of
/// a packed store that are quantised become `to` as well, from the values that they have there.
/// Errors: kUser when matrices have several types and `to` is nothing.
std::vector<io::StoreGroup> store_groups(const BoundModel& model, std::optional<WeightFormat> to,
                                         kernels::RangeSearch search = kernels::RangeSearch::kClip,
                                         const Scalings* scalings = nullptr,
                                         Compensator* compensator = nullptr,
                                         const Formats* formats = nullptr,
                                         bool requantises = false);

}  // namespace sluice::app
