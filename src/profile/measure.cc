#include "src/profile/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/side_by_side.h"
#include "src/base/team.h"
#include "src/device/memory_limit.h"
#include "src/device/memory_probe.h"
#include "src/profile/measure_parts.h"
#include "src/profile/other_load.h"

namespace sluice {

namespace {
using policy::Figure;
using policy::FigureSource;

// The largest buffers measure no better.
constexpr int64_t kMostMemory = 512 * kMiB;
constexpr int64_t kLeastMemory = 6 * kMiB;

std::string now_iso() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// A quarter of what is free: the run has its model's headers open and goes on afterwards.
int64_t memory_to_use(const MeasureOptions& options, const MemoryLimit& memory) {
  if (options.memory_bytes > 0) return std::max(options.memory_bytes, kLeastMemory);
  return std::clamp(memory.available_bytes / 4, kLeastMemory, kMostMemory);
}

// Rates by thread count; where `out` has them, the better ones.
void measure_memory(const MeasureLimits& limits, std::vector<policy::ThreadRate>& out) {
  const MemoryProbe probe(limits.memory_bytes);
  size_t row = 0;
  for (int count = 1; count <= limits.threads; ++row) {
    stop_if_asked(limits.cancel);
    const double rate = probe.read_rate(count);
    if (row == out.size()) out.push_back({count, best_of({rate}, "plain sum, best of ten")});
    Figure& figure = out[row].memory_read;
    figure = best_of({figure.value, rate}, figure.note);
    count = count < limits.threads ? std::min(2 * count, limits.threads) : count + 1;
  }
}

policy::Profile only_disk(const MeasureOptions& options, const policy::Disk& disk,
                          int64_t disk_bytes) {
  policy::Profile out = *options.only_disk_of;
  policy::Disk measured = disk;
  // The cores are not asked again: their effect on the disk stays in proportion.
  if (!out.disks.empty()) {
    const policy::Disk& before = out.disks.front();
    measured.busy_read = before.busy_read;
    measured.busy_read.value *= measured.read.value / before.read.value;
  }
  out.disks = {measured};
  out.disk_bytes = disk_bytes;
  return out;
}

void describe(policy::Profile& out, const MeasureOptions& options, const MeasureLimits& limits,
              double cores_taken) {
  out.name = fmt::format("{} x{}", out.host.name, limits.threads);
  out.description = fmt::format("measured by sluice{}", options.quick ? " (quick)" : "");
  if (!OtherLoad(limits.threads).is_quiet(cores_taken))
    out.description += fmt::format(
        "; beside other processes, which had {:.1f} of the {} cores: rates are too low, and mend "
        "themselves by what runs find",
        cores_taken, limits.threads);
}
}  // namespace

policy::Profile measure_profile(const MeasureOptions& options) {
  const auto say = [&](std::string_view what) {
    stop_if_asked(options.cancel);
    if (options.progress) options.progress(what);
  };
  const MemoryLimit memory = memory_limit();
  const MeasureLimits limits{.memory_bytes = memory_to_use(options, memory),
                             .product_seconds = options.quick ? 7.0 : 30.0,
                             .threads = options.threads > 0 ? options.threads : usable_processors(),
                             .quick = options.quick,
                             .most_rows = options.most_rows,
                             .cancel = options.cancel};
  const std::string folder = options.offload_dir.empty() ? temporary_folder() : options.offload_dir;
  policy::Profile out;
  out.host_bytes = memory.total_bytes;
  out.disk_bytes = disk_space(folder);
  out.date = now_iso();
  say("the disk");
  const int64_t file_bytes = options.disk_bytes > 0 ? options.disk_bytes
                             : options.quick        ? 512 * kMiB
                                                    : kGiB;
  DiskMeasurement disk(folder, file_bytes, limits);
  out.disks = {disk.measure()};
  if (options.only_disk_of) return only_disk(options, out.disks.front(), out.disk_bytes);
  say("memory");
  measure_memory(limits, out.host_memory);
  say("products and attention");
  Team team(limits.threads);
  const Team::Use use(team);
  double cores_taken = 0;
  out.host = measure_host_processor(limits, cores_taken);
  measure_memory(limits, out.host_memory);
  out.host.memory_read = out.host_memory.back().memory_read;
  say("products beside copies and reads");
  measure_copies(limits, out);
  disk.measure_beside_products(out);
  describe(out, options, limits, cores_taken);
  validate(out);
  return out;
}

policy::Profile emulated_profile(const policy::Profile& cpu, int64_t device_bytes, double to_device,
                                 double to_host, double latency_seconds, double flops,
                                 double host_flops) {
  constexpr double kUnlimited = 1e12;
  policy::Profile out = cpu;
  out.name = cpu.name + " with an emulated device";
  out.device = cpu.host;
  if (flops > 0) {
    for (policy::MatmulRate& row : out.device->matmul)
      row.flops.value = std::min(row.flops.value, flops);
    for (policy::AttentionRate& row : out.device->attention)
      row.prefill_flops.value = std::min(row.prefill_flops.value, flops);
  }
  if (host_flops > 0)
    for (policy::MatmulRate& row : out.host.matmul)
      row.flops.value = std::min(row.flops.value, host_flops);
  const auto set = [](double value) {
    return Figure{value, 0, FigureSource::kEstimate, "as set for the emulated link"};
  };
  // The copies are real: no link is faster than a core copies.
  double copy = kUnlimited;
  if (cpu.copy_rate.value > 0)
    copy = cpu.copy_rate.value;
  else if (!cpu.host_memory.empty())
    copy = cpu.host_memory.front().memory_read.value * 0.4;
  out.link.to_device = set(std::min(to_device > 0 ? to_device : kUnlimited, copy));
  out.link.to_host = set(std::min(to_host > 0 ? to_host : kUnlimited, copy));
  out.link.both_share = set(1);
  out.link.latency_seconds = set(latency_seconds);
  out.shares_cores = true;
  out.device_bytes = device_bytes;
  return out;
}

}  // namespace sluice
