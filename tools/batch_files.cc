#include "tools/batch_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::tools {

BatchInput::BatchInput(const std::string& path) : path_(path), name_(path) {
  if (path != "-") {
    if (is_folder(path) || !std::ifstream(path))
      throw Error(ErrorKind::kFile, path + ": can't be read", "check the path and its permissions");
    return;
  }
  name_ = "standard input";
  kept_ = jobs::OwnedFile(temporary_folder(), O_TMPFILE | O_RDWR);
  std::array<char, 64 << 10> piece;
  int64_t bytes = 0;
  for (;;) {
    const ssize_t some = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (some < 0 && errno == EINTR) continue;
    if (some < 0)
      throw Error(ErrorKind::kFile, fmt::format("standard input: {}", std::strerror(errno)));
    if (some == 0) break;
    kept_.write(piece.data(), some, bytes);
    bytes += some;
  }
  path_ = fmt::format("/proc/self/fd/{}", kept_.fd());
}

BatchOutput::BatchOutput(const std::string& path)
    : is_stream_(path == "-"), path_(path), name_(path) {
  if (!is_stream_) return;
  name_ = "standard output";
  path_ = temporary_folder() + "/sluice-batch-XXXXXX";
  const int fd = ::mkstemp(path_.data());
  if (fd < 0)
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", path_, std::strerror(errno)),
                "set TMPDIR to a folder that can be written");
  ::close(fd);
  kept_ = jobs::OwnedFile(path_, O_RDONLY);
}

BatchOutput::~BatchOutput() {
  if (is_stream_) ::unlink(path_.c_str());
}

void BatchOutput::forward() {
  if (!is_stream_) return;
  std::array<char, 64 << 10> piece;
  for (;;) {
    const int64_t some = kept_.read(piece.data(), piece.size(), forwarded_bytes_);
    if (some == 0) break;
    std::fwrite(piece.data(), 1, static_cast<size_t>(some), stdout);
    forwarded_bytes_ += some;
  }
  std::fflush(stdout);
}

}  // namespace sluice::tools
