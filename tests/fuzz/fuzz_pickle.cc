// The pickle of a PyTorch checkpoint: arbitrary bytes. Nothing may run, grow without bound or be
// accepted with a range outside its storage.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/checkpoint/pickle.h"
#include "io/checkpoint/tensor_entry.h"
#include "src/base/error.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    for (const auto& tensor :
         sluice::io::read_torch_pickle(std::as_bytes(std::span(data, size)), "fuzz")) {
      sluice::fuzz::accepted();
      const auto count = sluice::io::element_count(tensor.shape);
      if (!count || tensor.storage_offset < 0 ||
          *count > tensor.storage_elements - tensor.storage_offset)
        std::abort();
    }
  } catch (const sluice::Error& error) {
    if (error.kind() != sluice::ErrorKind::kFile) std::abort();
  }
  return 0;
}
