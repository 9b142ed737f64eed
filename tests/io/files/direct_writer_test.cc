#include "io/files/direct_writer.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "io/checkpoint/parallel_ranges.h"
#include "io/files/durable_file.h"
#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 131 + (i >> 9));
  return text;
}

TEST(DirectWriter, WritesFilesOfAnySize) {
  TemporaryFolder folder;
  for (const size_t size : {0u, 1u, 4095u, 4096u, 4097u, 100000u, (8u << 20) - 1, 8u << 20,
                            (8u << 20) + 1, (50u << 20) + 17}) {
    const std::string text = pattern(size);
    DirectWriter writer(folder / "x", static_cast<int64_t>(size), DirectWriter::Checksum::kCrc32c);
    for (size_t at = 0; at < size; at += 777777)
      writer.append(
          std::as_bytes(std::span(text).subspan(at, std::min<size_t>(777777, size - at))));
    writer.finish();
    EXPECT_EQ(writer.bytes(), static_cast<int64_t>(size));
    EXPECT_EQ(writer.checksum(), crc32c(std::as_bytes(std::span(text))));
    EXPECT_TRUE(read_all(folder / "x") == text) << size;
  }
}

TEST(DirectWriter, TheExpectedSizeIsOnlyAHint) {
  TemporaryFolder folder;
  const std::string text = pattern(30000);
  for (const int64_t expected : {int64_t{0}, int64_t{1}, int64_t{64} << 20}) {
    DirectWriter writer(folder / "x", expected, DirectWriter::Checksum::kNone);
    writer.append(std::as_bytes(std::span(text)));
    writer.append_zeros(5000);
    writer.finish();
    EXPECT_TRUE(read_all(folder / "x") == text + std::string(5000, '\0')) << expected;
  }
}

TEST(DirectWriter, ReplacesALongerFile) {
  TemporaryFolder folder;
  write_all(folder / "x", std::string(100000, 'o'));
  DirectWriter writer(folder / "x", 3, DirectWriter::Checksum::kNone);
  writer.append(std::as_bytes(std::span("new", 3)));
  writer.finish();
  EXPECT_EQ(read_all(folder / "x"), "new");
}

TEST(DirectWriter, EndsQuietlyWhenAbandoned) {
  TemporaryFolder folder;
  const std::string text = pattern(20 << 20);
  {
    DirectWriter writer(folder / "x", 64 << 20, DirectWriter::Checksum::kNone);
    writer.append(std::as_bytes(std::span(text)));
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "x"));
}

TEST(DirectWriter, AFullDiskIsAResourceError) {
  const std::string text = pattern(64 << 20);
  expect_refusal(
      [&] {
        DirectWriter writer("/dev/full", 0, DirectWriter::Checksum::kNone);
        writer.append(std::as_bytes(std::span(text)));
        writer.finish();
      },
      ErrorKind::kResource, {"/dev/full", "No space left", "free space"});
}

TEST(DirectWriter, NamesThePathThatCannotBeMade) {
  TemporaryFolder folder;
  expect_refusal([&] { DirectWriter(folder / "absent" / "x", 0, DirectWriter::Checksum::kNone); },
                 ErrorKind::kFile, {"absent/x", "No such file"});
}

TEST(DurableFile, WritesWholeFilesAndLeavesNoPartialOnes) {
  TemporaryFolder folder;
  write_file_durably(folder / "a.json", "first");
  write_file_durably(folder / "a.json", "second");
  EXPECT_EQ(read_all(folder / "a.json"), "second");
  copy_file_durably(folder / "a.json", folder / "b.json");
  EXPECT_EQ(read_all(folder / "b.json"), "second");
  EXPECT_FALSE(std::filesystem::exists(partial_path(folder / "a.json")));
  EXPECT_FALSE(std::filesystem::exists(partial_path(folder / "b.json")));
}

TEST(DurableFile, TellsWhenADiskIsTooSmall) {
  TemporaryFolder folder;
  const int64_t free = free_disk_bytes(folder.path());
  EXPECT_GT(free, 0);
  EXPECT_NO_THROW(require_disk_space(folder.path(), 1));
  expect_refusal([&] { require_disk_space(folder.path(), 4 * free); }, ErrorKind::kResource,
                 {"are needed", "short"});
  EXPECT_NO_THROW(require_disk_space(folder.path(), 4 * free, 8 * free));
}

TEST(ParallelRanges, CoversEveryIndexOnce) {
  for (const int threads : {0, 1, 2, 7})
    for (const int64_t count : {0, 1, 2, 6, 7, 8, 1000, 1001}) {
      std::mutex mutex;
      std::multiset<int64_t> seen;
      parallel_ranges(threads, count, 3, [&](int64_t begin, int64_t end) {
        const std::scoped_lock lock(mutex);
        EXPECT_TRUE(end - begin >= 3 || count < 6);
        for (int64_t i = begin; i < end; ++i) seen.insert(i);
      });
      EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
      EXPECT_EQ(static_cast<int64_t>(std::set<int64_t>(seen.begin(), seen.end()).size()), count);
    }
}

TEST(ParallelRanges, HandsTheErrorToTheCaller) {
  for (const int64_t bad : {0, 50, 99})
    expect_refusal(
        [&] {
          parallel_ranges(4, 100, 1, [&](int64_t begin, int64_t end) {
            if (begin <= bad && bad < end) throw Error(ErrorKind::kFile, "the bad one");
          });
        },
        ErrorKind::kFile, {"the bad one"});
}

}  // namespace
}  // namespace sluice::io
