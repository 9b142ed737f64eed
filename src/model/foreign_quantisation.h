#pragma once
// Checkpoints that GPTQ (arXiv:2210.17323) and AWQ (arXiv:2306.00978) tools have quantised to int4,
// as their safetensors files hold them: for a linear layer X with weights [rows, cols]
//   GPTQ  X.qweight i32 [cols / 8, rows], nibble i of a word is column 8 r + i
//   AWQ   X.qweight i32 [cols, rows / 8], nibbles 0..7 of a word are rows 8 c + 0, 2, 4, 6, 1, 3,
//   5, 7 both  X.qzeros  i32 [cols / group, rows / 8], packed as rows of X.qweight are (GPTQ: in
//   order,
//         and one less than the zero unless checkpoint_format is gptq_v2)
//         X.scales  f16 [cols / group, rows];  w = scale (q - zero)
// Both are our int4 with other places for the bits, so convert repacks them exactly.
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "src/base/weight_format.h"
#include "src/model/config.h"

namespace sluice {

struct ForeignMatrix {
  enum class Kind : uint8_t { kGptq, kAwq };
  Kind kind = Kind::kGptq;
  bool zeros_are_one_less = false;
  WeightFormat format;  ///< int4 with the checkpoint's group
  int64_t rows = 0, cols = 0;
  std::vector<const io::TensorEntry*> parts;  ///< codes, zeros, scales
};

class ForeignQuantisation {
 public:
  /// What config.json says; nothing when it names no quantisation. Errors: kFile for a method or
  /// setting that can't be read.
  static std::optional<ForeignQuantisation> of(const ModelConfig& config);

  /// The matrix behind weight `name` ("X.weight"), or nothing when it is not quantised. Errors:
  /// kFile when its parts are missing or do not fit [rows, cols].
  std::optional<ForeignMatrix> find(const io::Checkpoint& checkpoint, const std::string& name,
                                    int64_t rows, int64_t cols) const;

  /// "GPTQ", "AWQ".
  std::string method_name() const;

 private:
  ForeignMatrix::Kind kind_ = ForeignMatrix::Kind::kGptq;
  bool zeros_are_one_less_ = false;
  int32_t group_ = 128;
};

/// The matrix as panels of `matrix.format`; parts as they lie in the file. Uses several threads.
using PackGroup = void (*)(const WeightFormat& format, int64_t cols, int64_t group,
                           const uint8_t* codes, const float* scales, const float* zeros,
                           std::byte* panel);
std::vector<std::byte> repack(const ForeignMatrix& matrix,
                              const std::vector<std::vector<std::byte>>& parts, PackGroup pack);

}  // namespace sluice
