// Whole small files: the first byte says whether the rest is a PyTorch file, a safetensors file, a
// shard index, the index of a packed store or a GGUF file. The outcome is an Error of kind kFile or
// a checkpoint whose ranges lie in its files.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "io/checkpoint.h"
#include "src/base/error.h"

namespace {

constexpr const char* kNames[] = {"pytorch_model.bin", "model.safetensors",
                                  "model.safetensors.index.json", "sluice-store.json",
                                  "model.gguf"};

// One folder for the whole run, in memory where the system has such a place.
const std::filesystem::path& folder() {
  static const std::filesystem::path path = [] {
    std::string pattern = std::filesystem::exists("/dev/shm") ? "/dev/shm/sluice_fuzz_XXXXXX"
                                                              : "/tmp/sluice_fuzz_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    std::atexit([] { std::filesystem::remove_all(folder()); });
    return pattern;
  }();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::filesystem::path path = folder() / kNames[data[0] % 5];
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data + 1), static_cast<std::streamsize>(size - 1));
  try {
    const auto checkpoint = sluice::io::Checkpoint::open(folder());
    for (const sluice::io::TensorEntry& tensor : checkpoint.tensors()) {
      const auto& file = checkpoint.files().at(static_cast<size_t>(tensor.file_index));
      if (tensor.offset < 0 || tensor.offset + tensor.bytes > file.bytes) std::abort();
    }
  } catch (const sluice::Error& error) {
    if (error.kind() != sluice::ErrorKind::kFile) std::abort();
  }
  std::filesystem::remove(path);
  return 0;
}
