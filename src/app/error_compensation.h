#pragma once
// Quantisation that makes up for its errors (kernels/compensate.h), layer by layer: runs a text
// through the model and keeps H = X^T X of the inputs of as many linear layers at once as fit a
// limit, runs it again for the next ones, and quantises rows with what it has found. Not thread
// safe.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "io/convert/convert.h"
#include "kernels/compensate.h"
#include "src/app/activation_scaling.h"
#include "src/app/weight_sample.h"
#include "src/base/team.h"
#include "src/model/bound_model.h"

namespace sluice::app {

/// What is added to H's diagonal, as a share of its mean (GPTQ's).
constexpr double kDamping = 0.01;
/// Bytes that all H of a run may take, if the caller says nothing else.
constexpr int64_t kMostHessianBytes = int64_t{4} << 30;

/// For each weight of a program that is a product's matrix: the first one that is multiplied with
/// the same rows; -1: none. Those have one H, of experts each expert's.
std::vector<int32_t> input_sources(const LayerProgram& program, size_t weights);

/// [padded_rows(cols), cols] f32, the sum of x^T x over rows.
using Hessians = std::map<WeightPlace, std::vector<float>>;

/// Runs the windows' tokens through the model and adds up H of those in `sums`, which are zero.
/// Errors: those of Engine::open and score().
void add_hessians(const std::filesystem::path& model, EngineOptions options,
                  std::span<const ScoredSequence> windows, Hessians& sums,
                  std::stop_token cancel = {});

/// What a compensator works on. `model` and `scalings` outlive it.
struct CompensatorParts {
  const BoundModel& model;
  std::filesystem::path path;
  EngineOptions options;
  std::vector<ScoredSequence> windows;
  const Scalings& scalings;
  kernels::RangeSearch search;
  int64_t most_bytes = kMostHessianBytes;
  int threads = 0;  ///< 0: all
  std::stop_token cancel;
};

/// Quantises rows so that the errors of a layer's columns make up for one another.
class Compensator {
 public:
  explicit Compensator(CompensatorParts parts);

  /// Whether the inputs of this weight can be seen, and their H fits the limit.
  bool is_for(size_t sublayer, size_t weight) const;
  /// Linear layers whose H is over the limit; they are quantised without.
  int64_t too_wide() const;
  /// For StoreTensor::prepare. The compensator outlives it; the quantiser is good until the next
  /// one. Empty where H could not be factored. Errors: those of add_hessians().
  io::RowsQuantiser quantiser(const WeightPlace& place, const WeightFormat& format);
  /// What a row of this weight, quantised so and not scaled, gets wrong on the text, on average
  /// over `sample`'s rows: the summed squared error of its products, by format (0 for plain ones).
  /// Experts are those of the sample. Counts as 0 where H could not be factored or a value can't be
  /// quantised. Errors: those of add_hessians().
  std::vector<double> expected_errors(size_t sublayer, size_t weight,
                                      std::span<const WeightFormat> formats,
                                      const WeightSample& sample);

 private:
  std::optional<WeightPlace> source_of(const WeightPlace& place) const;
  std::vector<WeightPlace> sources_from(const WeightPlace& first) const;
  int64_t bytes_of(size_t sublayer, size_t weight) const;
  void collect_from(const WeightPlace& source);
  const kernels::Compensation* of_source(const WeightPlace& source,
                                         const std::vector<float>& columns,
                                         const WeightFormat& format);
  void add_shared_rows(const WeightPlace& source, std::vector<float>& values) const;
  double summed_error(const WeightPlace& source, const WeightFormat& format,
                      std::span<const float> values, int64_t rows);

  CompensatorParts parts_;
  Team team_;
  std::vector<std::vector<int32_t>> sources_;  // by sublayer
  Hessians hessians_;
  std::map<int64_t, std::optional<kernels::Compensation>> current_;  // by block of columns
  WeightPlace current_source_;
  std::vector<float> current_columns_;
  bool keeps_all_ = false;  // all H fit at once
};

}  // namespace sluice::app
