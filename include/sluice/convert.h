#pragma once
// A checkpoint rewritten as a packed store: aligned, checksummed, quantised or with an adapter
// merged into it on the way.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>

namespace sluice {

/// What is changed on the way.
struct ConvertOptions {
  /// f32, f16, bf16, int8, int4, nf4, fp8, mxfp4 (int4-g128: columns that share a scale), q4_0,
  /// iq4, q2_k to q6_k; empty: as they are.
  std::string weights;
  /// Bits a weight, in place of `weights`: a format for each matrix, so that least is lost (4.5;
  /// docs/quantisation.md). 0: not so.
  double bits = 0;
  /// A file of text (UTF-8) that is run through the model: quantised `weights` or `bits` are chosen
  /// with a view to what they are multiplied with (AWQ, GPTQ). Or empty.
  std::filesystem::path calibrate;
  int64_t calibrate_tokens = 16384;  ///< of it, at most
  int64_t memory_budget_bytes = 0;   ///< host memory of that run; 0: what is free
  std::filesystem::path imatrix;  ///< in place of a text: llama.cpp's importance matrix; or empty
  std::filesystem::path lora;     ///< folder of a PEFT adapter (LoRA, rsLoRA, DoRA) to add; or empty
  std::string pretokenizer;    ///< as Tokenizer::load() has it
  bool allow_requantise = false;  ///< of a store whose weights are quantised: `weights` from these
  bool overwrite = false;      ///< replaces what is there; otherwise what was begun goes on
  int threads = 0;             ///< 0: all
  std::function<void(int64_t done, int64_t total)> progress;  ///< bytes, any thread; may be empty
  /// What comes before the first byte: "calibrating", 3 of 32 "windows"; may be empty.
  std::function<void(std::string_view what, int64_t done, int64_t total, std::string_view of)>
      preparing;
};

/// What was written.
struct ConvertReport {
  int64_t total_bytes = 0;
  int64_t written_bytes = 0;  ///< by this call; the rest was there
};

/// Writes `model` (a folder, a store or a GGUF file) to the folder `destination`. Errors: kUser
/// (options, alone or together: `calibrate` needs quantised `weights` or `bits`, and no adapter; an
/// adapter that changes what the model has not), kFile, kResource, kCancelled.
ConvertReport convert(const std::filesystem::path& model, const std::filesystem::path& destination,
                      const ConvertOptions& options = {}, std::stop_token cancel = {});

}  // namespace sluice
