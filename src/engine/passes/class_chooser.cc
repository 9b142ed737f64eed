#include "src/engine/passes/class_chooser.h"

#include <algorithm>

namespace sluice {

namespace {
// Another class has to be expected to take less than this share of the last one's time.
constexpr double kWorthAChange = 15.0 / 16;
// A measurement moves what is known by this share, and by no more than so many times: single passes
// are held up by something else, for longer than they take.
constexpr double kNewest = 0.25;
constexpr double kMostAtOnce = 1.25;
// By every pass of another class, what a class has learned loses this share: it is tried again when
// it was only held up.
constexpr double kForgotten = 1.0 / 256;
// Of less than this the clock says little.
constexpr double kTellingSeconds = 1e-5;

void keep(double& factor, double measured, double modelled) {
  if (measured < kTellingSeconds || modelled < kTellingSeconds) return;
  const double known = factor == 0 ? 1 : factor;
  const double moved = (1 - kNewest) * known + kNewest * measured / modelled;
  factor = std::clamp(moved, known / kMostAtOnce, known * kMostAtOnce);
}
}  // namespace

ClassChooser::ClassChooser(const policy::Policy& policy, policy::PassEstimates estimates)
    : policy_(policy), estimates_(std::move(estimates)), factors_(policy.pass_classes()) {
  if (estimates_.classes.size() != factors_.size()) estimates_ = {};
}

// A class that has not run yet is as far off as the nearest that has.
double ClassChooser::factor_of(size_t pass_class, double Factors::*which) const noexcept {
  for (size_t away = 0; away < factors_.size(); ++away) {
    if (pass_class >= away && factors_[pass_class - away].*which > 0)
      return factors_[pass_class - away].*which;
    if (pass_class + away < factors_.size() && factors_[pass_class + away].*which > 0)
      return factors_[pass_class + away].*which;
  }
  return 1;
}

double ClassChooser::expected_seconds(size_t pass_class, int64_t tokens) const noexcept {
  const double rest = factors_[pass_class].rest;
  return lanes_seconds(pass_class, tokens) * (rest > 0 ? rest : 1);
}

double ClassChooser::lanes_seconds(size_t pass_class, int64_t tokens) const noexcept {
  const policy::PassEstimate one = estimates_.at(pass_class, tokens);
  const double device = one.device * factor_of(pass_class, &Factors::device);
  const double inplace = one.inplace * factor_of(pass_class, &Factors::inplace);
  const double up = one.up * (up_factor_ > 0 ? up_factor_ : 1);
  // Where the two overlap the longer counts; what the model has beyond that is waiting.
  const double overlap = one.device + one.inplace - one.held;
  const double held = std::max({device, inplace, device + inplace - std::max(overlap, 0.0)});
  const double modelled = std::max({one.held, one.up, one.others});
  return one.seconds + std::max({held, up, one.others}) - modelled;
}

size_t ClassChooser::expect(int64_t tokens) const noexcept {
  if (estimates_.classes.empty()) {
    const size_t by_border = policy_.pass_class_of(tokens);
    if (by_border >= last_) return by_border;
    const int64_t from = policy_.execution(last_).from_tokens;
    return tokens >= from - from / 16 ? last_ : by_border;
  }
  size_t best = 0;
  double least = expected_seconds(0, tokens);
  for (size_t i = 1; i < factors_.size(); ++i) {
    const double seconds = expected_seconds(i, tokens);
    if (seconds < least) least = seconds, best = i;
  }
  if (has_last_ && least >= kWorthAChange * expected_seconds(last_, tokens)) return last_;
  return best;
}

size_t ClassChooser::choose(int64_t tokens) {
  last_ = expect(tokens);
  has_last_ = true;
  return last_;
}

void ClassChooser::learn(size_t pass_class, int64_t tokens, const PassTimes& times) {
  if (estimates_.classes.empty()) return;
  const policy::PassEstimate modelled = estimates_.at(pass_class, tokens);
  for (size_t i = 0; i < factors_.size(); ++i) {
    if (i == pass_class) continue;
    for (double* factor : {&factors_[i].device, &factors_[i].inplace, &factors_[i].rest})
      if (*factor > 0) *factor += kForgotten * (1 - *factor);
  }
  keep(factors_[pass_class].device, times.device_seconds, modelled.device);
  keep(factors_[pass_class].inplace, times.inplace_seconds, modelled.inplace);
  if (times.up_bytes > 0)
    keep(up_factor_, times.up_seconds, static_cast<double>(times.up_bytes) / estimates_.up_rate);
  keep(factors_[pass_class].rest, times.seconds, lanes_seconds(pass_class, tokens));
}

}  // namespace sluice
