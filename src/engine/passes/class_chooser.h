#pragma once
// Which class the next pass is of (policy::PassExecution), from the tokens that it really has. One
// thread at a time.
#include <cstdint>

#include "policy/policy.h"

namespace sluice {

class ClassChooser {
 public:
  explicit ClassChooser(const policy::Policy& policy) : policy_(policy) {}

  /// Of a pass of so many tokens, which is the next. A class is kept down to a sixteenth below its
  /// border, so that passes around it do not load ahead for the wrong one.
  size_t choose(int64_t tokens);
  /// What choose() will say after the pass it was asked for last.
  size_t expect(int64_t tokens) const noexcept;

 private:
  policy::Policy policy_;
  size_t last_ = 0;
};

}  // namespace sluice
