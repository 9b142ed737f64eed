#pragma once
// Rows of a matrix that arrive in pieces of any size, quantised panel by panel by all threads, and
// written in order. Private to conversion. One thread calls; memory: a batch of rows, about 8 MiB
// and at least 16 rows a thread.
#include <cstddef>
#include <span>
#include <vector>

#include "io/convert/convert.h"
#include "io/convert/convert_plan.h"
#include "io/files/direct_writer.h"

namespace sluice::io {

class PanelWriter {
 public:
  /// All three outlive this.
  PanelWriter(const PlannedTensor& tensor, const ConvertOptions& options, DirectWriter& writer);

  /// The next bytes of the source, row-major; the last call ends the tensor. Errors: kFile naming
  /// rows that can't be quantised; what the writer throws.
  void add(std::span<const std::byte> piece);

 private:
  void flush();
  void scale(int64_t first, int64_t count);

  const PlannedTensor& tensor_;
  const ConvertOptions& options_;
  DirectWriter& writer_;
  RowsQuantiser quantise_rows_;  // may be empty
  int64_t rows_, cols_;
  int64_t element_bytes_;
  int64_t batch_rows_;
  int64_t first_row_ = 0;  // of the batch
  int64_t gathered_ = 0;   // source bytes in the batch
  std::vector<std::byte> source_;
  std::vector<float> values_;
  std::vector<std::byte> panels_;
};

}  // namespace sluice::io
