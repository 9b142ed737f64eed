// Sparse matrices whose bitmasks, offsets and shapes contradict what is stored: an error, never an
// element of another row or from outside.
#include <gtest/gtest.h>

#include <filesystem>

#include "io/files/input_file.h"
#include "src/base/error.h"
#include "src/model/bound_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// The parts of a layer's k_proj, in memory of their own.
struct Parts {
  const ForeignMatrix* matrix = nullptr;
  std::vector<std::vector<std::byte>> bytes;

  explicit Parts(const BoundModel& model) {
    const SublayerShape& attention = model.shape().sublayers[1];
    for (size_t w = 0; w < attention.weights.size(); ++w)
      if (attention.weights[w].role == "k") matrix = model.foreign(1, w);
    for (const io::TensorEntry* part : matrix->parts) {
      const io::InputFile file(
          model.checkpoint().files()[static_cast<size_t>(part->file_index)].path);
      bytes.emplace_back(static_cast<size_t>(part->bytes));
      file.read(part->offset, bytes.back(), "tensor");
    }
  }
  // What making a decoder of all rows says, and of each row its values.
  std::string decoding() const {
    ForeignBytes spans(bytes.begin(), bytes.end());
    try {
      const auto decoder = matrix->decoder(spans, matrix->whole());
      std::vector<float> row(static_cast<size_t>(matrix->cols));
      for (int64_t i = 0; i < matrix->rows; ++i) decoder->values(i, row.data());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFile);
      return error.what();
    }
    return "decoded";
  }
  std::string with(size_t part, size_t byte, uint8_t flipped) {
    bytes[part][byte] ^= std::byte{flipped};
    const std::string text = decoding();
    bytes[part][byte] ^= std::byte{flipped};
    return text;
  }
};

class CompressedSparse : public ::testing::TestWithParam<const char*> {};

TEST_P(CompressedSparse, WhatContradictsItselfIsRefused) {
  const BoundModel model = BoundModel::open(fs::path(SLUICE_FIXTURES) / "foreign" / GetParam());
  Parts parts(model);
  ASSERT_NE(parts.matrix, nullptr);
  EXPECT_EQ(parts.decoding(), "decoded");
  EXPECT_NE(parts.with(1, 3, 1).find("bitmask"), std::string::npos);
  EXPECT_NE(parts.with(1, parts.bytes[1].size() - 1, 0x80).find("bitmask"), std::string::npos);
  for (size_t part = 2; part < parts.bytes.size(); ++part) {
    const std::string& name = parts.matrix->parts[part]->name;
    if (name.ends_with(".weight_scale")) continue;
    EXPECT_NE(parts.with(part, 8, 1).find(name.ends_with(".shape") ? "X.shape" : "X.row_offsets"),
              std::string::npos)
        << name;
  }
}

// Each of the bits of a mask, one at a time: refused, or as many as before where two cancel.
TEST_P(CompressedSparse, NoBitIsPassedOver) {
  const BoundModel model = BoundModel::open(fs::path(SLUICE_FIXTURES) / "foreign" / GetParam());
  Parts parts(model);
  for (size_t byte = 0; byte < parts.bytes[1].size(); ++byte)
    for (int bit = 0; bit < 8; bit += 3)
      EXPECT_NE(parts.with(1, byte, static_cast<uint8_t>(1 << bit)), "decoded") << byte;
}

INSTANTIATE_TEST_SUITE_P(Kinds, CompressedSparse,
                         ::testing::Values("ct-bitmask", "ct-24-fp8", "ct-24-int8"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
