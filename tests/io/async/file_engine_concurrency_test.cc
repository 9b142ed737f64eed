#include <atomic>
#include <future>
#include <latch>
#include <thread>

#include "io/async/file_engine.h"
#include "io/async/offload_file.h"
#include "tests/io/async/engine_fixture.h"

namespace sluice::io {
namespace {

class FileEngineConcurrency : public EveryEngine {
 protected:
  static constexpr int kGroups = 200;
};
SLUICE_EVERY_ENGINE(FileEngineConcurrency);

TEST_P(FileEngineConcurrency, ManyThreadsReadAndWriteTheirOwnParts) {
  constexpr int kThreads = 4;
  constexpr int64_t kPart = 256 * kKiB;
  const auto engine = this->engine();
  OffloadFile offload =
      OffloadFile::create(folder_.path(), kThreads * kPart, "test", GetParam().direct);
  const FileId file = offload.give_to(*engine);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const AlignedBytes out(kPart);
        const AlignedBytes in(kPart);
        for (int round = 0; round < 10; ++round) {
          const std::vector<std::byte> bytes =
              random_bytes(kPart, static_cast<uint64_t>(t * 100 + round));
          std::memcpy(out.at(0), bytes.data(), bytes.size());
          const Extent write{file, t * kPart, kPart, out.at(0)};
          engine->write_now({&write, 1});
          const Extent read{file, t * kPart, kPart, in.at(0)};
          engine->read_now({&read, 1});
          if (std::memcmp(in.at(0), bytes.data(), bytes.size()) != 0) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(engine->counters().read_bytes, 10 * kThreads * kPart);
  EXPECT_EQ(engine->counters().written_bytes, 10 * kThreads * kPart);
}

TEST_P(FileEngineConcurrency, EveryCompletionRunsExactlyOnce) {
  write_file(folder_.file("a"), random_bytes(kMiB, 1));
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(kGroups * 16 * kKiB);
  std::vector<std::atomic<int>> calls(kGroups);
  std::latch all(kGroups);
  for (int i = 0; i < kGroups; ++i) {
    const int64_t at = i * 16 * kKiB;
    const Extent extent{file, i % 64 * 16 * kKiB, i % 5 * 4 * kKiB, memory.at(at)};
    engine->read({&extent, 1}, [&, i](std::exception_ptr error) {
      EXPECT_FALSE(error);
      ++calls[static_cast<size_t>(i)];
      all.count_down();
    });
  }
  all.wait();
  for (int i = 0; i < kGroups; ++i) EXPECT_EQ(calls[static_cast<size_t>(i)], 1) << i;
}

TEST_P(FileEngineConcurrency, ACompletionMayStartTheNextRead) {
  const std::vector<std::byte> contents = random_bytes(kMiB, 1);
  write_file(folder_.file("a"), contents);
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(kMiB);
  std::promise<void> finished;
  std::function<void(int64_t)> read_from = [&](int64_t offset) {
    const Extent extent{file, offset, 32 * kKiB, memory.at(offset)};
    engine->read({&extent, 1}, [&, offset](std::exception_ptr error) {
      if (error) return finished.set_exception(error);
      offset + 32 * kKiB < kMiB ? read_from(offset + 32 * kKiB) : finished.set_value();
    });
  };
  read_from(0);
  finished.get_future().get();
  EXPECT_EQ(std::memcmp(memory.at(0), contents.data(), contents.size()), 0);
}

TEST_P(FileEngineConcurrency, ACompletionThatWaitsForTheEngineIsRefused) {
  const auto engine = this->engine();
  std::promise<std::vector<ErrorKind>> kinds;
  engine->read({}, [&](std::exception_ptr) {
    kinds.set_value({error_of([&] { engine->read_now({}); }).kind(),
                     error_of([&] { engine->write_now({}); }).kind()});
  });
  for (const ErrorKind kind : kinds.get_future().get()) EXPECT_EQ(kind, ErrorKind::kInternal);
}

TEST_P(FileEngineConcurrency, ACompletionThatThrowsIsLoggedAndHurtsNoOther) {
  {
    const auto engine = this->engine();
    engine->read({},
                 [](std::exception_ptr) { throw std::runtime_error("a mistake of the caller"); });
    engine->read_now({});
  }
  ASSERT_EQ(log_.all().size(), 1u);
  EXPECT_NE(log_.all()[0].find("a mistake of the caller"), std::string::npos);
}

TEST_P(FileEngineConcurrency, AClosedFileFinishesTheReadsThatItHas) {
  const std::vector<std::byte> contents = random_bytes(kMiB, 1);
  write_file(folder_.file("a"), contents);
  const auto engine = this->engine();
  const AlignedBytes memory(kMiB);
  for (int round = 0; round < 10; ++round) {
    std::memset(memory.at(0), 0, kMiB);
    const FileId file = engine->open_for_read(folder_.file("a"));
    const Extent extent{file, 0, kMiB, memory.at(0)};
    std::promise<void> finished;
    engine->read({&extent, 1}, [&](std::exception_ptr error) {
      EXPECT_FALSE(error);
      finished.set_value();
    });
    engine->close(file);
    finished.get_future().get();
    ASSERT_EQ(std::memcmp(memory.at(0), contents.data(), contents.size()), 0) << round;
  }
}

TEST_P(FileEngineConcurrency, TheEndOfTheEngineEndsEveryGroup) {
  const std::vector<std::byte> contents = random_bytes(kMiB, 1);
  write_file(folder_.file("a"), contents);
  const AlignedBytes memory(kGroups * 64 * kKiB);
  std::vector<std::atomic<int>> calls(kGroups);
  std::atomic<int> succeeded{0};
  std::atomic<int> cancelled{0};
  {
    const auto engine = this->engine();
    const FileId file = engine->open_for_read(folder_.file("a"));
    for (int i = 0; i < kGroups; ++i) {
      const Extent extent{file, 0, 64 * kKiB, memory.at(i * 64 * kKiB)};
      engine->read({&extent, 1}, [&, i](std::exception_ptr error) {
        ++calls[static_cast<size_t>(i)];
        if (!error) {
          EXPECT_EQ(std::memcmp(memory.at(i * 64 * kKiB), contents.data(), 64 * kKiB), 0);
          ++succeeded;
        } else if (error_of(error).kind() == ErrorKind::kCancelled) {
          ++cancelled;
        }
      });
    }
  }
  for (int i = 0; i < kGroups; ++i) EXPECT_EQ(calls[static_cast<size_t>(i)], 1) << i;
  EXPECT_EQ(succeeded + cancelled, kGroups);
}

TEST_P(FileEngineConcurrency, CancellingEndsPendingGroupsAndTheEngineWorksOn) {
  const std::vector<std::byte> contents = random_bytes(kMiB, 1);
  write_file(folder_.file("a"), contents);
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(kGroups * 64 * kKiB);
  std::latch all(kGroups);
  std::atomic<int> others{0};
  std::jthread canceller([&] { engine->cancel_pending(); });
  for (int i = 0; i < kGroups; ++i) {
    const Extent extent{file, 0, 64 * kKiB, memory.at(i * 64 * kKiB)};
    engine->read({&extent, 1}, [&](std::exception_ptr error) {
      if (error && error_of(error).kind() != ErrorKind::kCancelled) ++others;
      all.count_down();
    });
  }
  engine->cancel_pending();
  all.wait();
  canceller.join();
  EXPECT_EQ(others, 0);
  const Extent extent{file, 0, kMiB, memory.at(0)};
  engine->read_now({&extent, 1});
  EXPECT_EQ(std::memcmp(memory.at(0), contents.data(), contents.size()), 0);
}

TEST_P(FileEngineConcurrency, MemoryIsRegisteredWhileReadsAreUnderWay) {
  const std::vector<std::byte> contents = random_bytes(kMiB, 1);
  write_file(folder_.file("a"), contents);
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes mine(kMiB);
  const AlignedBytes other(kMiB);
  std::atomic<bool> stops{false};
  std::jthread registrar([&] {
    while (!stops) {
      engine->register_memory(mine.span());
      engine->unregister_memory(mine.span());
      engine->register_memory(other.span());
      engine->unregister_memory(other.span());
    }
  });
  for (int round = 0; round < 50; ++round) {
    std::memset(mine.at(0), 0, kMiB);
    const Extent extent{file, 0, kMiB, mine.at(0)};
    engine->read_now({&extent, 1});
    EXPECT_EQ(std::memcmp(mine.at(0), contents.data(), contents.size()), 0) << round;
  }
  stops = true;
}

}  // namespace
}  // namespace sluice::io
