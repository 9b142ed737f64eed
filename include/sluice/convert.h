#pragma once
// A checkpoint rewritten as a packed store: aligned, checksummed, quantised or with an adapter
// merged into it on the way.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

namespace sluice {

/// What is changed on the way.
struct ConvertOptions {
  /// f32, f16, bf16, int8, int4, nf4, fp8, mxfp4 (int4-g128: columns that share a scale); empty: as
  /// they are.
  std::string weights;
  std::filesystem::path lora;  ///< folder of a PEFT adapter (LoRA, rsLoRA, DoRA) to add; or empty
  bool overwrite = false;      ///< replaces what is there; otherwise what was begun goes on
  int threads = 0;             ///< 0: all
  std::function<void(int64_t done, int64_t total)> progress;  ///< bytes, any thread; may be empty
};

/// What was written.
struct ConvertReport {
  int64_t total_bytes = 0;
  int64_t written_bytes = 0;  ///< by this call; the rest was there
};

/// Writes `model` (a folder, a store or a GGUF file) to the folder `destination`. Errors: kUser
/// (options, an adapter that changes what the model has not), kFile, kResource, kCancelled.
ConvertReport convert(const std::filesystem::path& model, const std::filesystem::path& destination,
                      const ConvertOptions& options = {}, std::stop_token cancel = {});

}  // namespace sluice
