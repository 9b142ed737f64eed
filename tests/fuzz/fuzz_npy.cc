// NumPy files of logits: arbitrary bytes. Refused as a file error, or every row can be read.
#include "src/base/error.h"
#include "src/jobs/npy_reader.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::fuzz::Folder folder;
  try {
    sluice::jobs::NpyReader reader(folder.write("x.npy", sluice::fuzz::text_of(data, size)));
    sluice::fuzz::accepted();
    sluice::fuzz::require(reader.rows() >= 0 && reader.columns() > 0);
    sluice::fuzz::require(reader.rows() <= static_cast<int64_t>(size) / 4 / reader.columns());
    for (int64_t row = 0; row < reader.rows(); ++row)
      sluice::fuzz::require(static_cast<int64_t>(reader.row(row).size()) == reader.columns());
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
