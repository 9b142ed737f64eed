#include "io/async/faulty_engine.h"

#include <cerrno>

#include "io/async/offload_file.h"
#include "tests/io/async/engine_fixture.h"
#include "tests/io/async/scripted_engine.h"

namespace sluice::io {
namespace {

class FaultyEngineTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 64 * kKiB;

  std::unique_ptr<FaultyEngine> engine(const FaultPlan& plan) {
    write_file(folder_.file("a"), contents_);
    auto engine = std::make_unique<FaultyEngine>(make_file_engine({}), plan);
    file_ = engine->open_for_read(folder_.file("a"));
    return engine;
  }
  Extent whole() const { return {file_, 0, kBytes, memory_.at(0)}; }
  bool is_right() const {
    return std::memcmp(memory_.at(0), contents_.data(), contents_.size()) == 0;
  }

  ScratchFolder folder_;
  std::vector<std::byte> contents_ = random_bytes(kBytes, 1);
  AlignedBytes memory_{kBytes};
  FileId file_ = -1;
};

TEST_F(FaultyEngineTest, WithAnEmptyPlanItIsTheEngineInside) {
  const auto engine = this->engine({});
  const Extent extent = whole();
  engine->read_now({&extent, 1});
  EXPECT_TRUE(is_right());
  EXPECT_EQ(engine->reads(), 1);
  EXPECT_EQ(engine->counters().read_bytes, kBytes);
  EXPECT_EQ(engine->size(file_), kBytes);
  EXPECT_NE(engine->describe().find("planned faults"), std::string::npos);
}

TEST_F(FaultyEngineTest, FailsTheReadThatThePlanNamesAndTouchesNoMemory) {
  const auto engine = this->engine({.failing_read = 1, .read_errno = EIO});
  const Extent extent = whole();
  engine->read_now({&extent, 1});
  std::memset(memory_.at(0), 0, kBytes);
  const Error error = error_of([&] { engine->read_now({&extent, 1}); });
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_NE(error.text().find("planned fault in read 1: Input/output error"), std::string::npos);
  EXPECT_EQ(*memory_.at(0), std::byte{0});
  engine->read_now({&extent, 1});
  EXPECT_TRUE(is_right());
}

TEST_F(FaultyEngineTest, FailsTheWriteThatThePlanNames) {
  const auto engine = this->engine({.failing_write = 0, .write_errno = ENOSPC});
  const FileId file = OffloadFile::create(folder_.path(), kBytes, "test").give_to(*engine);
  const Extent extent{file, 0, kBytes, memory_.at(0)};
  EXPECT_EQ(error_of([&] { engine->write_now({&extent, 1}); }).kind(), ErrorKind::kResource);
  engine->write_now({&extent, 1});
  EXPECT_EQ(engine->writes(), 2);
}

TEST_F(FaultyEngineTest, AShortenedReadBringsAFirstPartAndAnError) {
  const auto engine = this->engine({.shortened_read = 0, .shortened_bytes = 20000});
  const std::vector<Extent> extents{{file_, 0, 8192, memory_.at(0)},
                                    {file_, 8192, kBytes - 8192, memory_.at(8192)}};
  const Error error = error_of([&] { engine->read_now(extents); });
  EXPECT_EQ(error.kind(), ErrorKind::kFile);
  EXPECT_EQ(std::memcmp(memory_.at(0), contents_.data(), 16384), 0);
  EXPECT_EQ(*memory_.at(16384), std::byte{0xEE});
  EXPECT_FALSE(is_right());
  engine->read_now(extents);
  EXPECT_TRUE(is_right());
}

TEST_F(FaultyEngineTest, HeldCompletionsRunInReverse) {
  write_file(folder_.file("a"), contents_);
  auto owned = std::make_unique<ScriptedEngine>(FileEngineOptions{.request_bytes = 64 * kKiB},
                                                /*requests_in_flight=*/5);
  ScriptedEngine& inner = *owned;
  FaultyEngine engine(std::move(owned), {.held_completions = 3});
  const FileId file = engine.open_for_read(folder_.file("a"));
  std::vector<int> order;
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) {
    const Extent extent{file, 0, 4096, memory_.at(i * 4096)};
    engine.read({&extent, 1}, [&order, i](std::exception_ptr) { order.push_back(i); });
    requests.push_back(*inner.take());
  }
  inner.answer(requests[0], 4096);
  inner.answer(requests[1], 4096);
  EXPECT_TRUE(order.empty());
  inner.answer(requests[2], 4096);
  EXPECT_EQ(order, (std::vector<int>{2, 1, 0}));
  inner.answer(requests[4], 4096);
  EXPECT_EQ(order.size(), 3u);
  inner.answer(requests[3], 4096);  // the last that is under way: nothing more to wait for
  EXPECT_EQ(order, (std::vector<int>{2, 1, 0, 3, 4}));
}

TEST_F(FaultyEngineTest, HeldCompletionsAreLetGoWhenNothingElseIsUnderWay) {
  const auto engine = this->engine({.held_completions = 100});
  const Extent extent = whole();
  engine->read_now({&extent, 1});  // would wait for ever if it were held for 99 others
  EXPECT_TRUE(is_right());
}

TEST_F(FaultyEngineTest, ACallThatIsRefusedIsNotWaitedFor) {
  const auto engine = this->engine({.held_completions = 2});
  const Extent wrong{file_ + 1, 0, kBytes, memory_.at(0)};
  EXPECT_EQ(error_of([&] { engine->read_now({&wrong, 1}); }).kind(), ErrorKind::kInternal);
  const Extent extent = whole();
  engine->read_now({&extent, 1});
  EXPECT_TRUE(is_right());
}

}  // namespace
}  // namespace sluice::io
