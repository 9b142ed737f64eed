#pragma once
// A file's bytes, read at once: stream iterators take a second for 20 MB in an unoptimised test.
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace sluice {

/// Throws std::runtime_error when there is no such file.
inline std::string whole_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("can't read " + path.string());
  std::string bytes(static_cast<size_t>(file.tellg()), '\0');
  file.seekg(0);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

}  // namespace sluice
