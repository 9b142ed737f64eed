#include "src/device/emulated_device.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
[[noreturn]] void refuse(std::string_view key, std::string_view value, const char* mend) {
  throw Error(ErrorKind::kUser, fmt::format("`device` emulated: {}={}", key, value), mend);
}

// A number and what follows it.
double leading_number(std::string_view key, std::string_view value, std::string_view* unit) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number < 0)
    refuse(key, value, "write a number that is not negative, with its unit");
  *unit = value.substr(static_cast<size_t>(end - value.data()));
  return number;
}

double parse_rate(std::string_view key, std::string_view value) {
  std::string_view unit;
  const double number = leading_number(key, value, &unit);
  if (unit == "B/s" || unit.empty()) return number;
  if (unit == "MB/s") return number * 1e6;
  if (unit == "GB/s") return number * 1e9;
  if (unit == "MiB/s") return number * static_cast<double>(kMiB);
  if (unit == "GiB/s") return number * static_cast<double>(kGiB);
  refuse(key, value, "rates are written 12GB/s, 800MB/s, 11GiB/s; 0 means no limit");
}

double parse_seconds(std::string_view key, std::string_view value) {
  std::string_view unit;
  const double number = leading_number(key, value, &unit);
  const double seconds = unit == "s"    ? number
                         : unit == "ms" ? number * 1e-3
                         : unit == "us" ? number * 1e-6
                         : number == 0  ? 0
                                        : -1;
  if (seconds < 0 || seconds > 1) refuse(key, value, "times are written 10us, 0.1ms; at most 1s");
  return seconds;
}

double parse_flops(std::string_view key, std::string_view value) {
  std::string_view unit;
  const double number = leading_number(key, value, &unit);
  if (unit == "TFLOP/s" || unit == "T") return number * 1e12;
  if (unit == "GFLOP/s" || unit == "G") return number * 1e9;
  if (unit.empty()) return number;
  refuse(key, value, "rates are written 2TFLOP/s, 500GFLOP/s; 0 means no limit");
}
}  // namespace

EmulatedSpec parse_emulated_spec(std::string_view text) {
  EmulatedSpec spec;
  constexpr std::string_view kName = "emulated";
  if (!text.starts_with(kName) || (text.size() > kName.size() && text[kName.size()] != ':'))
    throw Error(ErrorKind::kUser, fmt::format("`device` {}: no such device", text),
                "write cpu, or emulated:mem=4GiB,h2d=12GB/s,d2h=12GB/s,latency=10us");
  text.remove_prefix(std::min(text.size(), kName.size() + 1));
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : item.substr(equals + 1);
    if (key == "mem")
      spec.memory_bytes = parse_bytes(value, "`device` emulated:mem");
    else if (key == "h2d")
      spec.to_device = parse_rate(key, value);
    else if (key == "d2h")
      spec.to_host = parse_rate(key, value);
    else if (key == "latency")
      spec.latency_seconds = parse_seconds(key, value);
    else if (key == "flops")
      spec.flops = parse_flops(key, value);
    else if (key == "host_flops")
      spec.host_flops = parse_flops(key, value);
    else
      refuse(key, value, "keys are mem, h2d, d2h, latency, flops and host_flops");
  }
  if (spec.memory_bytes <= 0) refuse("mem", "0", "give the device some memory, such as mem=4GiB");
  return spec;
}

Link::Clock::duration Link::transfer_time(int64_t bytes) const {
  const double seconds = latency_ + (rate_ > 0 ? static_cast<double>(bytes) / rate_ : 0);
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Link::Clock::time_point Link::queue(int64_t bytes) {
  constexpr auto kOverslept = std::chrono::microseconds(100);
  const MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  free_at_ = (now - free_at_ < kOverslept ? free_at_ : now) + transfer_time(bytes);
  return free_at_;
}

Link::Clock::time_point Link::squeeze_in(int64_t bytes) {
  const MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  const Clock::duration time = transfer_time(bytes);
  free_at_ = std::max(free_at_, now) + time;
  return now + time;
}

void wait_until(Link::Clock::time_point time) {
  constexpr auto kOvershoot = std::chrono::microseconds(100);
  if (time - Link::Clock::now() > kOvershoot) std::this_thread::sleep_until(time - kOvershoot);
  while (Link::Clock::now() < time) std::this_thread::yield();
}

EmulatedDevice::EmulatedDevice(const EmulatedSpec& spec)
    : spec_(spec),
      memory_("device memory", spec.memory_bytes),
      up_(spec.to_device, spec.latency_seconds),
      down_(spec.to_host, spec.latency_seconds) {}

void EmulatedDevice::load(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Copies and comes back no sooner than the link would.
void EmulatedDevice::transfer(Direction direction, int64_t bytes,
                              const std::function<void(const Copy&)>& copies) {
  const auto arrives = (direction == Direction::kUp ? up_ : down_).queue(bytes);
  copies([](std::byte* to, const std::byte* from, int64_t count) {
    std::memcpy(to, from, static_cast<size_t>(count));
  });
  std::this_thread::sleep_until(arrives);
}

namespace {
void wait_for(Link::Clock::time_point start, double operations, double rate) {
  if (rate <= 0) return;
  const std::chrono::duration<double> least(operations / rate);
  wait_until(start + std::chrono::duration_cast<Link::Clock::duration>(least));
}
}  // namespace

void EmulatedDevice::finish_compute(Link::Clock::time_point start, double flops) const {
  wait_for(start, flops, spec_.flops);
}

void EmulatedDevice::finish_on_host(Link::Clock::time_point start, double flops) const {
  wait_for(start, flops, spec_.host_flops);
}

}  // namespace sluice
