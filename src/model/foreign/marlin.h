#pragma once
// How tools lay codes of 4 and 8 bits out for the Marlin kernels (arXiv:2408.11743), which multiply
// tiles of 16 x 64 as the tensor cores' instruction mma.m16n8k16 holds them; for the readers of
// GPTQ, AWQ and compressed-tensors.
#include <array>

#include "src/model/foreign/foreign.h"

namespace sluice {

/// Where the code of an input and an output lies among the packed codes of [inputs, outputs]: tiles
/// of 16 x 16, one row of tiles behind the other, in each run of 1024 codes in the order of the
/// kernel's threads. Codes fill words from the lowest bits on.
class MarlinTiles {
 public:
  /// `is_sparse`: the order of the kernel for 2:4 sparse weights. `bits`: 4 or 8.
  MarlinTiles(bool is_sparse, int64_t bits, int64_t outputs);

  /// Codes are counted from the first; `input` and `output` from 0.
  int64_t place(int64_t input, int64_t output) const {
    const int64_t tiles = output / kTile * kTile * kTile;
    const int64_t flat =
        input / kTile * outputs_ * kTile + tiles + input % kTile * kTile + output % kTile;
    return flat / kRun * kRun + place_of_[static_cast<size_t>(flat % kRun)];
  }
  /// The code there, of [inputs / 16, outputs 16 bits / 32] words.
  uint32_t code(std::span<const std::byte> words, int64_t input, int64_t output) const {
    const int64_t at = place(input, output), each = 32 / bits_;
    return element<uint32_t>(words, at / each) >> (at % each * bits_) & ((1u << bits_) - 1);
  }

  static constexpr int64_t kTile = 16;
  static constexpr int64_t kRun =
      1024;  ///< so many codes of one row of tiles are shuffled together

 private:
  int64_t bits_;
  int64_t outputs_;
  std::array<uint16_t, kRun> place_of_{};
};

/// Reads a run of columns of a matrix in that order: codes with zeros in the middle of their range,
/// and scales f16 [groups, rows], whose first is that of the group in which the run begins.
class MarlinDecoder : public ForeignDecoder {
 public:
  /// What is the same for all runs of a matrix.
  struct Layout {
    int64_t rows = 0, bits = 4;
    int64_t group = 0;  ///< columns of a scale of theirs, and of ours, which divide them
    int64_t ours = 0;
    bool are_shuffled = false;  ///< scales, as those of groups are
  };

  void values(int64_t row, float* out) const override;
  bool codes(int64_t row, int64_t group, uint8_t* out, float& scale_out,
             float& zero_out) const override;
  bool scale(int64_t row, int64_t group, float& scale_out, float& zero_out) const override;

 protected:
  MarlinDecoder(const MarlinTiles& tiles, const Layout& layout, const ForeignRun& run,
                const ForeignBytes& parts)
      : tiles_(tiles), layout_(layout), run_(run), parts_(parts) {}
  /// The code of a column of the run.
  virtual int64_t code(int64_t row, int64_t col) const = 0;
  /// Where a row's scale lies among those of its group.
  virtual int64_t place_of_scale(int64_t row) const = 0;
  int64_t middle() const { return int64_t{1} << (layout_.bits - 1); }

  MarlinTiles tiles_;
  Layout layout_;
  ForeignRun run_;
  const ForeignBytes& parts_;  ///< codes, scales, and what a kind of matrix has beside them

 private:
  float scale_of(int64_t row, int64_t col) const;
};

/// A linear layer [rows, cols] of GPTQ's or AWQ's tools in that order, int4 in groups of `group`
/// columns (0 or less: a row), zeros in the middle:
///   X + codes i32 [cols / 16, rows 2], X + scales f16 [groups, rows], shuffled likewise.
/// Errors: kFile when its tensors are missing or do not fit.
ForeignMatrix marlin_matrix(const PartFinder& parts, const char* codes, const char* scales,
                            int64_t rows, int64_t cols, int64_t group);

}  // namespace sluice
