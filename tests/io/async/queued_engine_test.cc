#include "io/async/queued_engine.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "tests/io/async/engine_fixture.h"
#include "tests/io/async/scripted_engine.h"

namespace sluice::io {
namespace {

class QueuedEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.request_bytes = 16 * kKiB;
    options_.bytes_in_flight = 64 * kKiB;
    options_.log = log_.sink();
    options_.warn = log_.sink();
    engine_ = std::make_unique<ScriptedEngine>(options_);
    write_file(folder_.file("a"), random_bytes(kMiB, 1));
    const auto open = [&](bool is_direct) {
      OwnedFd fd(::open(folder_.file("a").c_str(), O_RDONLY | O_CLOEXEC));
      return engine_->adopt(std::move(fd), "a", is_direct);
    };
    cached_ = open(false);
    direct_ = open(true);
  }

  /// Starts a group of one extent; its end shows in ended_ and error_.
  void read(FileId file, int64_t bytes, int64_t required = -1) {
    const Extent extent{file, 0, bytes, memory_.at(0), required};
    engine_->read({&extent, 1}, completion());
  }
  Completion completion() {
    return [this](std::exception_ptr error) {
      ++ended_;
      error_ = error;
    };
  }

  ScratchFolder folder_;
  LogLines log_;
  FileEngineOptions options_;
  AlignedBytes memory_{kMiB};
  int ended_ = 0;
  std::exception_ptr error_;
  FileId cached_ = -1;
  FileId direct_ = -1;
  std::unique_ptr<ScriptedEngine> engine_;  // last: its end runs completions
};

TEST_F(QueuedEngineTest, CutsExtentsIntoRequestsAndEndsTheGroupWithTheLast) {
  read(cached_, 40 * kKiB);
  std::vector<Request> requests;
  while (auto request = engine_->take()) requests.push_back(*request);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].bytes, 16 * kKiB);
  EXPECT_EQ(requests[1].offset, 16 * kKiB);
  EXPECT_EQ(requests[2].offset, 32 * kKiB);
  EXPECT_EQ(requests[2].bytes, 8 * kKiB);
  EXPECT_EQ(requests[2].memory, memory_.at(32 * kKiB));
  for (const int i : {1, 2, 0}) {  // in any order
    EXPECT_EQ(ended_, 0);
    EXPECT_FALSE(
        engine_->answer(requests[static_cast<size_t>(i)], requests[static_cast<size_t>(i)].bytes));
  }
  EXPECT_EQ(ended_, 1);
  EXPECT_FALSE(error_);
  EXPECT_EQ(engine_->counters().read_bytes, 40 * kKiB);
}

TEST_F(QueuedEngineTest, AShortReadGoesOnWhereItStopped) {
  read(cached_, 16 * kKiB);
  Request request = *engine_->take();
  EXPECT_TRUE(engine_->answer(request, 5000));
  EXPECT_EQ(request.progress, 5000);
  EXPECT_TRUE(engine_->answer(request, 1));
  EXPECT_EQ(request.progress, 5001);
  EXPECT_EQ(ended_, 0);
  EXPECT_FALSE(engine_->answer(request, 16 * kKiB - 5001));
  EXPECT_EQ(ended_, 1);
  EXPECT_FALSE(error_);
}

TEST_F(QueuedEngineTest, AShortDirectReadGoesOnAtAnAlignedPlace) {
  read(direct_, 16 * kKiB);
  Request request = *engine_->take();
  EXPECT_TRUE(engine_->answer(request, 5000));
  EXPECT_EQ(request.progress, 4096);
  EXPECT_FALSE(engine_->answer(request, 12 * kKiB));
  EXPECT_EQ(ended_, 1);
  EXPECT_FALSE(error_);
  EXPECT_EQ(engine_->counters().read_bytes, 16 * kKiB);
}

TEST_F(QueuedEngineTest, AShortReadThatHasAllThatIsRequiredIsEnough) {
  read(direct_, 16 * kKiB, 9000);
  Request request = *engine_->take();
  EXPECT_TRUE(engine_->answer(request, 8192));
  EXPECT_FALSE(engine_->answer(request, 808));
  EXPECT_EQ(ended_, 1);
  EXPECT_FALSE(error_);
}

TEST_F(QueuedEngineTest, InterruptionsAreRetriedButNotForEver) {
  read(cached_, 4096);
  Request request = *engine_->take();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(engine_->answer(request, i % 2 == 0 ? -EINTR : -EAGAIN));
  EXPECT_FALSE(engine_->answer(request, 4096));
  EXPECT_FALSE(error_);

  read(cached_, 4096);
  request = *engine_->take();
  int answers = 1;
  while (engine_->answer(request, -EAGAIN)) ASSERT_LT(++answers, 1000);
  EXPECT_EQ(error_of(error_).kind(), ErrorKind::kFile);
  EXPECT_EQ(ended_, 2);
}

TEST_F(QueuedEngineTest, NoBytesInTheMiddleOfTheFileIsAnErrorInTheEnd) {
  read(cached_, 4096);
  Request request = *engine_->take();
  int answers = 1;
  while (engine_->answer(request, 0)) ASSERT_LT(++answers, 1000);
  EXPECT_NE(error_of(error_).text().find("the system moves no bytes after the first 0"),
            std::string::npos);
}

