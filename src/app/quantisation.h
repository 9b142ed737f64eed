#pragma once
// What a model's matrices become in a store: one format for all, or mixed ones under so many bits a
// weight, with a view to a text where there is one. What `convert` of the program and of the
// library do alike. Not thread safe.
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "src/app/mixed_formats.h"
#include "src/app/store_layout.h"

namespace sluice::app {

/// A text to calibrate on, and how it is run.
struct CalibrationText {
  std::vector<ScoredSequence> windows;
  EngineOptions options;
};

/// What is asked for.
struct QuantisationRequest {
  std::optional<WeightFormat> to;  ///< of all; nothing: as they are
  std::optional<double> bits;      ///< a weight (mixed_formats.h); in place of `to`
  bool requantises = false;        ///< what a packed store has quantised as well, with `to`
  kernels::RangeSearch search = kernels::RangeSearch::kClip;
  std::optional<CalibrationText> text;  ///< with quantised `to` or with `bits`
  std::optional<Calibration> inputs;    ///< likewise; in place of a text: an importance matrix's
  int threads = 0;                      ///< 0: all
  /// What is being done, how much of it, and what one of it is ("windows"); may be empty.
  std::function<void(std::string_view what, int64_t done, int64_t total, std::string_view of)>
      progress;
  std::stop_token cancel;
};

/// The answer: formats, scales, and what makes up for errors.
class Quantisation {
 public:
  /// Runs the text, where there is one. The model outlives this. Errors: kUser (`bits` out of
  /// range, weights that are quantised already); those of running the text.
  Quantisation(const BoundModel& model, QuantisationRequest request);
  Quantisation(const Quantisation&) = delete;
  Quantisation& operator=(const Quantisation&) = delete;

  /// Groups of the store, which this outlives. Errors: those of store_groups().
  std::vector<io::StoreGroup> groups();
  /// "int4-g64", "bf16", "4.497 bits a weight: int4-g128 40, int8 16".
  std::string description() const;
  /// For io::ConvertOptions::quantiser_name.
  std::string name() const;
  bool is_calibrated() const noexcept { return compensator_.has_value(); }
  /// Linear layers that count by columns alone (Compensator::too_wide()).
  int64_t too_wide() const { return compensator_ ? compensator_->too_wide() : 0; }

 private:
  void calibrate_model();
  void choose_mix(const Calibration* calibration);
  void scale(const Calibration& calibration);
  std::function<void(int64_t, int64_t)> telling(std::string_view what, std::string_view of) const;

  const BoundModel& model_;
  QuantisationRequest request_;
  std::optional<Formats> formats_;
  Scalings scalings_;
  std::optional<Compensator> compensator_;
};

}  // namespace sluice::app
