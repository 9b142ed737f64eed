#pragma once
// Writes a float32 matrix as a NumPy .npy file (format 1.0, C order, little-endian), row by row:
// the number of rows need not be known before. The file appears under its name only when finish()
// has returned (temporary file, then rename). One thread at a time.
#include <cstdint>
#include <span>
#include <string>

#include "src/jobs/owned_file.h"

namespace sluice::jobs {

class NpyWriter {
 public:
  /// A matrix of `columns` columns (> 0). Errors: kFile when the temporary file beside `path`
  /// cannot be made.
  NpyWriter(std::string path, int64_t columns);
  /// Without finish(): removes the temporary file; `path` is as it was.
  ~NpyWriter();
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  /// Appends rows: values [rows, columns]. Errors: kFile (disk full, input/output error).
  void append(std::span<const float> values);
  /// Puts one row in its place, in any order; rows never put are zeros. Errors as append().
  void put(int64_t row, std::span<const float> values);
  /// Writes the shape, syncs, and puts the file in its place. Once. Errors: kFile.
  void finish();

  int64_t rows() const noexcept { return rows_; }

 private:
  std::string path_;
  std::string temporary_;
  int64_t columns_;
  OwnedFile file_;
  int64_t rows_ = 0;
  bool is_finished_ = false;
};

}  // namespace sluice::jobs