TEST_F(QueuedEngineTest, AFileSystemThatRefusesADirectReadIsReadThroughThePageCache) {
  read(direct_, 32 * kKiB);
  Request first = *engine_->take();
  Request second = *engine_->take();
  EXPECT_TRUE(engine_->is_direct(direct_));
  EXPECT_TRUE(engine_->answer(first, -EINVAL));
  EXPECT_TRUE(engine_->answer(second, -EINVAL));  // was under way already
  EXPECT_FALSE(engine_->is_direct(direct_));
  EXPECT_TRUE(engine_->answer(first, 5000));
  EXPECT_EQ(first.progress, 5000);  // nothing needs to be aligned any more
  EXPECT_FALSE(engine_->answer(first, 16 * kKiB - 5000));
  EXPECT_FALSE(engine_->answer(second, 16 * kKiB));
  EXPECT_EQ(ended_, 1);
  EXPECT_FALSE(error_);
  ASSERT_EQ(log_.all().size(), 1u);
  EXPECT_NE(log_.all()[0].find("a: the file system refuses direct I/O"), std::string::npos);

  // Now EINVAL is an error like any other.
  read(direct_, 4096);
  Request third = *engine_->take();
  EXPECT_FALSE(engine_->answer(third, -EINVAL));
  EXPECT_EQ(error_of(error_).kind(), ErrorKind::kFile);
}

TEST_F(QueuedEngineTest, TheFirstErrorWinsAndTheRestOfTheGroupIsDropped) {
  read(cached_, 128 * kKiB);  // eight requests, of which four may be in flight
  std::vector<Request> requests;
  while (auto request = engine_->take()) requests.push_back(*request);
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_FALSE(engine_->answer(requests[2], -EIO));
  EXPECT_FALSE(engine_->take()) << "the rest was to be dropped";
  EXPECT_FALSE(engine_->answer(requests[0], -ENOSPC));
  EXPECT_FALSE(engine_->answer(requests[1], 16 * kKiB));
  EXPECT_EQ(ended_, 0) << "a request is still in flight";
  EXPECT_FALSE(engine_->answer(requests[3], 16 * kKiB));
  EXPECT_EQ(ended_, 1);
  const Error error = error_of(error_);
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find("reading 16.0KiB at offset 32768 of a: Input/output error"),
            std::string::npos)
      << error.text();
}

TEST_F(QueuedEngineTest, ShortWritesGoOnAndTheirErrorsHaveKinds) {
  const auto write = [&] {
    const Extent extent{cached_, 0, 8192, memory_.at(0)};
    engine_->write({&extent, 1}, completion());
    return *engine_->take();
  };
  Request request = write();
  EXPECT_TRUE(engine_->answer(request, 100));
  EXPECT_EQ(request.progress, 100);
  EXPECT_FALSE(engine_->answer(request, 8092));
  EXPECT_FALSE(error_);
  EXPECT_EQ(engine_->counters().written_bytes, 8192);
  struct Case {
    int error_number;
    ErrorKind kind;
  };
  for (const Case& c : {Case{ENOSPC, ErrorKind::kResource}, Case{EDQUOT, ErrorKind::kResource},
                        Case{EFBIG, ErrorKind::kResource}, Case{EIO, ErrorKind::kFile},
                        Case{EBADF, ErrorKind::kFile}}) {
    request = write();
    EXPECT_FALSE(engine_->answer(request, -c.error_number));
    EXPECT_EQ(error_of(error_).kind(), c.kind) << c.error_number;
    EXPECT_NE(error_of(error_).text().find("writing 8.00KiB at offset 0 of a"), std::string::npos);
  }
}

TEST_F(QueuedEngineTest, CancellingSparesWhatIsWhollyInFlight) {
  read(cached_, 32 * kKiB);
  int others = 0;
  std::exception_ptr other_error;
  const auto other = [&](std::exception_ptr error) {
    ++others;
    other_error = error;
  };
  const Extent partly{cached_, 0, 64 * kKiB, memory_.at(64 * kKiB)};
  engine_->read({&partly, 1}, other);
  const Extent waiting{cached_, 0, 4096, memory_.at(512 * kKiB)};
  engine_->read({&waiting, 1}, other);
  std::vector<Request> requests;
  while (auto request = engine_->take()) requests.push_back(*request);
  ASSERT_EQ(requests.size(), 4u);  // two of each of the first two groups

  engine_->cancel_pending();
  EXPECT_FALSE(engine_->take());
  EXPECT_FALSE(engine_->answer(requests[2], 16 * kKiB));
  EXPECT_EQ(others, 1) << "only the group that waited has nothing in flight";
  EXPECT_FALSE(engine_->answer(requests[3], 16 * kKiB));
  EXPECT_EQ(others, 2);
  EXPECT_EQ(error_of(other_error).kind(), ErrorKind::kCancelled);
  EXPECT_FALSE(engine_->answer(requests[0], 16 * kKiB));
  EXPECT_FALSE(engine_->answer(requests[1], 16 * kKiB));
  EXPECT_EQ(ended_, 1);
  EXPECT_FALSE(error_);
}

TEST_F(QueuedEngineTest, AFileStaysOpenUntilItsLastRequestIsOver) {
  read(cached_, 4096);
  engine_->close(cached_);
  Request request = *engine_->take();
  std::byte byte{};
  EXPECT_EQ(::pread(request.file->fd.get(), &byte, 1, 0), 1);
  EXPECT_FALSE(engine_->answer(request, 4096));
  EXPECT_FALSE(error_);
}

}  // namespace
}  // namespace sluice::io
