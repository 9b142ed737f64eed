#include "src/serve/keep_time.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace sluice::serve {

namespace {
constexpr double kMostSeconds = 100.0 * 365 * 24 * 3600;

// The seconds of a unit at the beginning of `text`, which it is taken from; 0: there is none.
double take_unit(std::string_view& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"s", 1}, {"m", 60}, {"h", 3600}};
  for (const auto& [name, seconds] : kUnits)
    if (text.starts_with(name)) {
      text.remove_prefix(name.size());
      return seconds;
    }
  return 0;
}
}  // namespace

KeepTime keep_time_of(double seconds) {
  if (seconds < 0) return std::nullopt;
  return std::chrono::milliseconds(std::llround(std::min(seconds, kMostSeconds) * 1000));
}

std::optional<KeepTime> read_keep_time(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  if (text.empty()) return std::nullopt;
  double seconds = 0;
  for (bool is_first = true; !text.empty(); is_first = false) {
    double number = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, number, std::chars_format::fixed);
    if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    const bool is_bare = is_first && text.empty();
    const double unit = is_bare ? 1 : take_unit(text);
    if (unit == 0) return std::nullopt;
    seconds += number * unit;
  }
  return keep_time_of(is_negative ? -std::max(seconds, 1e-9) : seconds);
}

}  // namespace sluice::serve
