#include "src/device/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace sluice {

namespace {
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // absent, or "max"
}

int64_t meminfo_bytes(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    if (words >> name >> kib && name == key + ":") return kib * 1024;
  }
  return 0;
}

// Path of this process in a cgroup hierarchy: "controller" of v1, or "" for v2; nothing when there
// is none.
std::optional<std::string> cgroup_path(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::istringstream names(line.substr(first + 1, second - first - 1));
    std::string name;
    bool is_match = controller.empty() && second == first + 1;
    while (std::getline(names, name, ','))
      is_match = is_match || (!controller.empty() && name == controller);
    if (is_match) return line.substr(second + 1);
  }
  return std::nullopt;
}

// What a group counts of files in the page cache, and can give back: what nobody has used of late
// and, as the system reckons for itself, half of what somebody has.
int64_t reclaimable_bytes(const std::string& stat_path, const std::string& prefix) {
  std::ifstream file(stat_path);
  int64_t bytes = 0;
  std::string name;
  for (int64_t value = 0; file >> name >> value;) {
    if (name == prefix + "inactive_file") bytes += value;
    if (name == prefix + "active_file") bytes += value / 2;
  }
  return bytes;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* stat_prefix;  ///< of the names in memory.stat that count the groups below too
  const char* source;
};
constexpr GroupFiles kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "cgroup v1"};
constexpr GroupFiles kV2{"memory.max", "memory.current", "", "cgroup v2"};

// The tightest limit from the process's group up to the root, with that group's usage.
void tighten(MemoryLimit& limit, const std::string& mount, std::string path,
             const GroupFiles& files) {
  const int64_t machine_bytes = meminfo_bytes("MemTotal");
  for (;;) {
    const std::string folder = mount + path + "/";
    const auto bytes = read_number(folder + files.limit);
    if (bytes && *bytes > 0 && *bytes < machine_bytes) {
      if (*bytes < limit.total_bytes) {
        limit.total_bytes = *bytes;
        limit.source = files.source;
      }
      const int64_t used = read_number(folder + files.usage).value_or(0) -
                           reclaimable_bytes(folder + "memory.stat", files.stat_prefix);
      limit.available_bytes =
          std::min(limit.available_bytes, std::clamp<int64_t>(*bytes - used, 0, *bytes));
    }
    if (path.empty() || path == "/") return;
    path.erase(path.find_last_of('/'));
  }
}
}  // namespace

MemoryLimit memory_limit() {
  MemoryLimit limit{meminfo_bytes("MemTotal"), meminfo_bytes("MemAvailable"), "machine"};
  if (const auto path = cgroup_path("memory")) tighten(limit, "/sys/fs/cgroup/memory", *path, kV1);
  if (const auto path = cgroup_path("")) {
    tighten(limit, "/sys/fs/cgroup", *path, kV2);
    tighten(limit, "/sys/fs/cgroup/unified", *path, kV2);
  }
  return limit;
}

std::string memory_driver(const std::string& sysfs) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  // A driver without a device beside it moves nothing; a device is a link, its own controls are
  // files.
  for (const char* driver : {"virtio/drivers/virtio_balloon", "virtio/drivers/virtio_mem",
                             "vmbus/drivers/hv_balloon", "xen/drivers/xen_balloon"})
    for (const auto& entry : fs::directory_iterator(sysfs + "/bus/" + driver, ignored))
      if (entry.is_symlink(ignored) && entry.path().filename() != "module")
        return fs::path(driver).filename().string();
  for (const char* present : {"/module/vmw_balloon", "/devices/system/xen_memory/xen_memory0"})
    if (fs::exists(sysfs + present, ignored)) return fs::path(present).filename().string();
  return "";
}

int64_t resident_set_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace sluice
