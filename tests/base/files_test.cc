#include "src/base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <thread>

#include "src/base/system_error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() {
    std::string pattern = testing::TempDir() + "/sluice_files_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~Files() override {
    std::error_code ignored;
    fs::permissions(folder_ / "closed", fs::perms::owner_all, ignored);
    fs::remove_all(folder_, ignored);
  }
  fs::path operator/(const std::string& name) const { return folder_ / name; }

  /// Expects `kind` and every word in the error's text or mend.
  template <typename Work>
  static void refused(const Work& work, const std::vector<std::string>& words,
                      ErrorKind kind = ErrorKind::kFile) {
    try {
      work();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      for (const std::string& word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }

  fs::path folder_;
};

// Nobody's rights: root may enter every folder.
class AsNobody {
 public:
  AsNobody() : was_root_(geteuid() == 0 && seteuid(65534) == 0) {}
  ~AsNobody() {
    if (was_root_ && seteuid(0) != 0) std::abort();
  }

 private:
  bool was_root_;
};

TEST_F(Files, KindsOfPaths) {
  write_file(*this / "file", "x");
  fs::create_symlink("file", *this / "link");
  fs::create_symlink("nothing", *this / "dangling");
  ASSERT_EQ(mkfifo((*this / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(path_kind(*this / "file"), PathKind::kFile);
  EXPECT_EQ(path_kind(*this / "link"), PathKind::kFile);
  EXPECT_EQ(path_kind(folder_), PathKind::kFolder);
  EXPECT_EQ(path_kind(*this / "pipe"), PathKind::kOther);
  for (const char* name : {"nothing", "dangling", "file/below"})
    EXPECT_EQ(path_kind(*this / name), PathKind::kMissing) << name;
}

TEST_F(Files, WhatTheSystemDoesNotSayIsNotMissing) {
  fs::create_symlink("loop", *this / "loop");
  refused([&] { is_file(*this / "loop"); }, {"loop", "symbolic link"});
  refused([&] { is_folder(*this / std::string(300, 'n')); }, {"nnn", "too long", "shorter"});
  fs::create_directory(*this / "closed");
  write_file(*this / "closed/file", "x");
  fs::permissions(*this / "closed", fs::perms::none);
  const AsNobody nobody;
  refused([&] { is_there(*this / "closed/file"); }, {"closed/file", "denied", "permissions"});
  refused([&] { read_file_if_there(*this / "closed/file", 10); }, {"closed/file", "denied"});
  refused([&] { folder_entries(*this / "closed"); }, {"closed", "denied"});
  refused([&] { make_folder(*this / "closed/new"); }, {"closed/new", "denied"});
}

TEST_F(Files, ReadsWholeFilesUpToTheBound) {
  for (const size_t size : {0, 1, 4096, 65535, 65536, 65537, 200000}) {
    const std::string text(size, 'a');
    write_file(*this / "file", text);
    EXPECT_EQ(read_file(*this / "file", 200000), text);
    EXPECT_EQ(read_file_if_there(*this / "file", static_cast<int64_t>(size)), text);
    if (size > 0)
      refused([&] { read_file(*this / "file", static_cast<int64_t>(size) - 1); },
              {"file", "may have"});
  }
  EXPECT_EQ(read_file_if_there(*this / "absent", 10), std::nullopt);
  refused([&] { read_file(*this / "absent", 10); }, {"absent", "No such file"});
  fs::create_symlink("nothing", *this / "dangling");
  refused([&] { read_file_if_there(*this / "dangling", 10); }, {"dangling", "No such file"});
  refused([&] { read_file(folder_, 10); }, {"Is a directory"});
}

TEST_F(Files, EndlessDevicesEndAtTheBound) {
  refused([] { read_file("/dev/zero", 1 << 20, Streams::kAllow); },
          {"/dev/zero", "more than 1.00MiB"});
  refused([] { read_file("/dev/zero", 1 << 20); }, {"/dev/zero", "not a regular file"});
  refused([] { read_file_if_there("/dev/zero", 1 << 20); }, {"not a regular file"});
  // A regular file by its looks that claims no bytes and fails when it is read.
  refused([] { read_file("/proc/self/mem", 100); }, {"/proc/self/mem", "Input/output error"});
}

TEST_F(Files, PipesAreReadWhereTheyMayBe) {
  ASSERT_EQ(mkfifo((*this / "pipe").c_str(), 0600), 0);
  // Nobody writes: this must not wait.
  refused([&] { read_file(*this / "pipe", 100); }, {"not a regular file"});
  const std::string text(100000, 'p');
  std::jthread writer([&] { write_file(*this / "pipe", text); });
  EXPECT_EQ(read_file(*this / "pipe", 1 << 20, Streams::kAllow), text);
}

TEST_F(Files, LfsPointersAreNamed) {
  write_file(*this / "tokenizer.json",
             "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  refused([&] { read_file(*this / "tokenizer.json", 1000); }, {"Git LFS", "git lfs pull"});
}

TEST_F(Files, WritesFoldersAndTheirTrouble) {
  write_file(*this / "file", "long before");
  write_file(*this / "file", "short");
  EXPECT_EQ(read_file(*this / "file", 100), "short");
  refused([&] { write_file(*this / "none/file", "x"); }, {"none/file", "No such file"});
  refused([] { write_file("/dev/full", "x"); }, {"/dev/full", "No space"}, ErrorKind::kResource);
  make_folder(*this / "a/b/c");
  make_folder(*this / "a/b/c");
  EXPECT_EQ(folder_entries(folder_), (std::vector<fs::path>{*this / "a", *this / "file"}));
  refused([&] { make_folder(*this / "file/below"); }, {"file/below", "Not a directory"});
  refused([&] { folder_entries(*this / "file"); }, {"Not a directory"});
  remove_file(*this / "file");
  remove_file(*this / "file");
  EXPECT_FALSE(is_there(*this / "file"));
}

TEST_F(Files, TheTemporaryFolderMustBeThere) {
  const char* const before = getenv("TMPDIR");
  const std::string kept = before ? before : "";
  setenv("TMPDIR", folder_.c_str(), 1);
  EXPECT_EQ(temporary_folder(), folder_.string());
  setenv("TMPDIR", "/nowhere/at/all", 1);
  refused([] { temporary_folder(); }, {"/nowhere/at/all", "TMPDIR", "`offload_dir`"});
  before ? setenv("TMPDIR", kept.c_str(), 1) : unsetenv("TMPDIR");
}

// What current_error makes of an exception.
template <typename Exception>
Error as_error(const Exception& exception) {
  try {
    throw exception;
  } catch (...) {
    return current_error();
  }
}

TEST(CurrentError, NamesWhatTheSystemRefused) {
  const Error closed = as_error(fs::filesystem_error(
      "status", "/models/closed", std::error_code(EACCES, std::generic_category())));
  EXPECT_EQ(closed.kind(), ErrorKind::kFile);
  EXPECT_EQ(closed.text(), "/models/closed: Permission denied");
  EXPECT_NE(closed.mend(), "");
  const Error two = as_error(
      fs::filesystem_error("rename", "a", "b", std::error_code(ENOSPC, std::generic_category())));
  EXPECT_EQ(two.kind(), ErrorKind::kResource);
  EXPECT_EQ(two.text(), "a and b: No space left on device");
  const Error threads = as_error(std::system_error(EAGAIN, std::generic_category()));
  EXPECT_EQ(threads.kind(), ErrorKind::kResource);
  EXPECT_NE(threads.mend().find("ulimit -u"), std::string::npos);
  EXPECT_EQ(as_error(std::system_error(EIO, std::generic_category(), "read")).kind(),
            ErrorKind::kFile);
  EXPECT_EQ(as_error(std::ios_base::failure("underflow")).kind(), ErrorKind::kFile);
}

TEST(CurrentError, KeepsErrorsAndCallsTheRestBugs) {
  const Error own = as_error(Error(ErrorKind::kUser, "what", "mend"));
  EXPECT_EQ(own.kind(), ErrorKind::kUser);
  EXPECT_EQ(own.mend(), "mend");
  EXPECT_EQ(as_error(std::bad_alloc()).kind(), ErrorKind::kResource);
  EXPECT_EQ(as_error(std::out_of_range("at")).kind(), ErrorKind::kInternal);
  EXPECT_EQ(as_error(17).kind(), ErrorKind::kInternal);
}

}  // namespace
}  // namespace sluice
