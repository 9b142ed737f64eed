#include "src/guide/number_ranges.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"

namespace sluice::guide {

namespace {
constexpr int32_t kDigits = 15;

ExprPtr digit(char low = '0', char high = '9') {
  return range(static_cast<uint8_t>(low), static_cast<uint8_t>(high));
}
ExprPtr digits(size_t count) {
  return repeat(digit(), static_cast<int32_t>(count), static_cast<int32_t>(count));
}

// As many digits as `bound`, and not below it, or not above it.
ExprPtr beside(std::string_view bound, bool is_least) {
  if (bound.empty()) return sequence({});
  const char first = bound.front();
  const std::string_view rest = bound.substr(1);
  std::vector<ExprPtr> ways{sequence({digit(first, first), beside(rest, is_least)})};
  if (is_least && first < '9')
    ways.push_back(sequence({digit(static_cast<char>(first + 1), '9'), digits(rest.size())}));
  if (!is_least && first > '0')
    ways.push_back(sequence({digit('0', static_cast<char>(first - 1)), digits(rest.size())}));
  return either(std::move(ways));
}

// From `least` to `most`, which have as many digits.
ExprPtr between(std::string_view least, std::string_view most) {
  if (least.empty()) return sequence({});
  const char low = least.front(), high = most.front();
  if (low == high) return sequence({digit(low, low), between(least.substr(1), most.substr(1))});
  std::vector<ExprPtr> ways{sequence({digit(low, low), beside(least.substr(1), true)}),
                            sequence({digit(high, high), beside(most.substr(1), false)})};
  if (low + 1 < high)
    ways.push_back(sequence({digit(static_cast<char>(low + 1), static_cast<char>(high - 1)),
                             digits(least.size() - 1)}));
  return either(std::move(ways));
}

// Whole numbers without a sign, 0 <= least <= most.
ExprPtr unsigned_between(int64_t least, int64_t most) {
  std::vector<ExprPtr> ways;
  for (int64_t from = least; from <= most;) {
    const std::string low = std::to_string(from);
    int64_t same_length = 9;
    for (size_t i = 1; i < low.size(); ++i) same_length = same_length * 10 + 9;
    const int64_t to = std::min(most, same_length);
    ways.push_back(between(low, std::to_string(to)));
    from = to + 1;
  }
  return either(std::move(ways));
}

struct Bounds {
  int64_t least, most;
};
Bounds checked(std::optional<int64_t> least, std::optional<int64_t> most) {
  const Bounds bounds{least.value_or(-kLargestInteger), most.value_or(kLargestInteger)};
  if (bounds.least > bounds.most || bounds.least < -kLargestInteger ||
      bounds.most > kLargestInteger)
    throw Error(ErrorKind::kUser,
                fmt::format("there is no number from {} to {} that a guide can give", bounds.least,
                            bounds.most),
                fmt::format("bounds are in order, and within {}", kLargestInteger));
  return bounds;
}
}  // namespace

ExprPtr integers(std::optional<int64_t> least, std::optional<int64_t> most) {
  const Bounds bounds = checked(least, most);
  std::vector<ExprPtr> ways;
  if (bounds.most >= 0)
    ways.push_back(unsigned_between(std::max<int64_t>(bounds.least, 0), bounds.most));
  if (bounds.least < 0)
    ways.push_back(sequence(
        {literal("-"), unsigned_between(std::max<int64_t>(-bounds.most, 1), -bounds.least)}));
  return either(std::move(ways));
}

ExprPtr numbers(std::optional<int64_t> least, std::optional<int64_t> most) {
  const auto fraction = sequence({literal("."), repeat(digit(), 1, kDigits)});
  if (!least && !most) {
    const auto exponent =
        sequence({either({literal("e"), literal("E")}),
                  optional(either({literal("+"), literal("-")})), repeat(digit(), 1, 2)});
    const auto whole =
        either({literal("0"), sequence({digit('1', '9'), repeat(digit(), 0, kDigits - 1)})});
    return sequence({optional(literal("-")), whole, optional(fraction), optional(exponent)});
  }
  const Bounds bounds = checked(least, most);
  const auto zeros = sequence({literal("."), repeat(literal("0"), 1, kDigits)});
  std::vector<ExprPtr> ways;
  // Of either sign: whole parts with any fraction up to the bound, and the bound itself.
  const auto add = [&](const char* sign, int64_t low, int64_t high) {
    if (low < high)
      ways.push_back(
          sequence({literal(sign), unsigned_between(low, high - 1), optional(fraction)}));
    ways.push_back(sequence({literal(sign), literal(std::to_string(high)), optional(zeros)}));
  };
  if (bounds.most >= 0) add("", std::max<int64_t>(bounds.least, 0), bounds.most);
  if (bounds.least < 0) add("-", std::max<int64_t>(-bounds.most, 0), -bounds.least);
  return either(std::move(ways));
}

}  // namespace sluice::guide
