#pragma once
// Sizes as people write them ("16GiB", "200G", "1.5TiB") and as we print them. Parsing is for the
// edge: tools/ and policy files.
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

/// "16GiB", "16G", "1.5TiB", "512MB", "4096" -> bytes. K/M/G/T and KiB.. are powers of 1024,
/// KB/MB/GB/TB powers of 1000. Errors: kUser naming `flag` and the text.
int64_t parse_bytes(std::string_view text, std::string_view flag);

/// "1.21GiB", "408MiB", "17B".
std::string format_bytes(int64_t bytes);
/// "2.41GB/s" (powers of 1000, as disks are sold).
std::string format_rate(double bytes_per_second);
/// "0.8ms", "3.21s", "4m12s", "2h05m".
std::string format_seconds(double seconds);

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGiB = 1024 * kMiB;

/// `value` up to the next multiple of `unit`.
constexpr int64_t round_up(int64_t value, int64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}
constexpr int64_t round_down(int64_t value, int64_t unit) noexcept { return value / unit * unit; }

}  // namespace sluice
