#include "io/checkpoint/piece_reader.h"

#include <random>

#include "io/checkpoint/store_checksum.h"
#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

std::string noise(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

class Pieces : public testing::Test {
 protected:
  void SetUp() override {
    for (unsigned i = 0; i < 3; ++i) {
      texts_.push_back(noise(100003 + 5000 * i, i));
      paths_.push_back(folder_ / ("f" + std::to_string(i)));
      write_all(paths_.back(), texts_.back());
    }
  }
  TemporaryFolder folder_;
  std::vector<std::string> texts_;
  std::vector<std::filesystem::path> paths_;
};

TEST_F(Pieces, ComeInOrderWhateverTheirPlace) {
  std::mt19937 random(9);
  std::vector<Piece> pieces;
  for (int i = 0; i < 300; ++i) {
    const auto file = static_cast<int32_t>(random() % 3);
    const auto size = static_cast<int64_t>(texts_[static_cast<size_t>(file)].size());
    const auto offset = static_cast<int64_t>(random()) % size;
    pieces.push_back({file, offset, 1 + static_cast<int64_t>(random()) % (size - offset)});
  }
  PieceReader reader(paths_, pieces);
  for (const Piece& piece : pieces) {
    const auto bytes = reader.next();
    const std::string_view expected =
        std::string_view(texts_[static_cast<size_t>(piece.file_index)])
            .substr(static_cast<size_t>(piece.offset), static_cast<size_t>(piece.bytes));
    ASSERT_TRUE(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) ==
                expected);
  }
}

TEST_F(Pieces, TheLastByteCanBeRead) {
  const auto size = static_cast<int64_t>(texts_[0].size());
  PieceReader reader(paths_, {{0, size - 1, 1}});
  EXPECT_EQ(static_cast<char>(reader.next()[0]), texts_[0].back());
}

TEST_F(Pieces, PastTheEndIsAnErrorOfThatPieceOnly) {
  const auto size = static_cast<int64_t>(texts_[0].size());
  PieceReader reader(paths_, {{0, 0, 10}, {0, size - 5, 6}, {1, 7, 3}, {0, 4096 * 100, 1}});
  EXPECT_EQ(reader.next().size(), 10u);
  expect_refusal([&] { reader.next(); }, ErrorKind::kFile, {"f0", "ends before"});
  EXPECT_EQ(reader.next().size(), 3u);
  expect_refusal([&] { reader.next(); }, ErrorKind::kFile, {"f0", "409600"});
}

TEST_F(Pieces, AMissingFileIsNamed) {
  PieceReader reader({folder_ / "absent"}, {{0, 0, 1}});
  expect_refusal([&] { reader.next(); }, ErrorKind::kFile, {"absent", "No such file"});
}

TEST_F(Pieces, AbandonedReadersStop) {
  std::vector<Piece> pieces(1000, {0, 0, 1000});
  PieceReader reader(paths_, pieces);
  reader.next();
  PieceReader unused(paths_, pieces);
  PieceReader empty(paths_, {});
}

TEST_F(Pieces, RangesAreCutIntoPieces) {
  std::vector<Piece> pieces;
  append_pieces(pieces, 2, 100, 2 * kPieceBytes + 1);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1].offset, 100 + kPieceBytes);
  EXPECT_EQ(pieces[2].bytes, 1);
  append_pieces(pieces, 0, 0, 0);
  EXPECT_EQ(pieces.size(), 3u);
}

TEST_F(Pieces, ChecksumsOfWholeFiles) {
  const std::string large = noise(3 * kPieceBytes + 5, 4);
  write_all(folder_ / "large", large);
  int64_t last = 0;
  EXPECT_EQ(file_checksum(
                folder_ / "large", static_cast<int64_t>(large.size()),
                [&](int64_t done) { last = done; }, nullptr),
            crc32c(std::as_bytes(std::span(large))));
  EXPECT_EQ(last, static_cast<int64_t>(large.size()));
}

}  // namespace
}  // namespace sluice::io
