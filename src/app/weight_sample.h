#pragma once
// Rows of a checkpoint's matrices as f32, and some of them: enough to see what a format does to a
// matrix. Reads files; thread safe.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/model/bound_model.h"

namespace sluice::app {

/// The rows of one matrix that is not quantised, of experts of one's.
class MatrixRows {
 public:
  /// The model outlives this. Errors: kUser when the matrix is quantised already.
  MatrixRows(const BoundModel& model, size_t sublayer, size_t weight, size_t expert = 0);

  int64_t rows() const noexcept { return rows_; }
  int64_t cols() const noexcept { return cols_; }
  /// Rows [first, first + count) to `to` [count, cols]. Errors: kFile.
  void read(int64_t first, int64_t count, float* to) const;

 private:
  std::vector<std::byte> part(const io::TensorEntry& of, int64_t offset, int64_t count) const;
  void read_foreign(int64_t first, int64_t count, float* to) const;

  const BoundModel& model_;
  const io::TensorEntry& tensor_;
  const ForeignMatrix* foreign_;
  int64_t rows_, cols_;
};

/// Whole panels of rows, of experts from several of them; the last panel may be short.
struct WeightSample {
  /// Rows of one expert, of what has none all.
  struct Part {
    size_t expert = 0;
    int64_t rows = 0;
  };
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  ///< [rows, cols]
  std::vector<Part> parts;    ///< in the order of the rows
};

/// Panels that are read of each matrix, evenly spread.
constexpr int64_t kSampledPanels = 8;

/// Errors: kUser when the matrix is quantised already; kFile.
WeightSample sample_rows(const BoundModel& model, size_t sublayer, size_t weight,
                         int64_t panels = kSampledPanels);

}  // namespace sluice::app
