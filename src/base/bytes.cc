#include "src/base/bytes.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "src/base/error.h"

namespace sluice {

namespace {
double unit_of(std::string_view suffix) {
  if (suffix.empty() || suffix == "B") return 1;
  constexpr std::string_view letters = "KMGTP";
  const size_t power = letters.find(suffix[0] == 'k' ? 'K' : suffix[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = suffix.substr(1);
  const double exponent = static_cast<double>(power + 1);
  if (rest.empty() || rest == "i" || rest == "iB") return std::pow(1024.0, exponent);
  if (rest == "B") return std::pow(1000.0, exponent);
  return 0;
}
}  // namespace

int64_t parse_bytes(std::string_view text, std::string_view flag) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  std::string_view suffix(end, copy.size() - static_cast<size_t>(end - copy.c_str()));
  while (suffix.starts_with(' ')) suffix.remove_prefix(1);
  const double unit = unit_of(suffix);
  const double bytes = number * unit;
  if (end == copy.c_str() || unit == 0 || !(bytes >= 0) || bytes > 9e18)
    throw Error(ErrorKind::kUser, fmt::format("{}: \"{}\" is not a size", flag, text),
                "write a number with a unit, as 16GiB, 200G, 1.5TiB or 512MB");
  return static_cast<int64_t>(bytes);
}

std::string format_bytes(int64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 5) value /= 1024, ++unit;
  if (unit == 0) return fmt::format("{}B", bytes);
  return fmt::format("{:.{}f}{}", value,
                     std::abs(value) >= 100  ? 0
                     : std::abs(value) >= 10 ? 1
                                             : 2,
                     units[unit]);
}

std::string format_rate(double rate) {
  if (rate >= 1e9) return fmt::format("{:.2f}GB/s", rate / 1e9);
  if (rate >= 1e6) return fmt::format("{:.0f}MB/s", rate / 1e6);
  return fmt::format("{:.0f}kB/s", rate / 1e3);
}

std::string format_seconds(double seconds) {
  if (seconds < 1) return fmt::format("{:.1f}ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.2f}s", seconds);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

}  // namespace sluice
