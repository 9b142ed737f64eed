#include "src/device/memory_limit.h"

#include <unistd.h>

#include <algorithm>
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

// The tightest limit from the process's group up to the root, with that group's usage.
void tighten(MemoryLimit& limit, const std::string& mount, std::string path, const char* limit_file,
             const char* usage_file, const char* source) {
  for (;;) {
    const auto bytes = read_number(mount + path + "/" + limit_file);
    if (bytes && *bytes > 0 && *bytes < limit.total_bytes) {
      limit.total_bytes = *bytes;
      limit.source = source;
      const int64_t used = read_number(mount + path + "/" + usage_file).value_or(0);
      limit.available_bytes = std::min(limit.available_bytes, std::max<int64_t>(*bytes - used, 0));
    }
    if (path.empty() || path == "/") return;
    path.erase(path.find_last_of('/'));
  }
}
}  // namespace

MemoryLimit memory_limit() {
  MemoryLimit limit{meminfo_bytes("MemTotal"), meminfo_bytes("MemAvailable"), "machine"};
  if (const auto path = cgroup_path("memory"))
    tighten(limit, "/sys/fs/cgroup/memory", *path, "memory.limit_in_bytes", "memory.usage_in_bytes",
            "cgroup v1");
  if (const auto path = cgroup_path("")) {
    tighten(limit, "/sys/fs/cgroup", *path, "memory.max", "memory.current", "cgroup v2");
    tighten(limit, "/sys/fs/cgroup/unified", *path, "memory.max", "memory.current", "cgroup v2");
  }
  return limit;
}

int64_t resident_set_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace sluice
