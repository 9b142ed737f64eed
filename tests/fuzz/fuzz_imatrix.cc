// llama.cpp's importance matrices, of both forms: arbitrary bytes. Refused as a file error, or
// every entry is whole and its values can be used as they are.
#include <cmath>

#include "io/checkpoint/imatrix.h"
#include "src/base/error.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::fuzz::Folder folder;
  const auto path = folder.write("imatrix", sluice::fuzz::text_of(data, size));
  try {
    const sluice::io::Imatrix imatrix = sluice::io::read_imatrix(path);
    sluice::fuzz::accepted();
    sluice::fuzz::require(!imatrix.empty());
    for (const auto& [name, entry] : imatrix) {
      sluice::fuzz::require(entry.experts > 0 && !entry.squares.empty() &&
                            std::ssize(entry.squares) % entry.experts == 0);
      for (const float square : entry.squares)
        sluice::fuzz::require(std::isfinite(square) && square >= 0);
    }
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
