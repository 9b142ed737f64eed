#pragma once
// Numbers within bounds, as expressions over their digits. Pure.
#include <cstdint>
#include <optional>

#include "src/guide/grammar.h"

namespace sluice::guide {

constexpr int64_t kLargestInteger = 999'999'999'999'999;  ///< 15 digits: exact in a double

/// Whole numbers of JSON from `least` to `most`; without a bound, of at most 15 digits. Errors:
/// kUser when there is none.
ExprPtr integers(std::optional<int64_t> least, std::optional<int64_t> most);
/// Numbers of JSON from `least` to `most`, with at most 15 digits before and behind the point, and,
/// without bounds, an exponent. Errors: kUser when there is none.
ExprPtr numbers(std::optional<int64_t> least, std::optional<int64_t> most);

}  // namespace sluice::guide
