#include "src/profile/profile_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "kernels/cpu/isa.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/processor_name.h"
#include "src/base/side_by_side.h"
#include "src/device/memory_limit.h"

namespace sluice {

namespace {
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

// One at a time in the folder, whatever process; nothing where that can't be had.
class FolderLock {
 public:
  /// `waits` is called once when somebody has it. Errors: kCancelled.
  FolderLock(const std::filesystem::path& folder, const std::stop_token& cancel,
             const std::function<void()>& waits)
      : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr std::chrono::milliseconds kLookAgain{50};
    bool has_told = false;
    while (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (!std::exchange(has_told, true) && waits) waits();
      if (cancel.stop_requested()) {
        close(fd_);
        throw Error(ErrorKind::kCancelled, "waiting for another sluice's measurement was stopped");
      }
      std::this_thread::sleep_for(kLookAgain);
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};
}  // namespace

std::filesystem::path experts_cache_path(const std::filesystem::path& model) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return {};
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(model, error);
  return folder / fmt::format("experts-{:016x}.json",
                              fold(0xcbf29ce484222325u, (error ? model : whole).string()));
}

std::filesystem::path profile_cache_path(const std::string& offload_dir, int threads) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return {};
  struct stat stats {};
  const std::string disk = offload_dir.empty() ? temporary_folder() : offload_dir;
  const bool is_there = stat(disk.c_str(), &stats) == 0;
  const int cores = usable_processors();
  const std::string key =
      fmt::format("{}|{}|{}|{}|{}|{}", processor_name(), cores, threads > 0 ? threads : cores,
                  kernels::isa_name(kernels::active_isa()),
                  is_there ? static_cast<uint64_t>(stats.st_dev) : 0, SLUICE_KERNELS);
  return folder / fmt::format("profile-{:016x}.json", fold(0xcbf29ce484222325u, key));
}

std::optional<policy::Profile> load_cached_profile(
    const std::filesystem::path& path, const std::function<void(std::string_view)>& log) {
  try {
    const auto text = read_file_if_there(path, kMostSettingsBytes);
    if (!text) return std::nullopt;
    return policy::parse_profile(*text, path.string());
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
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw Error(ErrorKind::kFile,
                fmt::format("{} can't be written: {}", path.string(), error.message()),
                "check the folder");
  }
}

namespace {
std::optional<policy::Profile> kept_profile(const std::filesystem::path& path,
                                            const std::function<void(std::string_view)>& log) {
  auto kept = load_cached_profile(path, log);
  // What this process may use, which differs from group to group.
  if (kept) kept->host_bytes = memory_limit().total_bytes;
  return kept;
}
}  // namespace

policy::Profile load_or_measure(const MeasureOptions& options,
                                const std::function<void(std::string_view)>& log) {
  const std::filesystem::path path = profile_cache_path(options.offload_dir, options.threads);
  if (path.empty()) return measure_profile(options);
  if (const auto kept = kept_profile(path, log)) return *kept;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  // Two measurements at once would each take the other for the machine.
  const FolderLock lock(path.parent_path(), options.cancel, [&] {
    if (log) log("another sluice measures this machine: waiting for what it finds");
  });
  if (const auto kept = kept_profile(path, log)) return *kept;
  policy::Profile profile = measure_profile(options);
  try {
    store_profile(profile, path);
  } catch (const Error& error) {
    if (log) log(error.text());
  }
  return profile;
}

void change_cached_profile(
    const std::filesystem::path& path,
    const std::function<std::optional<policy::Profile>(const policy::Profile&)>& change,
    const std::function<void(std::string_view)>& log) {
  if (path.empty()) return;
  const FolderLock lock(path.parent_path(), {}, {});
  const auto cached = load_cached_profile(path, log);
  if (!cached) return;
  if (const auto changed = change(*cached)) store_profile(*changed, path);
}

}  // namespace sluice
