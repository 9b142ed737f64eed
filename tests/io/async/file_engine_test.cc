#include "io/async/file_engine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "io/async/offload_file.h"
#include "tests/io/async/engine_fixture.h"

namespace sluice::io {
namespace {

class FileEngineTest : public EveryEngine {};
SLUICE_EVERY_ENGINE(FileEngineTest);

/// One aligned window of a file and the place that it is read to.
struct Wanted {
  size_t file;
  Window window;
  int64_t required;
  int64_t place;
};

TEST_P(FileEngineTest, ReadsRandomWindowsOfManyFiles) {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random() % uint64_t(bound));
  };
  const auto engine = this->engine();
  std::vector<std::vector<std::byte>> contents;
  std::vector<FileId> files;
  for (const int64_t bytes : {1, 4095, 4096, 4097, 100000, 1 << 20, (1 << 20) + 13}) {
    contents.push_back(random_bytes(bytes, static_cast<uint64_t>(bytes)));
    const std::string path = folder_.file(std::to_string(bytes));
    write_file(path, contents.back());
    files.push_back(engine->open_for_read(path));
    EXPECT_EQ(engine->size(files.back()), bytes);
  }
  for (int round = 0; round < 20; ++round) {
    std::vector<Wanted> wanted;
    int64_t total = 0;
    for (int64_t i = below(30); i >= 0; --i) {
      const auto file = static_cast<size_t>(below(static_cast<int64_t>(files.size())));
      const auto size = static_cast<int64_t>(contents[file].size());
      const int64_t offset = below(size);
      const int64_t bytes = 1 + below(size - offset);
      const Window window = aligned_window(offset, bytes);
      wanted.push_back({file, window, std::min(window.bytes, size - window.offset), total});
      total += window.bytes;
    }
    const AlignedBytes memory(total);
    std::vector<Extent> extents;
    for (const Wanted& want : wanted) {
      extents.push_back({files[want.file], want.window.offset, want.window.bytes,
                         memory.at(want.place), want.required});
    }
    engine->read_now(extents);
    for (const Wanted& want : wanted) {
      ASSERT_EQ(std::memcmp(memory.at(want.place), contents[want.file].data() + want.window.offset,
                            static_cast<size_t>(want.required)),
                0)
          << "round " << round << ", file of " << contents[want.file].size() << " bytes at "
          << want.window.offset;
    }
  }
  EXPECT_TRUE(log_.all().size() <= 1u);
}

TEST_P(FileEngineTest, LeavesMemoryBesideTheExtentAlone) {
  write_file(folder_.file("a"), random_bytes(64 * kKiB, 1));
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(64 * kKiB);
  const Extent extent{file, 8 * kKiB, 40 * kKiB, memory.at(12 * kKiB)};
  engine->read_now({&extent, 1});
  for (int64_t i = 0; i < 12 * kKiB; ++i) ASSERT_EQ(*memory.at(i), std::byte{0xEE}) << i;
  for (int64_t i = 52 * kKiB; i < 64 * kKiB; ++i) ASSERT_EQ(*memory.at(i), std::byte{0xEE}) << i;
}

TEST_P(FileEngineTest, ReadsTheTailOfAFileThatIsNotAligned) {
  const std::vector<std::byte> contents = random_bytes(50001, 3);
  write_file(folder_.file("a"), contents);
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(128 * kKiB);
  const Extent extent{file, 0, 128 * kKiB, memory.at(0),
                      50001};  // many requests lie wholly past the end
  engine->read_now({&extent, 1});
  EXPECT_EQ(std::memcmp(memory.at(0), contents.data(), contents.size()), 0);
}

