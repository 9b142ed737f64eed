#pragma once
// Writes safetensors checkpoints of any size from a callback that makes the tensor data: how
// `sluice synth` makes models. Streams at disk speed with direct I/O; memory stays about 64 MiB.
// Output is laid out like Hugging Face's: model.safetensors, or model-0000i-of-0000n.safetensors
// with model.safetensors.index.json.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/dtype.h"

namespace sluice::io {

/// A tensor that is to be written.
struct NewTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// Fills `to` with the little-endian elements of tensor `tensor_index` from `first_element` on;
/// `to` holds whole elements. Called from several threads at once when more than one is asked for,
/// each with its own bytes.
using TensorGenerator =
    std::function<void(size_t tensor_index, int64_t first_element, std::span<std::byte> to)>;

/// How much has been written.
struct WriteProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  std::string_view file;
};

/// How a checkpoint is written.
struct SafetensorsWriteOptions {
  int64_t max_shard_bytes =
      5'000'000'000;       // of tensor data; a larger tensor gets a shard of its own
  bool overwrite = false;  // false: an existing model in the folder is an error
  int threads = 0;         // that call the generator; 0: all processors
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::function<void(const WriteProgress&)> progress;  // on the calling thread; may be empty
  const std::atomic<bool>* stop =
      nullptr;  // set it to end early with kCancelled; partial files go away
};

/// Writes all tensors, in the order given, into `folder` (made when missing). Shards appear under
/// their final names only when all are complete. Returns the file names. Errors: kUser (duplicate
/// name, bad shape, folder has a model), kResource (disk full, checked before the first byte),
/// kFile, kCancelled.
std::vector<std::string> write_sharded_safetensors(const std::filesystem::path& folder,
                                                   std::span<const NewTensor> tensors,
                                                   const TensorGenerator& generator,
                                                   const SafetensorsWriteOptions& options = {});

}  // namespace sluice::io
