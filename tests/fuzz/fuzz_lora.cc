// A PEFT adapter: adapter_config.json up to the first NUL, the header of a safetensors file up to
// the next, then tensor data, zeros where they end early. What is read is added to rows of ones.
#include "src/base/error.h"
#include "src/lora/adapter.h"
#include "tests/fuzz/fuzzing.h"

namespace {
using namespace sluice;

constexpr int64_t kMostData = 1 << 18;  // bytes of tensor data that a header may claim
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  fuzz::write_settings_and_tensors(folder, fuzz::text_of(data, size), "adapter_config.json",
                                   "adapter_model.safetensors", kMostData);
  try {
    const LoraAdapter adapter = LoraAdapter::open(folder.path());
    fuzz::accepted();
    fuzz::require(!adapter.matrices.empty() || !adapter.saved.empty());
    for (const auto& [name, matrix] : adapter.matrices) {
      fuzz::require(std::ssize(matrix.a) == matrix.rank * matrix.cols &&
                    std::ssize(matrix.b) == matrix.rows * matrix.rank);
      if (matrix.cols > kMostData) continue;
      std::vector<float> row(static_cast<size_t>(matrix.cols), 1.0f);
      matrix.apply(0, row);
      matrix.apply(matrix.rows - 1, row);
    }
  } catch (const Error& error) {
    fuzz::require(error.kind() != ErrorKind::kInternal && !error.text().empty());
  }
  return 0;
}
