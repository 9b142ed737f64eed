#pragma once
// Where a machine's profile is kept: one JSON file in the user's cache folder for each (processor,
// memory, disk of the offload folder, the kernels that this program has: after an update with other
// kernels the machine is measured again). Written whole or not at all; a broken one is measured
// again.
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "policy/profile.h"
#include "src/profile/measure.h"
#include "src/schedule/task.h"

namespace sluice {

/// $XDG_CACHE_HOME/sluice or ~/.cache/sluice, + profile-<key>.json. Empty when neither is set.
std::filesystem::path profile_cache_path(const std::string& offload_dir, int threads);

/// The cached profile, or nothing when there is none; a broken file is told to `log` and ignored.
std::optional<policy::Profile> load_cached_profile(
    const std::filesystem::path& path, const std::function<void(std::string_view)>& log);

/// Writes to a file beside it and renames. Errors: kFile.
void store_profile(const policy::Profile& profile, const std::filesystem::path& path);

/// The cached profile, else a measured one, which is then cached (a folder that can't be written is
/// told to `log` and costs the next run another measurement).
policy::Profile load_or_measure(const MeasureOptions& options,
                                const std::function<void(std::string_view)>& log);

/// `profile` with measured lane rates: bytes per second for transfer lanes; for compute lanes the
/// factor measured seconds / predicted seconds, by which all its rates are divided. Changes beyond
/// a factor of four are cut to that: they say that something else was wrong.
policy::Profile recalibrated(policy::Profile profile, const std::map<Lane, double>& transfer_rates,
                             const std::map<Lane, double>& compute_factors);

}  // namespace sluice
