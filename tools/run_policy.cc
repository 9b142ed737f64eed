#include "tools/run_policy.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "io/disk_probe.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/device/memory_limit.h"
#include "src/profile/learn.h"
#include "src/profile/profile_cache.h"
#include "tools/arguments.h"
#include "tools/gpu.h"

namespace sluice::tools {

namespace {
void tell(std::string_view line) {
  std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(line.size()), line.data());
}

bool is_this_machine(const EngineFlags& flags) {
  return flags.hardware.empty() || flags.hardware == "this";
}

// The rate at which the model's own disk reads now: the profile knows the offload folder's, and
// shared disks drift. 0 when there is nothing large to read.
double probe_model_disk(const std::string& model) {
  constexpr int64_t kBytes = 384 * kMiB;
  constexpr int64_t kMostDepth = 64;
  std::error_code error;
  std::filesystem::path largest;
  uintmax_t most = 0;
  const auto look = [&](const std::filesystem::path& path) {
    const uintmax_t bytes = std::filesystem::file_size(path, error);
    if (!error && bytes > most) most = bytes, largest = path;
  };
  if (is_folder(model)) {
    for (const std::filesystem::path& path : folder_entries(model)) look(path);
  } else {
    look(model);
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

void set_disk_rate(policy::Profile& profile, double rate) {
  if (profile.disks.empty()) return;
  policy::Disk& disk = profile.disks.front();
  const double factor = rate / disk.read.value;
  for (policy::Figure* figure : {&disk.read, &disk.mixed_read, &disk.busy_read})
    figure->value *= factor;
}

// The machine as its profile says, with the emulated device that was asked for.
policy::Profile machine_profile(const EngineFlags& flags, const EngineOptions& options,
                                const std::stop_token& cancel) {
  policy::Profile profile;
  if (is_this_machine(flags)) {
    MeasureOptions measure;
    measure.cancel = cancel;
    measure.offload_dir = flags.offload_dir;
    measure.threads = flags.threads;
    measure.quick = true;
    measure.progress = [](std::string_view what) {
      tell(
          fmt::format("no profile of this machine yet, measuring {} (once; sluice profile takes "
                      "longer and is more exact)",
                      what));
    };
    profile = load_or_measure(measure, tell);
    flags.others =
        std::make_shared<OtherLoad>(flags.threads > 0 ? flags.threads : usable_processors());
  } else {
    profile = find_profile(flags.hardware);
    if (profile.device && options.backend) return profile;  // sluice profile --gpu made it
    if (profile.device)
      throw Error(
          ErrorKind::kUser,
          fmt::format("--hardware {}: that machine has a device, this run has not", flags.hardware),
          "sluice plan answers for other machines; a run takes a profile of this one");
  }
  if (options.backend) profile = measure_with_gpu(profile, *options.backend);
  if (options.device)
    profile = emulated_profile(profile, options.device->memory_bytes, options.device->to_device,
                               options.device->to_host, options.device->latency_seconds,
                               options.device->flops);
  return profile;
}

}  // namespace

void search_for_policy(const EngineFlags& flags, EngineOptions& options, std::stop_token cancel) {
  if (flags.hardware == "none") return;
  auto engine_options = std::make_shared<EngineOptions>(options);
  const auto path = profile_cache_path(flags.offload_dir, flags.threads);
  std::error_code unreadable;  // then it is measured, and said why it is not kept
  const bool is_kept = !path.empty() && std::filesystem::exists(path, unreadable);
  const bool is_asked_for = is_kept || !flags.hardware.empty();
  // By hand: expected only where a profile is at hand; nobody asked for a measurement.
  if (options.policy && !is_asked_for) return;
  options.choose_policy = [&flags, engine_options, is_asked_for, cancel = std::move(cancel)](
                              const policy::PlanInput& input, const policy::Policy& start) {
    if ((!is_asked_for || flags.prefers_memory) && !engine_options->policy &&
        !engine_options->device && !engine_options->backend) {
      // Everything in memory is the best there is: nothing to measure for.
      const policy::Plan all = policy::default_plan(input, start);
      if (all.streamed_weight_bytes == 0 && all.disk_pages == 0) return all.policy;
    }
    policy::Profile profile;
    try {
      profile = machine_profile(flags, *engine_options, cancel);
    } catch (const Error& error) {
      // A profile that somebody named is used or refused.
      if (!is_this_machine(flags) || error.kind() == ErrorKind::kUser ||
          error.kind() == ErrorKind::kCancelled)
        throw;
      tell(fmt::format("this machine can't be measured ({}): filling the budget without a search",
                       error.text()));
      return engine_options->policy ? *engine_options->policy
                                    : policy::default_plan(input, start).policy;
    }
    const int64_t memory = input.memory_budget_bytes + input.device_budget_bytes;
    if (input.model->weight_bytes() > memory * 9 / 10)  // the disk will matter
      if (const double rate = probe_model_disk(flags.model); rate > 0) set_disk_rate(profile, rate);
    flags.chosen = std::make_shared<app::AutoPolicy>(std::move(profile));
    policy::SearchConstraints constraints;
    if (flags.micro_batch_tokens > 0) constraints.micro_batch_tokens = flags.micro_batch_tokens;
    if (!engine_options->policy) return flags.chosen->choose(input, start, constraints);
    flags.chosen->expect(input, *engine_options->policy);
    return *engine_options->policy;
  };
}

namespace {
// Whether weights come from the disk that the profile is of.
bool reads_profiled_disk(const EngineFlags& flags, const policy::Profile& profile) {
  struct stat model {};
  struct stat folder {};
  return !profile.disks.empty() && flags.io != "buffered" &&
         stat(flags.model.c_str(), &model) == 0 &&
         stat(profile.disks.front().path.c_str(), &folder) == 0 && model.st_dev == folder.st_dev;
}

RunFindings findings_of(const EngineFlags& flags, const Engine& engine,
                        const policy::Profile& profile) {
  const EngineStats stats = engine.stats();
  RunFindings out;
  out.kernels = stats.kernels;
  out.wall_seconds = stats.wall_seconds;
  out.weight_bytes = engine.model().shape().weight_bytes();
  // An emulated device's copies take the cores too.
  out.is_quiet = !engine.options().device && flags.others->is_quiet(flags.others->cores_taken());
  const bool on_cores = !engine.options().backend;
  for (const auto& [lane, of] : stats.lanes) {
    if (lane == Lane::kHostCompute || (lane == Lane::kDeviceCompute && on_cores))
      out.compute_seconds += of.busy_seconds;
    if (lane == Lane::kDiskWrite ||
        (lane == Lane::kDiskRead && reads_profiled_disk(flags, profile)))
      out.transfers[lane] = {of.tasks, of.bytes, of.busy_seconds};
  }
  return out;
}
}  // namespace

void learn_from_run(const EngineFlags& flags, const Engine& engine) {
  if (!flags.others) {
    if (flags.recalibrate)
      tell("--recalibrate: there is no kept profile to change (sluice profile makes one)");
    return;
  }
  constexpr double kWorthKeeping = 1.02;
  constexpr double kWorthTelling = 1.5;
  const auto path = profile_cache_path(flags.offload_dir, flags.threads);
  try {
    change_cached_profile(
        path,
        [&](const policy::Profile& kept) -> std::optional<policy::Profile> {
          const Lesson lesson = learn(kept, findings_of(flags, engine, kept),
                                      flags.recalibrate ? Trust::kAll : Trust::kByEvidence);
          if (lesson.most_change < kWorthKeeping) return std::nullopt;
          if (flags.recalibrate || lesson.most_change > kWorthTelling)
            tell(
                fmt::format("the machine's profile was off by {:.1f}x ({}) and has learned from "
                            "this run: {}",
                            lesson.most_change, lesson.of, path.string()));
          return lesson.profile;
        },
        tell);
  } catch (const Error& error) {
    tell("the machine's profile stays as it is: " + error.text());
  }
}

}  // namespace sluice::tools
