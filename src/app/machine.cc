#include "src/app/machine.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "io/async/disk_probe.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/side_by_side.h"
#include "src/device/memory_limit.h"
#include "src/profile/measure.h"
#include "src/profile/profile_cache.h"

namespace sluice::app {

namespace {
// A change of the kept profile that is worth writing, and one that is worth telling.
constexpr double kWorthKeeping = 1.02;
constexpr double kWorthSaying = 1.5;

void say(const std::function<void(std::string_view)>& tell, const std::string& line) {
  if (tell) tell(line);
}

// Whether weights come from the disk that the profile is of.
bool reads_profiled_disk(const Engine& engine, const std::filesystem::path& model_path,
                         const policy::Profile& profile) {
  struct stat model {};
  struct stat folder {};
  return !profile.disks.empty() && engine.options().direct_io &&
         stat(model_path.c_str(), &model) == 0 &&
         stat(profile.disks.front().path.c_str(), &folder) == 0 && model.st_dev == folder.st_dev;
}

policy::Profile this_machine(const MachineOptions& options) {
  MeasureOptions measure;
  measure.cancel = options.cancel;
  measure.offload_dir = options.offload_dir;
  measure.threads = options.threads;
  measure.quick = true;
  measure.progress = [&](std::string_view what) {
    say(options.tell,
        fmt::format("no profile of this machine yet, measuring {} (once; sluice profile takes "
                    "longer and is more exact)",
                    what));
  };
  return load_or_measure(measure,
                         [&](std::string_view line) { say(options.tell, std::string(line)); });
}
}  // namespace

KeptProfile::KeptProfile(std::filesystem::path path, int threads)
    : path_(std::move(path)), others_(threads > 0 ? threads : usable_processors()) {}

RunFindings KeptProfile::findings_of(const Engine& engine, const std::filesystem::path& model_path,
                                     const policy::Profile& profile) const {
  const EngineStats stats = engine.stats();
  RunFindings out;
  out.kernels = stats.kernels;
  out.wall_seconds = stats.wall_seconds;
  out.weight_bytes = engine.model().shape().weight_bytes();
  // An emulated device's copies take the cores too.
  out.is_quiet = !engine.options().device && others_.is_quiet(others_.cores_taken());
  const bool on_cores = !engine.options().backend;
  for (const auto& [lane, of] : stats.lanes) {
    if (lane == Lane::kHostCompute || (lane == Lane::kDeviceCompute && on_cores))
      out.compute_seconds += of.busy_seconds;
    if (lane == Lane::kDiskWrite ||
        (lane == Lane::kDiskRead && reads_profiled_disk(engine, model_path, profile)))
      out.transfers[lane] = {of.tasks, of.bytes, of.busy_seconds};
  }
  return out;
}

void KeptProfile::learn(const Engine& engine, const std::filesystem::path& model_path, Trust trust,
                        const std::function<void(std::string_view)>& tell) const {
  const auto change = [&](const policy::Profile& kept) -> std::optional<policy::Profile> {
    const Lesson lesson = sluice::learn(kept, findings_of(engine, model_path, kept), trust);
    if (lesson.most_change < kWorthKeeping) return std::nullopt;
    if (trust == Trust::kAll || lesson.most_change > kWorthSaying)
      say(tell, fmt::format("the machine's profile was off by {:.1f}x ({}) and has learned from "
                            "this run: {}",
                            lesson.most_change, lesson.of, path_.string()));
    return lesson.profile;
  };
  try {
    change_cached_profile(path_, change,
                          [&](std::string_view line) { say(tell, std::string(line)); });
  } catch (const Error& error) {
    say(tell, "the machine's profile stays as it is: " + error.text());
  }
}

policy::Profile find_profile(const std::string& name_or_path) {
  if (auto shipped = policy::shipped_profile(name_or_path)) return *shipped;
  if (!is_there(name_or_path)) {
    std::string names;
    for (const std::string& name : policy::shipped_profile_names())
      names += (names.empty() ? "" : ", ") + name;
    throw Error(ErrorKind::kUser,
                "`hardware` " + name_or_path + ": neither a shipped profile nor a file of one",
                "shipped are " + names + "; sluice profile -o FILE writes one of this machine");
  }
  return policy::parse_profile(read_file(name_or_path, kMostSettingsBytes, Streams::kAllow),
                               name_or_path);
}

bool has_profile(const MachineOptions& options) {
  if (options.source != ProfileSource::kAsNeeded) return options.source != ProfileSource::kNone;
  const auto path = profile_cache_path(options.offload_dir, options.threads);
  std::error_code unreadable;  // then it is measured, and said why it is not kept
  return !path.empty() && std::filesystem::exists(path, unreadable);
}

Machine machine_of(const MachineOptions& options, const EngineOptions& engine) {
  Machine out;
  if (options.source == ProfileSource::kGiven) {
    out.profile = options.profile;
    if (out.profile.device && engine.backend) return out;  // it has been measured with the GPU
    if (out.profile.device)
      throw Error(ErrorKind::kUser,
                  fmt::format("profile {}: that machine has a device, this run has not",
                              options.profile_name),
                  "sluice plan answers for other machines; a run takes a profile of this one");
  } else {
    out.profile = this_machine(options);
    out.kept = std::make_shared<KeptProfile>(
        profile_cache_path(options.offload_dir, options.threads), options.threads);
  }
  if (engine.backend) {
    SLUICE_ASSERT(options.measure_backend, "a backend is measured by who made it");
    out.profile = options.measure_backend(out.profile, *engine.backend);
  }
  if (engine.device)
    out.profile = emulated_profile(
        out.profile, engine.device->memory_bytes, engine.device->to_device, engine.device->to_host,
        engine.device->latency_seconds, engine.device->flops, engine.device->host_flops);
  return out;
}

double model_read_rate(const std::filesystem::path& model_path) {
  constexpr int64_t kBytes = 384 * kMiB;
  constexpr int64_t kMostDepth = 64;
  std::error_code error;
  std::filesystem::path largest;
  uintmax_t most = 0;
  const auto look = [&](const std::filesystem::path& path) {
    const uintmax_t bytes = std::filesystem::file_size(path, error);
    if (!error && bytes > most) most = bytes, largest = path;
  };
  if (is_folder(model_path)) {
    for (const std::filesystem::path& path : folder_entries(model_path)) look(path);
  } else {
    look(model_path);
  }
  if (most < static_cast<uintmax_t>(kBytes / 4)) return 0;
  try {
    const int64_t depth = memory_limit().available_bytes / 8 / kMiB;
    return io::probe_read_rate(largest.string(), kBytes, kMiB,
                               static_cast<int>(std::clamp<int64_t>(depth, 1, kMostDepth)));
  } catch (const Error&) {
    return 0;  // no direct I/O here: the profile's rate stands
  }
}

void set_read_rate(policy::Profile& profile, double bytes_per_second) {
  if (profile.disks.empty()) return;
  policy::Disk& disk = profile.disks.front();
  const double factor = bytes_per_second / disk.read.value;
  for (policy::Figure* figure : {&disk.read, &disk.mixed_read, &disk.busy_read})
    figure->value *= factor;
}

}  // namespace sluice::app
