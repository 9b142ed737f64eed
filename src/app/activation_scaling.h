#pragma once
// Quantisation that looks at what the weights are multiplied with. A calibration text gives the
// mean magnitude and mean square of every input column of the linear layers. Errors of a column
// then count by its mean square, and columns with large inputs are scaled up before they are
// quantised, while what makes their inputs is scaled down (AWQ, arXiv:2306.00978, section 3.2): the
// model computes the same, the error moves to where it costs less.
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/quantise.h"
#include "src/app/scoring.h"
#include "src/engine/engine.h"

namespace sluice::app {

/// Inputs of one linear layer, summed over rows.
struct InputStatistics {
  std::vector<double> magnitude;  ///< [cols]
  std::vector<double> square;     ///< [cols]
  int64_t rows = 0;
  double mean_magnitude(size_t col) const { return magnitude[col] / static_cast<double>(rows); }
  double mean_square(size_t col) const { return square[col] / static_cast<double>(rows); }
};

/// A weight: indices of its sublayer and of it in that; of experts' matrices also of the expert.
struct WeightPlace {
  size_t sublayer = 0, weight = 0, expert = 0;
  auto operator<=>(const WeightPlace&) const = default;
};

/// Of matrices; of experts that no row went to nothing.
using Calibration = std::map<WeightPlace, InputStatistics>;

/// Runs the windows' tokens through the model. Errors: those of Engine::open and score().
Calibration calibrate(const std::filesystem::path& model, EngineOptions options,
                      std::span<const ScoredSequence> windows,
                      const std::function<void(int64_t done, int64_t total)>& progress = {},
                      std::stop_token cancel = {});

/// What a weight is multiplied with before it is stored; empty vectors: nothing.
struct WeightScaling {
  std::vector<float> importance;  ///< [cols] for the quantiser, of the scaled columns
  std::vector<float> columns;     ///< [cols]
  std::vector<float> rows;        ///< [rows]; of a vector its elements
};

/// What all experts of a layer got counts for each as so many rows of its own.
constexpr int64_t kSharedRows = 16;

/// Of experts with their importance alone.
using Scalings = std::map<WeightPlace, WeightScaling>;

/// What a matrix becomes, by index of its sublayer and of it in that.
using FormatOf = std::function<WeightFormat(size_t sublayer, size_t weight)>;

/// The scaling for each place of the programs: powers of the mean magnitude in steps of 1 / 20, the
/// one that brings the summed squared error of a sample of rows down most (none, where none does).
/// Places with a matrix that stays plain are left out. Errors: kUser when the model's weights are
/// quantised already; kFile.
Scalings choose_scalings(const BoundModel& model, const Calibration& calibration,
                         const FormatOf& format_of, kernels::RangeSearch search);

/// Names the scalings: the same for the same numbers.
uint64_t fingerprint(const Scalings& scalings) noexcept;

}  // namespace sluice::app
