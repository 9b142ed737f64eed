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

ExprPtr multiples(int64_t of, std::optional<int64_t> least, std::optional<int64_t> most,
                  Grammar& grammar) {
  constexpr int64_t kMostValues = 4096;
  if (of == 1) return integers(least, most);
  if (least && most) {
    const Bounds bounds = checked(least, most);
    const int64_t first = bounds.least / of + (bounds.least % of > 0),
                  last = bounds.most / of - (bounds.most % of < 0);
    if (first > last)
      throw Error(ErrorKind::kUser,
                  fmt::format("there is no multiple of {} from {} to {}", of, *least, *most));
    if (last - first >= kMostValues) return nullptr;
    std::vector<ExprPtr> ways;
    for (int64_t i = first; i <= last; ++i) ways.push_back(literal(std::to_string(i * of)));
    return either(std::move(ways));
  }
  // What is left of the digits so far, modulo `of`.
  const bool has_negative = !least || *least < 0, has_zero = !least || *least <= 0;
  if (most || (least && (*least < 0 || *least > of))) return nullptr;
  std::vector<int32_t> rules(static_cast<size_t>(of));
  for (int32_t& rule : rules) rule = grammar.add_rule();
  const auto after = [&](int64_t rest, char first) {
    std::vector<ExprPtr> ways;
    for (char c = first; c <= '9'; ++c)
      ways.push_back(
          sequence({digit(c, c), call(rules[static_cast<size_t>((rest * 10 + (c - '0')) % of)])}));
    return ways;
  };
  for (int64_t rest = 0; rest < of; ++rest) {
    auto ways = after(rest, '0');
    if (rest == 0) ways.push_back(sequence({}));
    grammar.define(rules[static_cast<size_t>(rest)], either(std::move(ways)));
  }
  std::vector<ExprPtr> all{either(after(0, '1'))};
  if (has_negative) all.push_back(sequence({literal("-"), all.front()}));
  if (has_zero) all.push_back(literal("0"));
  return either(std::move(all));
}

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal out;
  out.is_negative = text.starts_with('-');
  if (out.is_negative) text.remove_prefix(1);
  std::string digits;
  int64_t point = -1, exponent = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      point = static_cast<int64_t>(digits.size());
    } else if (text[i] == 'e' || text[i] == 'E') {
      exponent = std::stol(std::string(text.substr(i + 1)));
      break;
    } else {
      digits += text[i];
    }
  }
  point = (point < 0 ? static_cast<int64_t>(digits.size()) : point) + exponent;
  if (point > 400 || point < -400) return std::nullopt;
  if (point < 0) digits.insert(0, static_cast<size_t>(-point), '0');
  if (point > static_cast<int64_t>(digits.size()))
    digits.append(static_cast<size_t>(point) - digits.size(), '0');
  const auto cut = static_cast<size_t>(std::max<int64_t>(point, 0));
  std::string whole = digits.substr(0, cut);
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  if (whole.size() > kDigits) return std::nullopt;
  out.whole = whole.empty() ? 0 : std::stoll(whole);
  out.fraction = digits.substr(cut);
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  out.is_negative = out.is_negative && (out.whole > 0 || !out.fraction.empty());
  return out;
}

namespace {
// Digits behind a point, as long as they are bound from below, from above or both by those of
// `least` and `most`. Null: there are none.
class Fractions {
 public:
  Fractions(const Decimal* least, const Decimal* most, int32_t digits)
      : least_(least), most_(most), digits_(digits) {}

  /// With the point, or nothing.
  ExprPtr any() const {
    std::vector<ExprPtr> ways;
    if (ends(0, least_, most_)) ways.push_back(sequence({}));
    if (const ExprPtr some = from(0, least_ != nullptr, most_ != nullptr))
      ways.push_back(sequence({literal("."), some}));
    return ways.empty() ? nullptr : either(std::move(ways));
  }

