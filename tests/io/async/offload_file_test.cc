#include "io/async/offload_file.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "tests/io/async/engine_fixture.h"

namespace sluice::io {
namespace {

TEST(OffloadFile, HasItsSizeAndNoNameAndIsNobodyElses) {
  const ScratchFolder folder;
  const OffloadFile file = OffloadFile::create(folder.path(), 10000, "KV offload");
  EXPECT_EQ(file.bytes(), 12288);
  EXPECT_EQ(file.name(), "KV offload in " + folder.path());
  struct stat status {};
  ASSERT_EQ(::fstat(file.fd(), &status), 0);
  EXPECT_TRUE(S_ISREG(status.st_mode));
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_EQ(status.st_size, 12288);
  EXPECT_GE(status.st_blocks * 512, 12288) << "the space was not reserved";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(OffloadFile, MayBeEmpty) {
  const ScratchFolder folder;
  EXPECT_EQ(OffloadFile::create(folder.path(), 0, "nothing").bytes(), 0);
}

TEST(OffloadFile, BelongsToTheEngineThatItWasGivenTo) {
  const ScratchFolder folder;
  const auto engine = make_file_engine({});
  OffloadFile offload = OffloadFile::create(folder.path(), 8192, "KV offload");
  const bool is_direct = offload.is_direct();
  const FileId file = offload.give_to(*engine);
  EXPECT_EQ(engine->size(file), 8192);
  EXPECT_EQ(engine->is_direct(file), is_direct);
  EXPECT_EQ(error_of([&] { offload.give_to(*engine); }).kind(), ErrorKind::kInternal);
}

TEST(OffloadFile, IsNotDirectWhenNotAskedToBe) {
  const ScratchFolder folder;
  EXPECT_FALSE(OffloadFile::create(folder.path(), 4096, "cached", /*direct=*/false).is_direct());
}

TEST(OffloadFile, NamesAFolderThatIsMissingOrNone) {
  const ScratchFolder folder;
  const Error missing =
      error_of([&] { OffloadFile::create(folder.file("not-there"), 4096, "KV offload"); });
  EXPECT_EQ(missing.kind(), ErrorKind::kFile);
  EXPECT_NE(missing.text().find("KV offload in " + folder.file("not-there")), std::string::npos);
  write_file(folder.file("file"), random_bytes(1, 1));
  EXPECT_EQ(error_of([&] { OffloadFile::create(folder.file("file"), 4096, "x"); }).kind(),
            ErrorKind::kFile);
}

TEST(OffloadFile, NamesAFolderThatMayNotBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const ScratchFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0500), 0);
  EXPECT_EQ(error_of([&] { OffloadFile::create(folder.path(), 4096, "x"); }).kind(),
            ErrorKind::kFile);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0700), 0);
}

TEST(OffloadFile, MoreThanTheDiskHoldsIsAShortageWithBothSizes) {
  const ScratchFolder folder;
  const Error error =
      error_of([&] { OffloadFile::create(folder.path(), int64_t{1} << 52, "KV offload"); });
  EXPECT_EQ(error.kind(), ErrorKind::kResource);
  EXPECT_NE(error.text().find("for KV offload in " + folder.path()), std::string::npos)
      << error.text();
  EXPECT_NE(error.text().find(" free)"), std::string::npos) << error.text();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(OffloadFile, TheFileSizeLimitIsAnErrorAndNotASignal) {
  const ScratchFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limited = before;
  limited.rlim_cur = 64 * kKiB;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  const Error error = error_of([&] { OffloadFile::create(folder.path(), kMiB, "KV offload"); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(error.kind(), ErrorKind::kResource);
  EXPECT_NE(error.mend().find("ulimit -f"), std::string::npos);
}

/// A mount that only this thread sees and that goes with it; empty: it may be used, else why not.
std::string mount_for_this_thread(const std::string& folder, unsigned long flags) {
  if (::unshare(CLONE_NEWNS) != 0) return std::string("unshare: ") + std::strerror(errno);
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", folder.c_str(), "tmpfs", flags, "size=1m") != 0) {
    return std::string("mount: ") + std::strerror(errno);
  }
  return "";
}

TEST(OffloadFile, ASmallDiskIsShortAndAMemoryDiskIsSeen) {
  const ScratchFolder folder;
  std::string why_not;
  bool is_in_memory = false;
  std::exception_ptr shortage;
  std::thread([&] {
    why_not = mount_for_this_thread(folder.path(), 0);
    if (!why_not.empty()) return;
    is_in_memory = OffloadFile::create(folder.path(), 512 * kKiB, "small").is_in_memory();
    try {
      OffloadFile::create(folder.path(), 8 * kMiB, "large");
    } catch (...) {
      shortage = std::current_exception();
    }
  }).join();
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  EXPECT_TRUE(is_in_memory);
  const Error error = error_of(shortage);
  EXPECT_EQ(error.kind(), ErrorKind::kResource);
  EXPECT_NE(error.text().find("8.00MiB"), std::string::npos) << error.text();
  EXPECT_NE(error.text().find("(1.00MiB free)"), std::string::npos) << error.text();
  EXPECT_NE(error.mend().find("`offload_dir`"), std::string::npos);
}

TEST(OffloadFile, AReadOnlyDiskIsNamed) {
  const ScratchFolder folder;
  std::string why_not;
  std::exception_ptr refusal;
  std::thread([&] {
    why_not = mount_for_this_thread(folder.path(), MS_RDONLY);
    if (!why_not.empty()) return;
    try {
      OffloadFile::create(folder.path(), 4096, "KV offload");
    } catch (...) {
      refusal = std::current_exception();
    }
  }).join();
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  const Error error = error_of(refusal);
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find("Read-only file system"), std::string::npos) << error.text();
  EXPECT_NE(error.mend().find("`offload_dir`"), std::string::npos);
}

}  // namespace
}  // namespace sluice::io
