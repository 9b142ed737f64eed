#include "src/jobs/npy_writer.h"

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/error.h"
#include "tests/jobs/temporary_folder.h"

namespace sluice::jobs {
namespace {

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
};

// Reads format 1.0 as its definition says, not as the writer happens to lay it out.
Matrix read_npy(const std::string& path) {
  const std::string text = read_all(path);
  Matrix matrix;
  EXPECT_EQ(text.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = static_cast<uint8_t>(text[8]) + 256U * static_cast<uint8_t>(text[9]);
  EXPECT_EQ((10 + header) % 64, 0U);
  EXPECT_EQ(text[10 + header - 1], '\n');
  const std::string dictionary = text.substr(10, header);
  int end = 0;
  const int found = std::sscanf(dictionary.c_str(),
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (%" SCNd64
                                ", %" SCNd64 "), }%n",
                                &matrix.rows, &matrix.columns, &end);
  EXPECT_EQ(found, 2) << dictionary;
  EXPECT_GT(end, 0) << dictionary;
  EXPECT_EQ(dictionary.find_first_not_of(' ', static_cast<size_t>(end)), header - 1) << dictionary;
  for (size_t at = 10 + header; at + sizeof(float) <= text.size(); at += sizeof(float)) {
    matrix.values.emplace_back();
    std::memcpy(&matrix.values.back(), text.data() + at, sizeof(float));
  }
  return matrix;
}

size_t files_in(const TemporaryFolder& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

TEST(NpyWriter, RowsInSeveralPiecesReadBack) {
  const TemporaryFolder folder;
  const float inf = std::numeric_limits<float>::infinity();
  NpyWriter writer(folder.file("logits.npy"), 3);
  writer.append(std::vector<float>{1, 2, 3});
  writer.append(std::vector<float>{});
  writer.append(std::vector<float>{-0.5F, -inf, 1e-40F, 7, 8, 9});
  EXPECT_EQ(writer.rows(), 3);
  EXPECT_FALSE(std::filesystem::exists(folder.file("logits.npy")));
  writer.finish();
  const Matrix matrix = read_npy(folder.file("logits.npy"));
  EXPECT_EQ(matrix.rows, 3);
  EXPECT_EQ(matrix.columns, 3);
  EXPECT_EQ(matrix.values, (std::vector<float>{1, 2, 3, -0.5F, -inf, 1e-40F, 7, 8, 9}));
  EXPECT_EQ(files_in(folder), 1U);
}

TEST(NpyWriter, NoRowsIsAValidFile) {
  const TemporaryFolder folder;
  NpyWriter writer(folder.file("empty.npy"), 50257);
  writer.finish();
  const Matrix matrix = read_npy(folder.file("empty.npy"));
  EXPECT_EQ(matrix.rows, 0);
  EXPECT_EQ(matrix.columns, 50257);
  EXPECT_TRUE(matrix.values.empty());
}

TEST(NpyWriter, UnfinishedLeavesTheOldFileAndNoOther) {
  const TemporaryFolder folder;
  write_all(folder.file("logits.npy"), "old");
  {
    NpyWriter writer(folder.file("logits.npy"), 2);
    writer.append(std::vector<float>{1, 2});
    EXPECT_EQ(files_in(folder), 2U);
  }
  EXPECT_EQ(read_all(folder.file("logits.npy")), "old");
  EXPECT_EQ(files_in(folder), 1U);
}

TEST(NpyWriter, ErrorsNameThePath) {
  const TemporaryFolder folder;
  try {
    NpyWriter writer(folder.file("no/such/logits.npy"), 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFile);
    EXPECT_NE(error.text().find("no/such/logits.npy"), std::string::npos);
  }
  NpyWriter onto_folder(folder.path(), 1);  // a folder stands where the file should go
  EXPECT_THROW(onto_folder.finish(), Error);
}

TEST(NpyWriter, PartOfARowIsOurMistake) {
  const TemporaryFolder folder;
  NpyWriter writer(folder.file("logits.npy"), 2);
  EXPECT_THROW(writer.append(std::vector<float>{1, 2, 3}), Error);
  EXPECT_THROW(NpyWriter(folder.file("none.npy"), 0), Error);
}

}  // namespace
}  // namespace sluice::jobs
