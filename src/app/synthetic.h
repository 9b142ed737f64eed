#pragma once
// A checkpoint of any shape with random weights of sensible scale: for speed work on models nobody
// can download. Matrices are uniform with variance 1 / columns, so activations keep their size;
// gains are 1, biases small. The value of an element depends on (seed, tensor, element) only.
#include <filesystem>
#include <functional>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/piece_reader.h"
#include "io/convert/safetensors_writer.h"
#include "src/shape/model_shape.h"

namespace sluice::app {

/// How the weights are drawn and written.
struct SyntheticOptions {
  DType dtype = DType::kBF16;
  uint64_t seed = 1;
  io::SafetensorsWriteOptions write;
};

/// Writes weights (Hugging Face names, sharded) and config.json into `folder`. Returns bytes of
/// weights. Errors: those of io::write_sharded_safetensors.
int64_t write_synthetic_model(const ModelShape& shape, const std::string& config_json,
                              const std::filesystem::path& folder, const SyntheticOptions& options);

/// config.json of a model whose weights are all of `dtype`.
std::string with_dtype(const std::string& config_json, DType dtype);

/// The same weights as a checkpoint that is never on disk, for conversion: `source_bytes` is for
/// io::ConvertOptions. Errors: kFile (config.json).
struct SyntheticCheckpoint {
  io::Checkpoint checkpoint;
  std::function<void(const io::Piece& piece, std::span<std::byte> to)> source_bytes;
  std::string config_json;  ///< with the weights' type
};
SyntheticCheckpoint synthetic_checkpoint(const ModelShape& shape, const std::string& config_json,
                                         const SyntheticOptions& options);

}  // namespace sluice::app
