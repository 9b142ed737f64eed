#pragma once
// The sums of a product's block beside those of the blocks that have the same rows of W and other
// columns (split_space.h). Only .cu files include it.
#include "kernels/cuda/quantised_linear_launch.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

class SplitSums {
 public:
  static constexpr int kRows = 16 * kPanelWarps;  // of W, of a block

  /// Of the blocks' rows of y those at `place`, `tokens` of them at most.
  SLUICE_DEVICE SplitSums(const SplitSpace& space, int place, int splits, int tokens)
      : sums_(space.sums + place * splits * tokens * kRows),
        counter_(space.counters + place),
        splits_(splits),
        stride_(tokens * kRows) {}

  /// Where one of the splits leaves its sums, [tokens][kRows].
  SLUICE_DEVICE float* of(int split) const { return sums_ + split * stride_; }

  /// Once all threads have left theirs: the last block writes the `tokens` rows of y, of which it
  /// has columns [first, first + kRows) before n. `shared`: a word, which others may still use.
  SLUICE_DEVICE void finish(void* shared, int tokens, int first, int n, const float* bias, float* y,
                            int64_t ldy) const {
    if (!is_last_block(counter_, splits_, static_cast<int*>(shared))) return;
    constexpr int kQuads = kRows / 4;
    for (int i = thread_index(); i < tokens * kQuads; i += kLinearThreads) {
      const int col = first + i % kQuads * 4;
      if (col >= n) continue;
      float sum[4];
      for (int j = 0; j < 4; ++j) sum[j] = bias && col + j < n ? bias[col + j] : 0.0f;
      add_all(sums_ + i * 4, sum);
      float* to = y + i / kQuads * ldy + col;
      for (int j = 0; j < 4; ++j)
        if (col + j < n) to[j] = sum[j];
    }
  }

 private:
  // In the order of the splits; some are asked for at a time.
  SLUICE_DEVICE void add_all(const float* from, float (&sum)[4]) const {
    constexpr int kAtOnce = 4;
    for (int first = 0; first < splits_; first += kAtOnce) {
      Words4 part[kAtOnce] = {};
      SLUICE_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i < splits_)
          part[i] = *reinterpret_cast<const Words4*>(from + (first + i) * stride_);
      SLUICE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= splits_) break;
        for (int j = 0; j < 4; ++j) sum[j] += bits_to_float(part[i].word[j]);
      }
    }
  }

  float* sums_;
  uint32_t* counter_;
  int splits_;
  int stride_;
};

}  // namespace sluice::cuda
