#include "io/async/disk_probe.h"

#include <limits>

#include "tests/io/async/engine_fixture.h"

namespace sluice::io {
namespace {

/// Runs a probe, or says why this machine can't.
template <typename Probe>
double rate_or_skip_reason(Probe probe, std::string& reason) {
  try {
    return probe();
  } catch (const Error& error) {
    const bool is_refused = error.kind() == ErrorKind::kDevice ||
                            error.text().find("refuses direct I/O") != std::string::npos;
    if (!is_refused) throw;
    reason = error.what();
    return 0;
  }
}

TEST(DiskProbe, GivesARateForReadsAndWrites) {
  const ScratchFolder folder;
  write_file(folder.file("a"), random_bytes(kMiB + 5, 1));
  std::string reason;
  const double read = rate_or_skip_reason(
      [&] { return probe_read_rate(folder.file("a"), kGiB, 64 * kKiB, 4); }, reason);
  const double write = rate_or_skip_reason(
      [&] { return probe_write_rate(folder.path(), kMiB, 64 * kKiB, 32); }, reason);
  if (!reason.empty()) GTEST_SKIP() << reason;
  EXPECT_GT(read, 0);
  EXPECT_LT(read, std::numeric_limits<double>::infinity());
  EXPECT_GT(write, 0);
  EXPECT_LT(write, std::numeric_limits<double>::infinity());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(DiskProbe, NamesAFileThatIsMissingOrTooSmall) {
  const ScratchFolder folder;
  EXPECT_EQ(error_of([&] { probe_read_rate(folder.file("none"), kMiB, 4096, 1); }).kind(),
            ErrorKind::kFile);
  write_file(folder.file("small"), random_bytes(4095, 1));
  EXPECT_EQ(error_of([&] { probe_read_rate(folder.file("small"), kMiB, 4096, 1); }).kind(),
            ErrorKind::kFile);
  EXPECT_EQ(error_of([&] { probe_read_rate("/proc/version", kMiB, 4096, 1); }).kind(),
            ErrorKind::kFile);
}

TEST(DiskProbe, SizesThatCannotWorkAreTheUsersError) {
  const ScratchFolder folder;
  const auto kind = [&](int64_t bytes, int64_t request_bytes, int depth) {
    return error_of([&] { probe_write_rate(folder.path(), bytes, request_bytes, depth); }).kind();
  };
  EXPECT_EQ(kind(kMiB, 0, 1), ErrorKind::kUser);
  EXPECT_EQ(kind(kMiB, 1000, 1), ErrorKind::kUser);
  EXPECT_EQ(kind(kGiB, kGiB, 1), ErrorKind::kUser);
  EXPECT_EQ(kind(kMiB, 4096, 0), ErrorKind::kUser);
  EXPECT_EQ(kind(kMiB, 4096, 5000), ErrorKind::kUser);
  EXPECT_EQ(kind(4095, 4096, 1), ErrorKind::kUser);
}

}  // namespace
}  // namespace sluice::io
