#include "io/files/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "io/files/direct_writer.h"
#include "io/files/input_file.h"
#include "io/files/owned_fd.h"
#include "src/base/bytes.h"
#include "src/base/system_error.h"

namespace sluice::io {

void fail_with_errno(const std::filesystem::path& path, const char* action) {
  throw system_error(errno, fmt::format("{}: {}", path.string(), action));
}

std::filesystem::path partial_path(const std::filesystem::path& path) {
  std::filesystem::path partial = path;
  partial += kPartialSuffix;
  return partial;
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path& named = folder.empty() ? std::filesystem::path(".") : folder;
  const OwnedFd fd(::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) fail_with_errno(folder, "opening the folder");
  // Some file systems cannot sync a folder and need not.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail_with_errno(folder, "syncing the folder");
}

void publish_file(const std::filesystem::path& path) {
  if (::rename(partial_path(path).c_str(), path.c_str()) != 0)
    fail_with_errno(path, "giving the file its name");
  sync_folder(path.parent_path());
}

void write_file_durably(const std::filesystem::path& path, std::string_view text) {
  DirectWriter writer(partial_path(path), static_cast<int64_t>(text.size()),
                      DirectWriter::Checksum::kNone);
  writer.append(std::as_bytes(std::span(text)));
  writer.finish();
  publish_file(path);
}

void copy_file_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  const InputFile source(from);
  if (source.size() > kGiB)
    throw Error(ErrorKind::kUser, fmt::format("{}: {} is too large to be copied beside the weights",
                                              from.string(), format_bytes(source.size())));
  DirectWriter writer(partial_path(to), source.size(), DirectWriter::Checksum::kNone);
  for (int64_t done = 0; done < source.size();) {
    const std::span<std::byte> space = writer.space();
    const auto count = static_cast<size_t>(
        std::min<int64_t>(source.size() - done, static_cast<int64_t>(space.size())));
    source.read(done, space.first(count), "contents");
    writer.advance(count);
    done += static_cast<int64_t>(count);
  }
  writer.finish();
  publish_file(to);
}

int64_t free_disk_bytes(const std::filesystem::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) fail_with_errno(folder, "asking for the free space");
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

void require_disk_space(const std::filesystem::path& folder, int64_t bytes, int64_t freed_bytes) {
  const int64_t available = free_disk_bytes(folder) + freed_bytes;
  if (bytes <= available) return;
  throw Error(
      ErrorKind::kResource,
      fmt::format("{}: {} are needed on this disk and {} are free, {} short", folder.string(),
                  format_bytes(bytes), format_bytes(available), format_bytes(bytes - available)),
      "free space there, or choose a destination on another disk");
}

}  // namespace sluice::io