 private:
  static char at(const Decimal& of, size_t i) {
    return i < of.fraction.size() ? of.fraction[i] : '0';
  }
  static bool has_more(const Decimal& of, size_t i) { return i < of.fraction.size(); }
  // Whether digits that have been those of the bounds may end before digit i.
  static bool ends(size_t i, const Decimal* least, const Decimal* most) {
    if (least && (has_more(*least, i) || least->is_excluded)) return false;
    return !most || has_more(*most, i) || !most->is_excluded;
  }
  // One digit and more, from the i-th on.
  ExprPtr from(size_t i, bool is_low, bool is_high) const {
    const int32_t left = digits_ - static_cast<int32_t>(i);
    if (left <= 0) return nullptr;
    if (!is_low && !is_high) return repeat(digit(), 1, left);
    const char low = is_low ? at(*least_, i) : '0', high = is_high ? at(*most_, i) : '9';
    std::vector<ExprPtr> ways;
    const auto add = [&](char first, char last, bool stays_low, bool stays_high) {
      if (first > last) return;
      std::vector<ExprPtr> rest;
      if (ends(i + 1, stays_low ? least_ : nullptr, stays_high ? most_ : nullptr))
        rest.push_back(sequence({}));
      if (const ExprPtr more = from(i + 1, stays_low, stays_high)) rest.push_back(more);
      if (!rest.empty()) ways.push_back(sequence({digit(first, last), either(std::move(rest))}));
    };
    if (low == high && is_low && is_high) {
      add(low, low, true, true);
    } else {
      if (is_low) add(low, low, true, false);
      if (is_high) add(high, high, false, true);
      add(static_cast<char>(low + is_low), static_cast<char>(high - is_high), false, false);
    }
    return ways.empty() ? nullptr : either(std::move(ways));
  }

  const Decimal* least_;
  const Decimal* most_;
  int32_t digits_;
};

// 0 or more, from `least` to `most`; null bounds: from 0, without an end. Null: there is none.
ExprPtr unsigned_numbers(const Decimal* least, const Decimal* most, int32_t digits) {
  const int64_t low = least ? least->whole : 0, high = most ? most->whole : kLargestInteger;
  std::vector<ExprPtr> ways;
  const auto add = [&](int64_t from, int64_t to, const Decimal* above, const Decimal* below) {
    if (from > to) return;
    if (const ExprPtr fraction = Fractions(above, below, digits).any())
      ways.push_back(sequence({unsigned_between(from, to), fraction}));
  };
  if (least && most && low == high) {
    add(low, low, least, most);
  } else {
    if (least) add(low, low, least, nullptr);
    if (most) add(high, high, nullptr, most);
    add(low + (least != nullptr), high - (most != nullptr), nullptr, nullptr);
  }
  return ways.empty() ? nullptr : either(std::move(ways));
}
}  // namespace

ExprPtr numbers(const std::optional<Decimal>& least, const std::optional<Decimal>& most,
                int32_t digits) {
  if (!least && !most && digits == kDigits) {
    const auto fraction = sequence({literal("."), repeat(digit(), 1, kDigits)});
    const auto exponent =
        sequence({either({literal("e"), literal("E")}),
                  optional(either({literal("+"), literal("-")})), repeat(digit(), 1, 2)});
    const auto whole =
        either({literal("0"), sequence({digit('1', '9'), repeat(digit(), 0, kDigits - 1)})});
    return sequence({optional(literal("-")), whole, optional(fraction), optional(exponent)});
  }
  const Decimal zero;
  std::vector<ExprPtr> ways;
  const auto positive = [&](const std::optional<Decimal>& from, const std::optional<Decimal>& to,
                            const char* sign) {
    if (to && to->is_negative && (to->whole > 0 || !to->fraction.empty())) return;
    const Decimal* low = from && !from->is_negative ? &*from : &zero;
    if (const ExprPtr found = unsigned_numbers(low, to ? &*to : nullptr, digits))
      ways.push_back(sequence({literal(sign), found}));
  };
  const auto mirrored = [](std::optional<Decimal> of) {
    if (of) of->is_negative = !of->is_negative && (of->whole > 0 || !of->fraction.empty());
    return of;
  };
  positive(least, most, "");
  if (!least || least->is_negative) positive(mirrored(most), mirrored(least), "-");
  if (ways.empty())
    throw Error(ErrorKind::kUser, "there is no number within these bounds that a guide can give",
                "bounds are in order");
  return either(std::move(ways));
}

}  // namespace sluice::guide
