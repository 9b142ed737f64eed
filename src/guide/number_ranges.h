#pragma once
// Numbers within bounds, as expressions over their digits. Pure.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/guide/grammar.h"

namespace sluice::guide {

constexpr int64_t kLargestInteger = 999'999'999'999'999;  ///< 15 digits: exact in a double

/// Whole numbers of JSON from `least` to `most`; without a bound, of at most 15 digits. Errors:
/// kUser when there is none.
ExprPtr integers(std::optional<int64_t> least, std::optional<int64_t> most);
/// Largest number whose multiples can be said.
constexpr int64_t kMostMultiple = 1000;
/// Multiples of `of` (1 to kMostMultiple) from `least` to `most`. Null where that can't be said in
/// an expression of reasonable size. Errors: kUser when there is none. Rules go to `grammar`.
ExprPtr multiples(int64_t of, std::optional<int64_t> least, std::optional<int64_t> most,
                  Grammar& grammar);

/// A bound by its digits: (-) whole.fraction.
struct Decimal {
  bool is_negative = false;
  int64_t whole = 0;
  std::string fraction;  ///< of any length, without zeros at its end
  bool is_excluded = false;

  /// "12", "-0.5", "1e-7", as JSON writes numbers; nothing where it is beyond kLargestInteger.
  static std::optional<Decimal> parse(std::string_view text);
};
/// Numbers of JSON from `least` to `most`, with at most 15 digits before the point and `digits`
/// behind it, and, without bounds and with all 15, an exponent. Errors: kUser when there is none.
ExprPtr numbers(const std::optional<Decimal>& least, const std::optional<Decimal>& most,
                int32_t digits = 15);

}  // namespace sluice::guide
