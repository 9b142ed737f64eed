#pragma once
// A low-rank adapter merged into the weights of a store, as it is written.
#include <optional>
#include <vector>

#include "io/convert/convert.h"
#include "kernels/quantise.h"
#include "src/lora/adapter.h"
#include "src/model/bound_model.h"

namespace sluice::app {

/// `groups` are store_groups() of the same model; their tensors that the adapter changes are made
/// of the model's and the adapter's instead, in f32, and then converted or quantised (by `search`)
/// as the group says. Model and adapter must outlive the result. Errors: kUser when the adapter
/// changes what the model has not, in another shape, packed by other tools or quantised, or a table
/// that two of its layers share.
void merge_lora(const BoundModel& model, const LoraAdapter& adapter, kernels::RangeSearch search,
                std::vector<io::StoreGroup>& groups);

}  // namespace sluice::app
