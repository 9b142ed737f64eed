#include "src/app/quantisation.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/base/side_by_side.h"
#include "src/base/team.h"

namespace sluice::app {

Quantisation::Quantisation(const BoundModel& model, QuantisationRequest request)
    : model_(model), request_(std::move(request)) {
  if (request_.bits) {
    if (model.shape().is_quantised())
      throw Error(ErrorKind::kUser,
                  fmt::format("{}: its weights are {} already", model.path().string(),
                              model.foreign_method().empty() ? model.shape().weights_name()
                                                             : model.foreign_method()),
                  "`bits` is for the checkpoint that they were quantised from");
    check_bits(model.shape(), *request_.bits);
  }
  if (request_.text) {
    calibrate_model();
    return;
  }
  if (request_.bits) choose_mix(request_.inputs ? &*request_.inputs : nullptr);
  if (request_.inputs) scale(*request_.inputs);
}

std::function<void(int64_t, int64_t)> Quantisation::telling(std::string_view what,
                                                            std::string_view of) const {
  return [this, what, of](int64_t done, int64_t total) {
    if (request_.progress) request_.progress(what, done, total, of);
  };
}

void Quantisation::calibrate_model() {
  const CalibrationText& text = *request_.text;
  const Calibration calibration = calibrate(model_.path(), text.options, text.windows,
                                            telling("calibrating", "windows"), request_.cancel);
  compensator_.emplace(CompensatorParts{.model = model_,
                                        .path = model_.path(),
                                        .options = text.options,
                                        .windows = text.windows,
                                        .scalings = scalings_,
                                        .search = request_.search,
                                        .threads = request_.threads,
                                        .cancel = request_.cancel});
  if (request_.bits) choose_mix(&calibration);
  scale(calibration);
}

void Quantisation::scale(const Calibration& calibration) {
  const FormatOf format_of = [&](size_t sublayer, size_t weight) {
    if (!formats_) return *request_.to;
    const auto found = formats_->find({sublayer, weight});
    return found == formats_->end() ? WeightFormat::plain(model_.shape().weight_dtype)
                                    : found->second;
  };
  telling("choosing scales", "")(0, 0);
  scalings_ = choose_scalings(model_, calibration, format_of, request_.search);
}

void Quantisation::choose_mix(const Calibration* calibration) {
  const auto weighing = telling("weighing matrices", "matrices");
  Damages damages;
  if (compensator_) {
    const ProductEffects effects =
        measure_effects(model_, request_.text->options, request_.text->windows,
                        telling("disturbing matrices", "runs"), request_.cancel);
    const CalibratedModel known{*calibration, &effects, &*compensator_};
    damages = expected_damages(model_, &known, request_.search, weighing);
  } else {
    Team team(request_.threads > 0 ? request_.threads : usable_processors());
    const Team::Use use(team);
    std::optional<CalibratedModel> known;
    if (calibration) known.emplace(CalibratedModel{*calibration});
    damages = expected_damages(model_, known ? &*known : nullptr, request_.search, weighing);
  }
  formats_ = choose_formats(model_.shape(), damages, *request_.bits);
}

std::vector<io::StoreGroup> Quantisation::groups() {
  return store_groups(model_, request_.to, request_.search,
                      request_.text || request_.inputs ? &scalings_ : nullptr,
                      compensator_ ? &*compensator_ : nullptr, formats_ ? &*formats_ : nullptr,
                      request_.requantises);
}

std::string Quantisation::description() const {
  if (formats_)
    return fmt::format("{:.4g} bits a weight ({})", bits_a_weight(model_.shape(), *formats_),
                       mix_of(model_.shape(), *formats_));
  return request_.to ? format_name(*request_.to) : model_.shape().weights_name();
}

std::string Quantisation::name() const {
  std::string out = request_.search == kernels::RangeSearch::kMinMax ? "minmax" : "clip";
  if (request_.text)
    out += fmt::format(", compensated, calibrated {:016x}", fingerprint(scalings_));
  if (request_.inputs) out += fmt::format(", calibrated {:016x}", fingerprint(scalings_));
  return out;
}

}  // namespace sluice::app
