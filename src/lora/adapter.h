#pragma once
// A low-rank adapter as PEFT writes it (LoRA, arXiv:2106.09685; rsLoRA, arXiv:2312.03732; DoRA,
// arXiv:2402.09353): a folder with adapter_config.json and adapter_model.safetensors (or .bin). A
// plain value, all of it in memory; what of it a reader would get wrong is refused by name.
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/base/dtype.h"

namespace sluice {

/// What an adapter adds to one matrix W [rows, cols]: W' = W + scale * B A; with a magnitude m
/// (DoRA) each row of that is brought to the length m.
struct LoraMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t rank = 0;
  std::vector<float> a;          ///< [rank, cols]
  std::vector<float> b;          ///< [rows, rank]
  float scale = 1;               ///< alpha / rank, or alpha / sqrt(rank)
  std::vector<float> magnitude;  ///< [rows], or empty
  DType dtype = DType::kF32;     ///< of the file's elements; f32 where they differ
  bool is_table = false;         ///< of an embedding, looked up by row

  /// The length of each row of W + scale B A, of rows as apply() takes them.
  std::vector<double> lengths(int64_t first_row, std::span<const float> w) const;

  /// Changes `w`, rows [first_row, first_row + w.size() / cols) of W, row-major.
  void apply(int64_t first_row, std::span<float> w) const;
};

/// A whole tensor that an adapter brings along (modules_to_save).
struct SavedTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
  bool is_copy = false;  ///< of the base model's own (save_embedding_layers), beside an adapter
};

/// All that an adapter changes, by the tensors' names.
struct LoraAdapter {
  std::string name;  ///< of its folder
  /// By the tensor they change, as the base model's checkpoint names it ("model.layers.0. ...
  /// .weight").
  std::map<std::string, LoraMatrix> matrices;
  std::map<std::string, SavedTensor> saved;

  /// Errors: kFile (no adapter, damage, matrices that do not fit each other), kUser naming the
  /// setting of PEFT's that changes what the weights mean and is not known here.
  static LoraAdapter open(const std::filesystem::path& folder);
  /// Of all that it holds: another adapter has another one.
  uint64_t fingerprint() const noexcept;
};

}  // namespace sluice
