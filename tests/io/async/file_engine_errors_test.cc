#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <thread>

#include "io/async/file_engine.h"
#include "io/async/offload_file.h"
#include "tests/io/async/engine_fixture.h"

namespace sluice::io {
namespace {

class FileEngineErrors : public EveryEngine {
 protected:
  Error read_error(FileEngine& engine, const Extent& extent) {
    return error_of([&] { engine.read_now({&extent, 1}); });
  }
};
SLUICE_EVERY_ENGINE(FileEngineErrors);

TEST_P(FileEngineErrors, NamesAMissingFile) {
  const auto engine = this->engine();
  const std::string path = folder_.file("not-there");
  const Error error = error_of([&] { engine->open_for_read(path); });
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find(path), std::string::npos);
  EXPECT_NE(error.text().find("No such file"), std::string::npos);
  EXPECT_FALSE(error.mend().empty());
}

TEST_P(FileEngineErrors, RefusesFoldersAndPipes) {
  const auto engine = this->engine();
  EXPECT_EQ(error_of([&] { engine->open_for_read(folder_.path()); }).kind(), ErrorKind::kFile);
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Error error =
      error_of([&] { engine->open_for_read(pipe); });  // and does not wait for a writer
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find("not a regular file"), std::string::npos);
}

TEST_P(FileEngineErrors, NamesAFileThatMayNotBeRead) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  write_file(folder_.file("a"), random_bytes(10, 1));
  ASSERT_EQ(::chmod(folder_.file("a").c_str(), 0), 0);
  const auto engine = this->engine();
  EXPECT_EQ(error_of([&] { engine->open_for_read(folder_.file("a")); }).kind(), ErrorKind::kFile);
}

TEST_P(FileEngineErrors, ReportsAFileThatEndsEarly) {
  write_file(folder_.file("a"), random_bytes(50000, 1));
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(64 * kKiB);
  const Error error = read_error(*engine, {file, 0, 53248, memory.at(0), 50001});
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find(folder_.file("a")), std::string::npos) << error.text();
  EXPECT_NE(error.text().find("ends at 50000, 1 bytes early"), std::string::npos) << error.text();
  // Wholly past the end, and the engine still works afterwards.
  EXPECT_EQ(read_error(*engine, {file, 1 << 20, 4096, memory.at(0)}).kind(), ErrorKind::kFile);
  const Extent right{file, 0, 53248, memory.at(0), 50000};
  engine->read_now({&right, 1});
}

TEST_P(FileEngineErrors, ReportsAFileThatWasCutAfterItWasOpened) {
  write_file(folder_.file("a"), random_bytes(kMiB, 1));
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  std::filesystem::resize_file(folder_.file("a"), 300 * kKiB + 7);
  const AlignedBytes memory(kMiB);
  const Error error = read_error(*engine, {file, 0, kMiB, memory.at(0)});
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find("the file ends at 307207"), std::string::npos) << error.text();
}

TEST_P(FileEngineErrors, AFullDiskIsAShortageThatNamesTheFile) {
  const auto engine = this->engine();
  OwnedFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full) GTEST_SKIP() << "no /dev/full";
  const FileId file = engine->adopt(std::move(full), "KV offload", false);
  const AlignedBytes memory(kMiB);
  const Extent extent{file, 0, kMiB, memory.at(0)};
  const Error error = error_of([&] { engine->write_now({&extent, 1}); });
  EXPECT_EQ(error.kind(), ErrorKind::kResource);
  EXPECT_NE(error.text().find("KV offload"), std::string::npos) << error.text();
  EXPECT_NE(error.text().find("No space left"), std::string::npos) << error.text();
  EXPECT_NE(error.mend().find("`offload_dir`"), std::string::npos) << error.mend();
}

