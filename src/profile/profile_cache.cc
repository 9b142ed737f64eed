#include "src/profile/profile_cache.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "src/base/error.h"
#include "src/device/memory_limit.h"

namespace sluice {

namespace {
constexpr double kMostChange = 4;

std::filesystem::path cache_folder() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg)
    return std::filesystem::path(xdg) / "sluice";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::filesystem::path(home) / ".cache" / "sluice";
  return {};
}

uint64_t fold(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string processor_line() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line;
  return "unknown";
}

double bounded(double old, double measured) {
  return std::clamp(measured, old / kMostChange, old * kMostChange);
}

void set_measured(policy::Figure& figure, double value) {
  figure.value = bounded(figure.value, value);
  figure.source = policy::FigureSource::kMeasured;
  figure.note = "from a run";
}

void slow_down(policy::Processor& processor, double factor) {
  const double by = std::clamp(factor, 1 / kMostChange, kMostChange);
  for (policy::MatmulRate& row : processor.matmul) row.flops.value /= by;
  processor.memory_read.value /= by;
  for (policy::AttentionRate& row : processor.attention) {
    row.decode_bytes.value /= by;
    row.prefill_flops.value /= by;
    row.decode_flops.value /= by;
  }
}
}  // namespace

std::filesystem::path profile_cache_path(const std::string& offload_dir, int threads) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return {};
  struct stat stats {};
  const std::string disk =
      offload_dir.empty() ? std::filesystem::temp_directory_path().string() : offload_dir;
  const bool is_there = stat(disk.c_str(), &stats) == 0;
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const std::string key =
      fmt::format("{}|{}|{}|{}|{}|{}", processor_line(), cores, threads, memory_limit().total_bytes,
                  is_there ? static_cast<uint64_t>(stats.st_dev) : 0, SLUICE_KERNELS);
  return folder / fmt::format("profile-{:016x}.json", fold(0xcbf29ce484222325u, key));
}

std::optional<policy::Profile> load_cached_profile(
    const std::filesystem::path& path, const std::function<void(std::string_view)>& log) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return policy::parse_profile(text.str(), path.string());
  } catch (const Error& error) {
    if (log) log(fmt::format("{}; it is measured again", error.text()));
    return std::nullopt;
  }
}

void store_profile(const policy::Profile& profile, const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const std::filesystem::path partial = path.string() + fmt::format(".partial-{}", getpid());
  {
    std::ofstream file(partial);
    file << policy::profile_to_json(profile);
    if (!file.flush()) {
      const int code = errno;
      std::filesystem::remove(partial, error);
      throw Error(ErrorKind::kFile,
                  fmt::format("{} can't be written: {}", path.string(), std::strerror(code)),
                  "check the folder and its free space");
    }
  }
  std::filesystem::rename(partial, path, error);
  if (error) {
    std::filesystem::remove(partial);
    throw Error(ErrorKind::kFile,
                fmt::format("{} can't be written: {}", path.string(), error.message()),
                "check the folder");
  }
}

policy::Profile load_or_measure(const MeasureOptions& options,
                                const std::function<void(std::string_view)>& log) {
  const std::filesystem::path path = profile_cache_path(options.offload_dir, options.threads);
  if (!path.empty())
    if (auto cached = load_cached_profile(path, log)) return *cached;
  policy::Profile profile = measure_profile(options);
  if (path.empty()) return profile;
  try {
    store_profile(profile, path);
  } catch (const Error& error) {
    if (log) log(error.text());
  }
  return profile;
}

policy::Profile recalibrated(policy::Profile profile, const std::map<Lane, double>& transfer_rates,
                             const std::map<Lane, double>& compute_factors) {
  for (const auto& [lane, rate] : transfer_rates) {
    if (!(rate > 0)) continue;
    switch (lane) {
      case Lane::kDiskRead:
      case Lane::kDiskWrite: {
        // Several disks keep their proportions.
        const double before = lane == Lane::kDiskRead ? profile.disk_read() : profile.disk_write();
        for (policy::Disk& disk : profile.disks) {
          policy::Figure& figure = lane == Lane::kDiskRead ? disk.read : disk.write;
          policy::Figure& mixed = lane == Lane::kDiskRead ? disk.mixed_read : disk.mixed_write;
          const double old = figure.value;
          set_measured(figure, old * rate / before);
          mixed.value *= figure.value / old;
          if (lane == Lane::kDiskRead) disk.busy_read.value *= figure.value / old;
        }
        break;
      }
      case Lane::kHostToDevice: set_measured(profile.link.to_device, rate); break;
      case Lane::kDeviceToHost: set_measured(profile.link.to_host, rate); break;
      default: break;
    }
  }
  for (const auto& [lane, factor] : compute_factors) {
    if (!(factor > 0)) continue;
    if (lane == Lane::kDeviceCompute && profile.device)
      slow_down(*profile.device, factor);
    else if (lane == Lane::kDeviceCompute || lane == Lane::kHostCompute)
      slow_down(profile.host, factor);
  }
  return profile;
}

}  // namespace sluice