TEST_P(FileEngineTest, WritesAndReadsBack) {
  const auto engine = this->engine();
  constexpr int64_t kBytes = 3 * kMiB + 64 * kKiB;
  OffloadFile offload = OffloadFile::create(folder_.path(), kBytes, "test", GetParam().direct);
  const FileId file = offload.give_to(*engine);
  EXPECT_EQ(engine->size(file), kBytes);
  const std::vector<std::byte> contents = random_bytes(kBytes, 5);
  const AlignedBytes out(kBytes);
  std::memcpy(out.at(0), contents.data(), contents.size());
  // Backwards in pieces, so that order in the file is not order in time.
  std::vector<Extent> extents;
  for (int64_t end = kBytes; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - 100 * kKiB);
    extents.push_back({file, begin, end - begin, out.at(begin)});
    end = begin;
  }
  engine->write_now(extents);
  const AlignedBytes in(kBytes);
  const Extent whole{file, 0, kBytes, in.at(0)};
  engine->read_now({&whole, 1});
  EXPECT_EQ(std::memcmp(in.at(0), contents.data(), contents.size()), 0);
}

TEST_P(FileEngineTest, TakesUnalignedExtentsOfFilesThatAreNotDirect) {
  const std::vector<std::byte> contents = random_bytes(100000, 9);
  write_file(folder_.file("a"), contents);
  const auto engine = this->engine();
  FileId file = engine->open_for_read(folder_.file("a"));
  if (engine->is_direct(file)) {
    file = engine->adopt(OwnedFd(::open(folder_.file("a").c_str(), O_RDONLY)), "a", false);
  }
  const AlignedBytes memory(100000);
  const Extent extent{file, 333, 70001, memory.at(5)};
  engine->read_now({&extent, 1});
  EXPECT_EQ(std::memcmp(memory.at(5), contents.data() + 333, 70001), 0);
}

TEST_P(FileEngineTest, EmptyGroupsEndWithoutAnError) {
  write_file(folder_.file("a"), {});
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  engine->read_now({});
  engine->write_now({});
  const std::vector<Extent> nothing(3, Extent{file, 0, 0, nullptr});
  engine->read_now(nothing);
  EXPECT_EQ(engine->size(file), 0);
  EXPECT_EQ(engine->counters().requests, 0);
}

TEST_P(FileEngineTest, ReadsIntoRegisteredMemory) {
  const std::vector<std::byte> contents = random_bytes(kMiB, 11);
  write_file(folder_.file("a"), contents);
  const auto engine = this->engine();
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(2 * kMiB);
  const std::span<std::byte> part = memory.span().subspan(kMiB / 2, kMiB);
  const int64_t granted = engine->register_memory(part);
  EXPECT_TRUE(granted == 0 || (granted == kMiB && GetParam().mode == IoMode::kUring)) << granted;
  EXPECT_EQ(engine->describe().find("registered") != std::string::npos, granted > 0);
  // Before, across both edges of, inside, and after the registered part.
  for (const int64_t place : {int64_t{0}, 256 * kKiB, 512 * kKiB, 768 * kKiB, kMiB}) {
    const Extent extent{file, 0, kMiB, memory.at(place)};
    engine->read_now({&extent, 1});
    ASSERT_EQ(std::memcmp(memory.at(place), contents.data(), contents.size()), 0) << place;
  }
  engine->unregister_memory(part);
  EXPECT_EQ(engine->describe().find("registered"), std::string::npos);
  engine->unregister_memory(part);  // unknown by now: ignored
  std::memset(memory.at(0), 0, 2 * kMiB);
  const Extent extent{file, 0, kMiB, memory.at(512 * kKiB)};
  engine->read_now({&extent, 1});
  EXPECT_EQ(std::memcmp(memory.at(512 * kKiB), contents.data(), contents.size()), 0);
}

TEST_P(FileEngineTest, WritesFromRegisteredMemoryAgainAndAgain) {
  const auto engine = this->engine();
  OffloadFile offload = OffloadFile::create(folder_.path(), kMiB, "test", GetParam().direct);
  const FileId file = offload.give_to(*engine);
  for (uint64_t round = 0; round < 8; ++round) {
    const AlignedBytes memory(2 * kMiB);
    engine->register_memory(memory.span());
    const std::vector<std::byte> contents = random_bytes(kMiB, round);
    std::memcpy(memory.at(0), contents.data(), contents.size());
    const Extent out{file, 0, kMiB, memory.at(0)};
    const Extent in{file, 0, kMiB, memory.at(kMiB)};
    engine->write_now({&out, 1});
    engine->read_now({&in, 1});
    ASSERT_EQ(std::memcmp(memory.at(kMiB), contents.data(), contents.size()), 0) << round;
    engine->unregister_memory(memory.span());
  }
}

