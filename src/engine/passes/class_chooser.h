#pragma once
// Which class the next pass is of (policy::PassExecution), from the tokens that it really has: the
// one with the least expected time, where somebody has expectations, else by the policy's borders.
// What passes really took corrects what is expected of the next. One thread at a time.
#include <cstdint>
#include <vector>

#include "policy/pass_estimates.h"
#include "policy/policy.h"

namespace sluice {

/// How long a pass took, and what the lanes did in it.
struct PassTimes {
  double seconds = 0;
  double device_seconds = 0;   ///< the device's own
  double inplace_seconds = 0;  ///< the host's, for rows in place
  double up_seconds = 0;       ///< the way up was busy, of late
  int64_t up_bytes = 0;        ///< in these seconds
};

class ClassChooser {
 public:
  /// `estimates`: of the same policy's classes, or empty.
  explicit ClassChooser(const policy::Policy& policy, policy::PassEstimates estimates = {});

  /// Of a pass of so many tokens, which is the next. A class is kept until another is expected to
  /// take a sixteenth less (by borders: down to a sixteenth below its own), so that passes around a
  /// border do not load ahead for the wrong one.
  size_t choose(int64_t tokens);
  /// What choose() will say after the pass it was asked for last.
  size_t expect(int64_t tokens) const noexcept;

  /// A pass has run.
  void learn(size_t pass_class, int64_t tokens, const PassTimes& times);
  /// Seconds that a pass is expected to take, after all that was learned. With estimates only.
  double expected_seconds(size_t pass_class, int64_t tokens) const noexcept;

 private:
  // Measured over modelled, of late; 0: nothing was measured.
  struct Factors {
    double device = 0;
    double inplace = 0;
    double rest = 0;  // of the whole, where the lanes are as they were measured
  };
  double lanes_seconds(size_t pass_class, int64_t tokens) const noexcept;
  double factor_of(size_t pass_class, double Factors::*which) const noexcept;

  policy::Policy policy_;
  policy::PassEstimates estimates_;
  std::vector<Factors> factors_;  // [class]
  double up_factor_ = 0;
  size_t last_ = 0;
  bool has_last_ = false;
};

}  // namespace sluice
