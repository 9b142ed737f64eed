#include "src/base/processor_name.h"

#include <algorithm>
#include <fstream>
#include <utility>

namespace sluice {

namespace {
// Of a line "key : value", its value; empty where it is another key's.
std::string value_of(const std::string& line, std::string_view key) {
  if (!line.starts_with(key)) return {};
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return {};
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

// By implementer and part, the cores that servers and workstations have (ARM's list of MIDR
// values).
std::string arm_core(const std::string& implementer, const std::string& part) {
  static constexpr std::pair<const char*, const char*> kCores[] = {
      {"0x41/0xd08", "Cortex-A72"},  {"0x41/0xd0b", "Cortex-A76"},    {"0x41/0xd0c", "Neoverse N1"},
      {"0x41/0xd40", "Neoverse V1"}, {"0x41/0xd49", "Neoverse N2"},   {"0x41/0xd4f", "Neoverse V2"},
      {"0x41/0xd81", "Cortex-A720"}, {"0x41/0xd83", "Neoverse V3AE"}, {"0x41/0xd84", "Neoverse V3"},
      {"0x41/0xd85", "Cortex-X925"}, {"0x41/0xd8e", "Neoverse N3"},   {"0xc0/0xac3", "Ampere-1"},
      {"0xc0/0xac4", "Ampere-1a"}};
  const std::string both = implementer + "/" + part;
  const auto* found = std::find_if(std::begin(kCores), std::end(kCores),
                                   [&](const auto& core) { return both == core.first; });
  return found == std::end(kCores) ? "ARM core " + both : found->second;
}
}  // namespace

std::string processor_name(std::istream& cpuinfo) {
  std::string implementer, part;
  for (std::string line; std::getline(cpuinfo, line);) {
    if (std::string name = value_of(line, "model name"); !name.empty()) return name;
    if (std::string value = value_of(line, "CPU implementer"); !value.empty()) implementer = value;
    if (std::string value = value_of(line, "CPU part"); !value.empty()) part = value;
  }
  return implementer.empty() || part.empty() ? "CPU" : arm_core(implementer, part);
}

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  return processor_name(cpuinfo);
}

}  // namespace sluice
