#pragma once
// Where a machine's profile is kept: one JSON file in the user's cache folder for each (processor,
// cores and threads, instruction set, disk of the offload folder, the kernels that this program
// has: after an update with other kernels the machine is measured again). Not for each memory
// limit: rates don't follow it. Written whole or not at all; a broken one is measured again.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "policy/profile.h"
#include "src/profile/measure.h"

namespace sluice {

/// $XDG_CACHE_HOME/sluice or ~/.cache/sluice, + profile-<key>.json. Empty when neither is set.
std::filesystem::path profile_cache_path(const std::string& offload_dir, int threads);

/// Beside it, + experts-<key>.json: which experts of a model were in memory
/// (EngineOptions::experts_file). Empty when neither is set.
std::filesystem::path experts_cache_path(const std::filesystem::path& model);

/// The cached profile, or nothing when there is none; a broken file is told to `log` and ignored.
std::optional<policy::Profile> load_cached_profile(
    const std::filesystem::path& path, const std::function<void(std::string_view)>& log);

/// Writes to a file beside it and renames. Errors: kFile.
void store_profile(const policy::Profile& profile, const std::filesystem::path& path);

/// The cached profile, else a measured one, which is then cached (a folder that can't be written is
/// told to `log` and costs the next run another measurement).
policy::Profile load_or_measure(const MeasureOptions& options,
                                const std::function<void(std::string_view)>& log);

/// Replaces the cached profile, if there is one, by what `change` makes of it (nothing: it stays);
/// no other process does so meanwhile. Errors: kFile.
void change_cached_profile(
    const std::filesystem::path& path,
    const std::function<std::optional<policy::Profile>(const policy::Profile&)>& change,
    const std::function<void(std::string_view)>& log);

}  // namespace sluice
