#pragma once
// What the fuzz targets share: conditions that end the run when they do not hold, a count of the
// inputs that a parser took, and a folder in memory for what is read from files. scripts/fuzz.sh
// takes a target of which no input was ever accepted for one whose seeds have gone stale.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace sluice::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

/// Counts an input that was valid; the count is printed when the program ends.
inline void accepted() {
  struct Count {
    int64_t inputs = 0;
    ~Count() { std::fprintf(stderr, "accepted: %lld inputs\n", static_cast<long long>(inputs)); }
  };
  static Count count;
  ++count.inputs;
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Cuts off and returns what comes before the next `mark`, which is dropped; all of it where there
/// is none.
inline std::string_view cut(std::string_view& text, char mark = '\0') {
  const size_t end = std::min(text.find(mark), text.size());
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return head;
}

/// The largest number in the header of a safetensors file, at most `most` (up to 2^59): where its
/// last tensor ends. Files of other lengths are refused, whatever else they hold.
inline int64_t claimed_bytes(std::string_view header, int64_t most) {
  int64_t largest = 0, number = 0;
  for (const char c : header) {
    number = c >= '0' && c <= '9' ? std::min(number * 10 + (c - '0'), most) : 0;
    largest = std::max(largest, number);
  }
  return largest;
}

/// A folder in memory, where the system has such a place; removed when the program ends.
class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::exists("/dev/shm") ? "/dev/shm/sluice_fuzz_XXXXXX"
                                                              : "/tmp/sluice_fuzz_XXXXXX";
    require(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Writes a file and gives its path. `bytes`: of the file, zeros after `text`; -1: its length.
  std::filesystem::path write(const std::string& name, std::string_view text,
                              int64_t bytes = -1) const {
    const std::filesystem::path path = path_ / name;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    require(fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
            (bytes < 0 || ::ftruncate(fd, bytes) == 0));
    ::close(fd);
    return path;
  }

 private:
  std::filesystem::path path_;
};

/// Two files of `folder` out of one input: `settings` up to the first NUL; then `tensors`, a
/// safetensors file, whose header goes up to the next NUL and whose data may end early: zeros
/// follow up to what the header claims, at most `most_data` bytes.
inline void write_settings_and_tensors(const Folder& folder, std::string_view input,
                                       const std::string& settings, const std::string& tensors,
                                       int64_t most_data) {
  folder.write(settings, cut(input));
  const std::string_view header = cut(input);
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  file += header;
  const int64_t bytes = claimed_bytes(header, most_data);
  const int64_t total = static_cast<int64_t>(file.size()) + bytes;
  file += input.substr(0, static_cast<size_t>(bytes));
  folder.write(tensors, file, total);
}

}  // namespace sluice::fuzz
