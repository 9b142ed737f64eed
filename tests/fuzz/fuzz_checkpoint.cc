// One file of a checkpoint, the others beside it being whole (tests/fixtures/checkpoints): the
// first byte says which file the rest is, from kFiles. The outcome is an Error of kind kFile or a
// checkpoint whose ranges lie in its files.
#include "io/checkpoint/checkpoint.h"
#include "src/base/error.h"
#include "tests/fuzz/fuzzing.h"

namespace {
namespace fs = std::filesystem;

struct Place {
  const char* name;
  const char* beside;  // a folder of fixtures, or empty: the file is alone
};
// The order is that of scripts/fuzz_seeds.py.
constexpr Place kFiles[] = {
    {"pytorch_model.bin", ""},
    {"model.safetensors", ""},
    {"model.safetensors.index.json", "sharded"},
    {"sluice-store.json", "store"},
    {"model.gguf", ""},
    {"pytorch_model.bin.index.json", "torch_sharded"},
    {"model-00001-of-00002.safetensors", "sharded"},
    {"layer-00000.safetensors", "store"},
};

const sluice::fuzz::Folder& folder_of(size_t which) {
  static sluice::fuzz::Folder folders[std::size(kFiles)];
  static const bool is_filled = [] {
    for (size_t i = 0; i < std::size(kFiles); ++i)
      if (*kFiles[i].beside)
        fs::copy(fs::path(SLUICE_FIXTURES) / "checkpoints/made" / kFiles[i].beside,
                 folders[i].path());
    return true;
  }();
  sluice::fuzz::require(is_filled);
  return folders[which];
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t which = data[0] % std::size(kFiles);
  const auto& folder = folder_of(which);
  folder.write(kFiles[which].name, sluice::fuzz::text_of(data + 1, size - 1));
  try {
    const auto checkpoint = sluice::io::Checkpoint::open(folder.path());
    sluice::fuzz::accepted();
    for (const sluice::io::TensorEntry& tensor : checkpoint.tensors()) {
      const auto& file = checkpoint.files().at(static_cast<size_t>(tensor.file_index));
      sluice::fuzz::require(tensor.offset >= 0 && tensor.offset + tensor.bytes <= file.bytes);
    }
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
