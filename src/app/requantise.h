#pragma once
// A matrix of a packed store in another format: its values as they are stored, quantised anew.
#include "io/convert/convert.h"
#include "kernels/quantise.h"
#include "src/shape/model_shape.h"

namespace sluice::app {

/// The tensor that `tensor`, which is quantised, becomes in the format `to`, plain or quantised.
/// Errors, when it is made: kFile naming it where a value has no place in the format.
io::StoreTensor requantised_tensor(const io::TensorEntry& tensor, const WeightShape& weight,
                                   const WeightFormat& to, kernels::RangeSearch search);

}  // namespace sluice::app
