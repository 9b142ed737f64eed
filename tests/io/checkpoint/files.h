#pragma once
// What the checkpoint tests share: a folder that goes away, whole-file reading and writing, and the
// one way to state that something is refused with a kind and a text.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/safetensors.h"
#include "io/files/checksum.h"
#include "io/files/input_file.h"
#include "src/base/error.h"
#include "tests/whole_file.h"

namespace sluice::io {

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(SLUICE_FIXTURES) / "checkpoints" / name;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = testing::TempDir() + "/sluice_checkpoint_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_all(const std::filesystem::path& path) { return whole_file(path); }

inline void write_all(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  ASSERT_TRUE(file.flush()) << path;
}

/// The kind and full text of the Error that `work` throws; fails the test when it throws none.
struct Refusal {
  ErrorKind kind = ErrorKind::kInternal;
  std::string text;
};
template <typename Work>
Refusal refusal_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// States that `work` throws an Error of `kind` whose text has all of `words`.
template <typename Work>
void expect_refusal(Work&& work, ErrorKind kind, std::initializer_list<std::string_view> words) {
  const Refusal refusal = refusal_of(work);
  EXPECT_EQ(static_cast<int>(refusal.kind), static_cast<int>(kind)) << refusal.text;
  for (const std::string_view word : words)
    EXPECT_NE(refusal.text.find(word), std::string::npos)
        << "no \"" << word << "\" in: " << refusal.text;
}

/// CRC32C of a tensor's bytes, read from the place that the checkpoint names.
inline uint32_t data_checksum(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
  InputFile(checkpoint.files().at(static_cast<size_t>(tensor.file_index)).path)
      .read(tensor.offset, bytes, "tensor");
  return crc32c(bytes);
}

/// A safetensors file with this header text and so many zero bytes of data.
inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

}  // namespace sluice::io
