#pragma once
// A format for every matrix, so that the model keeps under so many bits a weight and loses least.
// Bits are those of the matrices that convert may quantise, as a store has them: codes, scales, and
// what fills rows and columns up to whole panels; not tables (nor heads tied to one), routers,
// matrices that are multiplied head by head, norms and biases.
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/quantise.h"
#include "src/app/activation_scaling.h"
#include "src/app/error_compensation.h"
#include "src/app/product_effects.h"
#include "src/model/bound_model.h"

namespace sluice::app {

/// By index of the sublayer and of the matrix in it; of experts one for all.
using Formats = std::map<std::pair<size_t, size_t>, WeightFormat>;

/// What matrices may become: K types, int4 with groups of 128, 64 and 32, int8, and last the type
/// that the model's plain matrices have. Smaller before larger where rows are multiples of 256.
std::vector<WeightFormat> mixable_formats(const ModelShape& shape);

/// Bits a weight where every matrix has the smallest format, and where every one is plain.
struct BitRange {
  double least = 0, most = 0;
};
/// Errors: kUser when the model has no matrix that may be quantised.
BitRange bit_range(const ModelShape& shape);

/// Errors: kUser naming the range where `bits` is out of it.
void check_bits(const ModelShape& shape, double bits);

/// How many matrices (experts count as one) have which format, most bytes first: "int4-g128 40,
/// int8 16". Those not in `formats` are as the shape says.
std::string mix_of(const ModelShape& shape, const Formats& formats = {});

/// Of matrices that may be quantised; those not in `formats` are as the shape says.
double bits_a_weight(const ModelShape& shape, const Formats& formats = {});

/// By place what each of mixable_formats() is expected to cost; plain costs nothing.
using Damages = std::map<std::pair<size_t, size_t>, std::vector<double>>;

/// What is known of the model's inputs, and, where a text could be run, what errors do on it.
struct CalibratedModel {
  const Calibration& calibration;
  const ProductEffects* effects = nullptr;  ///< both or none
  Compensator* compensator = nullptr;
};

/// With a text: the divergence that a matrix's output errors cause (measure_effects), these being
/// estimated on a sample of rows: compensated where the compensator is for them, elsewhere by the
/// columns' mean squares. With inputs alone: squared errors of outputs over their squares, columns
/// counting by their mean squares. With nothing (null): the same, all columns alike. `progress`:
/// matrices. Errors: kUser when a matrix is quantised already; kFile; those of
/// Compensator::expected_error().
Damages expected_damages(const BoundModel& model, const CalibratedModel* calibrated,
                         kernels::RangeSearch search,
                         const std::function<void(int64_t done, int64_t total)>& progress = {});

/// The formats with the least summed damage whose bits a weight are `bits` or less. Errors: those
/// of check_bits().
Formats choose_formats(const ModelShape& shape, const Damages& damages, double bits);

}  // namespace sluice::app