TEST_P(FileEngineErrors, PassingTheFileSizeLimitIsAnErrorAndNotASignal) {
  const auto engine = this->engine();
  const std::string path = folder_.file("a");
  const FileId file =
      engine->adopt(OwnedFd(::open(path.c_str(), O_RDWR | O_CREAT, 0600)), path, false);
  const AlignedBytes memory(256 * kKiB);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limited = before;
  limited.rlim_cur = 100 * kKiB;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  const Extent extent{file, 0, 256 * kKiB, memory.at(0)};
  const Error error = error_of([&] { engine->write_now({&extent, 1}); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(error.kind(), ErrorKind::kResource);
  EXPECT_NE(error.mend().find("ulimit -f"), std::string::npos) << error.what();
}

TEST_P(FileEngineErrors, WritingAFileOpenedForReadingIsAnError) {
  write_file(folder_.file("a"), random_bytes(4096, 1));
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(4096);
  const Extent extent{file, 0, 4096, memory.at(0)};
  const Error error = error_of([&] { engine->write_now({&extent, 1}); });
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find("writing 4.00KiB at offset 0"), std::string::npos) << error.text();
}

TEST_P(FileEngineErrors, OurOwnMistakesAreRefusedAtTheCall) {
  write_file(folder_.file("a"), random_bytes(8192, 1));
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(16384);
  std::vector<Extent> wrong{
      {file, -4096, 4096, memory.at(0)}, {file, 0, -4096, memory.at(0)},
      {file, 0, 4096, nullptr},          {file, 0, 4096, memory.at(0), 4097},
      {file, 0, 4096, memory.at(0), -2}, {file, INT64_MAX - 4095, 8192, memory.at(0)},
      {file + 1, 0, 4096, memory.at(0)}, {-1, 0, 4096, memory.at(0)}};
  if (engine->is_direct(file)) {
    wrong.push_back({file, 1, 4096, memory.at(0)});
    wrong.push_back({file, 0, 4095, memory.at(0)});
    wrong.push_back({file, 0, 4096, memory.at(1)});
  }
  for (const Extent& extent : wrong) {
    EXPECT_EQ(read_error(*engine, extent).kind(), ErrorKind::kInternal)
        << extent.file << " " << extent.offset << " " << extent.bytes;
  }
  EXPECT_EQ(error_of([&] { engine->read({}, nullptr); }).kind(), ErrorKind::kInternal);
  EXPECT_EQ(error_of([&] { engine->close(file + 1); }).kind(), ErrorKind::kInternal);
  EXPECT_EQ(error_of([&] { engine->adopt(OwnedFd(), "none", false); }).kind(),
            ErrorKind::kInternal);
  engine->close(file);
  EXPECT_EQ(read_error(*engine, {file, 0, 4096, memory.at(0)}).kind(), ErrorKind::kInternal);
  EXPECT_EQ(error_of([&] { engine->size(file); }).kind(), ErrorKind::kInternal);
  EXPECT_EQ(engine->counters().requests, 0);
}

TEST_P(FileEngineErrors, OtherGroupsGoOnAfterOneFailed) {
  const std::vector<std::byte> contents = random_bytes(256 * kKiB, 1);
  write_file(folder_.file("whole"), contents);
  write_file(folder_.file("cut"), random_bytes(10 * kKiB, 2));
  const auto engine = this->engine();
  const FileId whole = engine->open_for_read(folder_.file("whole"));
  const FileId cut = engine->open_for_read(folder_.file("cut"));
  const AlignedBytes memory(768 * kKiB);
  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0;
  std::vector<std::exception_ptr> errors(3);
  for (int i = 0; i < 3; ++i) {
    const Extent extent{i == 1 ? cut : whole, 0, 256 * kKiB, memory.at(i * 256 * kKiB)};
    engine->read({&extent, 1}, [&, i](std::exception_ptr error) {
      const std::lock_guard lock(mutex);
      errors[static_cast<size_t>(i)] = std::move(error);
      ++ended;
      changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended == 3; });
  EXPECT_FALSE(errors[0]);
  EXPECT_EQ(error_of(errors[1]).kind(), ErrorKind::kFile);
  EXPECT_FALSE(errors[2]);
  EXPECT_EQ(std::memcmp(memory.at(0), contents.data(), contents.size()), 0);
  EXPECT_EQ(std::memcmp(memory.at(512 * kKiB), contents.data(), contents.size()), 0);
}

TEST(FileEngineOptions, SizesThatCannotWorkAreTheUsersError) {
  for (const IoMode mode : {IoMode::kAuto, IoMode::kPread}) {
    for (const int64_t bytes : {int64_t{-4096}, int64_t{100}, int64_t{5000}, kGiB}) {
      FileEngineOptions options;
      options.mode = mode;
      options.request_bytes = bytes;
      options.bytes_in_flight = 4 * kGiB;
      EXPECT_EQ(error_of([&] { make_file_engine(options); }).kind(), ErrorKind::kUser) << bytes;
    }
    FileEngineOptions options;
    options.mode = mode;
    options.request_bytes = 64 * kKiB;
    options.bytes_in_flight = options.request_bytes - 1;
    EXPECT_EQ(error_of([&] { make_file_engine(options); }).kind(), ErrorKind::kUser);
  }
  FileEngineOptions options;
  options.threads = -1;
  EXPECT_EQ(error_of([&] { make_file_engine(options); }).kind(), ErrorKind::kUser);
}

/// From now on the calling thread, and what it starts, gets EPERM from io_uring_setup, as in many
/// containers.
bool forbid_io_uring() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(steps)), steps};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(FileEngineFallback, UsesThreadsWhereIoUringIsForbiddenAndSaysWhy) {
  const ScratchFolder folder;
  const std::vector<std::byte> contents = random_bytes(100 * kKiB, 1);
  write_file(folder.file("a"), contents);
  const AlignedBytes memory(100 * kKiB);
  LogLines log;
  bool was_forbidden = false;
  std::string description;
  std::exception_ptr uring_error;
  std::thread([&] {
    was_forbidden = forbid_io_uring();
    if (!was_forbidden) return;
    const auto engine = make_file_engine({.warn = log.sink()});
    description = engine->describe();
    const Extent extent{engine->open_for_read(folder.file("a")), 0, 100 * kKiB, memory.at(0)};
    engine->read_now({&extent, 1});
    try {
      make_file_engine({.mode = IoMode::kUring, .warn = log.sink()});
    } catch (...) {
      uring_error = std::current_exception();
    }
  }).join();
  if (!was_forbidden) GTEST_SKIP() << "seccomp is not to be had";
  EXPECT_EQ(std::memcmp(memory.at(0), contents.data(), contents.size()), 0);
  EXPECT_NE(description.find("threads with pread"), std::string::npos) << description;
  ASSERT_GE(log.all().size(), 1u);
  EXPECT_NE(log.all()[0].find("io_uring can't be used: io_uring_setup: Operation not permitted"),
            std::string::npos)
      << log.all()[0];
  EXPECT_NE(log.all()[0].find("; using 16 threads with pread"), std::string::npos) << log.all()[0];
  EXPECT_EQ(error_of(uring_error).kind(), ErrorKind::kDevice);
}

}  // namespace
}  // namespace sluice::io
