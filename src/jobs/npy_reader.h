#pragma once
// Reads the rows of a float32 matrix from a NumPy .npy file (C order, little-endian), in any order.
// One thread at a time.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/jobs/owned_file.h"

namespace sluice::jobs {

class NpyReader {
 public:
  /// Errors: kFile (missing, no .npy file, another element type or order, no matrix, cut short).
  explicit NpyReader(std::string path);

  int64_t rows() const noexcept { return rows_; }
  int64_t columns() const noexcept { return columns_; }
  /// The row, valid until the next call; 0 <= row < rows(). Errors: kFile.
  std::span<const float> row(int64_t row);

 private:
  OwnedFile file_;
  int64_t header_bytes_ = 0;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::vector<float> values_;
};

}  // namespace sluice::jobs
