// A PEFT adapter: adapter_config.json up to the first NUL, the header of a safetensors file up to
// the next, then tensor data, zeros where they end early. What is read is added to rows of ones.
#include "src/base/error.h"
#include "src/lora/adapter.h"
#include "tests/fuzz/fuzzing.h"

namespace {
using namespace sluice;

constexpr int64_t kMostData = 1 << 18;  // bytes of tensor data that a header may claim

void write_adapter(const fuzz::Folder& folder, std::string_view rest) {
  folder.write("adapter_config.json", fuzz::cut(rest));
  const std::string_view header = fuzz::cut(rest);
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  file += header;
  const int64_t bytes = fuzz::claimed_bytes(header, kMostData);
  const int64_t total = static_cast<int64_t>(file.size()) + bytes;
  file += rest.substr(0, static_cast<size_t>(bytes));
  folder.write("adapter_model.safetensors", file, total);
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  write_adapter(folder, fuzz::text_of(data, size));
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