TEST_P(FileEngineTest, CountsBytesRequestsAndWhatIsInFlight) {
  write_file(folder_.file("a"), random_bytes(kMiB, 2));
  const auto engine = this->engine(16 * kKiB, 64 * kKiB);
  const FileId file = engine->open_for_read(folder_.file("a"));
  const AlignedBytes memory(kMiB);
  const Extent extent{file, 0, kMiB, memory.at(0)};
  engine->read_now({&extent, 1});
  const EngineCounters counters = engine->counters();
  EXPECT_EQ(counters.read_bytes, kMiB);
  EXPECT_EQ(counters.written_bytes, 0);
  EXPECT_EQ(counters.requests, 64);
  EXPECT_GT(counters.read_busy_seconds, 0);
  EXPECT_EQ(counters.write_busy_seconds, 0);
  EXPECT_GE(counters.max_bytes_in_flight, 16 * kKiB);
  EXPECT_LE(counters.max_bytes_in_flight, 64 * kKiB);
}

TEST_P(FileEngineTest, DescribesItself) {
  const std::string text = engine(16 * kKiB, 128 * kKiB)->describe();
  EXPECT_NE(text.find(GetParam().mode == IoMode::kUring ? "io_uring" : "8 threads with pread"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(GetParam().direct ? "O_DIRECT" : "page cache"), std::string::npos) << text;
  EXPECT_NE(text.find("16.0KiB requests, 128KiB in flight"), std::string::npos) << text;
}

TEST_P(FileEngineTest, ReadsThroughThePageCacheWhereDirectIsRefusedAndSaysSoOnce) {
  // procfs has files but no direct I/O.
  if (::access("/proc/version", R_OK) != 0) GTEST_SKIP() << "no /proc/version";
  const auto engine = this->engine();
  for (const char* path : {"/proc/version", "/proc/filesystems"}) {
    const FileId file = engine->open_for_read(path);
    EXPECT_FALSE(engine->is_direct(file));
    const AlignedBytes memory(4096);
    const Extent extent{file, 0, 4096, memory.at(0), 5};
    engine->read_now({&extent, 1});
    const std::string start(reinterpret_cast<const char*>(memory.at(0)), 5);
    EXPECT_TRUE(start == "Linux" || start == "nodev") << start;
  }
  const std::vector<std::string> lines = log_.all();
  ASSERT_EQ(lines.size(), GetParam().direct ? 1u : 0u);
  if (GetParam().direct) {
    EXPECT_NE(lines[0].find("/proc/version: the file system refuses direct I/O"),
              std::string::npos);
    EXPECT_NE(engine->describe().find("page cache where direct I/O is refused"), std::string::npos);
  }
}

TEST(AlignedWindow, CoversTheBytesWithTheLeastOfPages) {
  struct Case {
    int64_t offset, bytes, window_offset, window_bytes;
  };
  for (const Case& c :
       {Case{0, 0, 0, 0}, Case{0, 1, 0, 4096}, Case{4095, 1, 0, 4096}, Case{4095, 2, 0, 8192},
        Case{4096, 4096, 4096, 4096}, Case{10000, 10000, 8192, 12288},
        Case{int64_t{1} << 45, 5, int64_t{1} << 45, 4096}}) {
    const Window window = aligned_window(c.offset, c.bytes);
    EXPECT_EQ(window.offset, c.window_offset) << c.offset << " " << c.bytes;
    EXPECT_EQ(window.bytes, c.window_bytes) << c.offset << " " << c.bytes;
  }
}

}  // namespace
}  // namespace sluice::io
