#pragma once
// Importance matrices as llama.cpp's llama-imatrix writes them: for each linear layer the sum of
// squares of every input column, by GGUF's name of the matrix; of experts one row each. Both forms:
// GGUF files of tensors NAME.in_sum2 and NAME.counts, and the older binary one (.dat), whose sums
// are of means. The bytes come from anywhere: every length is checked before it is believed. Thread
// safe.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace sluice::io {

/// Of one matrix's inputs.
struct ImatrixEntry {
  /// [experts, cols] mean squares, finite and not negative; of experts that no token went to all
  /// 0.
  std::vector<float> squares;
  int64_t experts = 1;  ///< as the file says; the older form does not and has 1
};

/// By name ("blk.0.attn_q.weight").
using Imatrix = std::map<std::string, ImatrixEntry>;

/// Errors: kFile with the path, the entry and what is wrong: another kind of file, cut short, sizes
/// that don't fit together, values that are no sums of squares.
Imatrix read_imatrix(const std::filesystem::path& path);

}  // namespace sluice::io
