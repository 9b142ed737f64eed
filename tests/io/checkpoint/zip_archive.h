#pragma once
// Zip archives put together by hand for tests, with every field in reach: what a real writer would
// never do.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::io {

struct ZipEntry {
  std::string name;
  std::string data;
  uint16_t method = 0;
  uint16_t flags = 0;
  std::optional<uint64_t> claimed_bytes = std::nullopt;
  std::optional<uint64_t> claimed_offset = std::nullopt;
  std::string local_extra = {};
  bool is_zip64 = false;
};

inline std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += i < 8 ? static_cast<char>(value >> (8 * i)) : '\0';
  return text;
}

struct ZipEnding {
  std::string comment = {};
  bool is_zip64 = false;
  std::optional<uint64_t> claimed_entries = std::nullopt;
  std::optional<uint64_t> claimed_directory_bytes = std::nullopt;
  std::optional<uint64_t> claimed_directory_offset = std::nullopt;
};

inline std::string make_zip(const std::vector<ZipEntry>& entries, const ZipEnding& ending = {}) {
  std::string file;
  std::string directory;
  for (const ZipEntry& entry : entries) {
    const uint64_t offset = entry.claimed_offset.value_or(file.size());
    const uint64_t bytes = entry.claimed_bytes.value_or(entry.data.size());
    file += "PK\x03\x04" + little_endian(20, 2) + little_endian(entry.flags, 2) +
            little_endian(entry.method, 2) + little_endian(0, 8) + little_endian(bytes, 4) +
            little_endian(bytes, 4) + little_endian(entry.name.size(), 2) +
            little_endian(entry.local_extra.size(), 2) + entry.name + entry.local_extra +
            entry.data;
    const std::string extra =
        entry.is_zip64 ? little_endian(1, 2) + little_endian(24, 2) + little_endian(bytes, 8) +
                             little_endian(bytes, 8) + little_endian(offset, 8)
                       : std::string();
    const auto field = [&](uint64_t value) {
      return little_endian(entry.is_zip64 ? 0xffffffffu : value, 4);
    };
    directory += "PK\x01\x02" + little_endian(20, 2) + little_endian(20, 2) +
                 little_endian(entry.flags, 2) + little_endian(entry.method, 2) +
                 little_endian(0, 8) + field(bytes) + field(bytes) +
                 little_endian(entry.name.size(), 2) + little_endian(extra.size(), 2) +
                 little_endian(0, 12 - 2) + field(offset) + entry.name + extra;
  }
  const uint64_t offset = ending.claimed_directory_offset.value_or(file.size());
  const uint64_t bytes = ending.claimed_directory_bytes.value_or(directory.size());
  const uint64_t count = ending.claimed_entries.value_or(entries.size());
  const uint64_t end64 = file.size() + directory.size();
  file += directory;
  if (ending.is_zip64)
    file += "PK\x06\x06" + little_endian(44, 8) + little_endian(45, 2) + little_endian(45, 2) +
            little_endian(0, 8) + little_endian(count, 8) + little_endian(count, 8) +
            little_endian(bytes, 8) + little_endian(offset, 8) + "PK\x06\x07" +
            little_endian(0, 4) + little_endian(end64, 8) + little_endian(1, 4);
  const auto small = [&](uint64_t value, int size) {
    return little_endian(ending.is_zip64 ? ~uint64_t{0} : value, size);
  };
  return file + "PK\x05\x06" + little_endian(0, 4) + small(count, 2) + small(count, 2) +
         small(bytes, 4) + small(offset, 4) + little_endian(ending.comment.size(), 2) +
         ending.comment;
}

}  // namespace sluice::io
