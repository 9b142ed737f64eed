#pragma once
// The product of up to 64 rows of int8 x with panels of int4 or int8 codes by one block: eight
// warps have a panel each (panel_stream.h), x and its scales go through shared memory of the block
// in the same chunks of columns. A panel's 16 rows are the rows of the matrix instruction, tokens
// its columns. Since a dot product may take its terms in any order, each lane feeds the words it
// has as they lie, and x was quantised in that order. Only .cu files include it.
#include "kernels/cuda/int8_linear.h"
#include "kernels/cuda/panel_stream.h"
#include "kernels/cuda/split_sums.h"

namespace sluice::cuda {

/// What a launch is given.
struct Int8LinearArguments {
  Int8Rows x;
  int m = 0;
  const std::byte* w = nullptr;
  PanelShape panel;
  int64_t n = 0;
  int64_t split_columns = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
  int splits = 1;
  SplitSpace split;  ///< of more than one
};

/// kRun as PanelStream's; of codes of int4 it is the group, whose zero is taken away once.
template <Encoding kEncoding, int kTiles, int kRun>
class Int8LinearBlock {
 public:
  static constexpr bool kIsFourBit = kHasInt4Codes<kEncoding>;
  static constexpr int kTokens = 8 * kTiles;
  static constexpr int kChunk = kIsFourBit && (kTiles < 8 || kRun == 128) ? 128 : 64;
  using Panel = PanelStream<kEncoding, kChunk, kRun>;
  static constexpr int kRuns = Panel::kRuns;
  static constexpr int kRowBytes = kChunk + (kIsFourBit ? 32 : 16);  // no bank is met twice
  static constexpr int kScaleBytes = kRun > 0 ? kRuns* kTokens* static_cast<int>(sizeof(Int8Scale))
                                              : 0;
  static constexpr int kXBytes = kTokens * kRowBytes + kScaleBytes;
  static constexpr int kStageBytes = kPanelWarps * Panel::kChunkBytes + kXBytes;

  // As QuantisedLinearBlock's.
  static constexpr int stages() {
    constexpr int kMost = kTiles == 1 ? 49 << 10 : 64 << 10;
    return kMost / kStageBytes < 6 ? kMost / kStageBytes : 6;
  }
  static constexpr int kStages = stages();
  static_assert(kStages >= 3);

  struct Budget {
    static constexpr int kSharedBytes = kStages * kStageBytes;
    static constexpr int kTurnBytes = Panel::kChunkBytes;
    static constexpr int kAheadBytes = (kStages - 1) * kTurnBytes;
    static constexpr int kPlannedBlocks = kBlocksEach;
  };

  SLUICE_DEVICE explicit Int8LinearBlock(const Int8LinearArguments& arguments)
      : args_(arguments),
        first_token_(block_x() * kTokens),
        panel_index_(block_y() * kPanelWarps + warp_index()),
        has_panel_(int64_t{panel_index_} * 16 < arguments.n),
        begin_(block_z() * static_cast<int>(arguments.split_columns)),
        end_(static_cast<int>(begin_ + arguments.split_columns < arguments.panel.columns
                                  ? begin_ + arguments.split_columns
                                  : arguments.panel.columns)),
        panel_(arguments.w + (has_panel_ ? panel_index_ * arguments.panel.panel_bytes : 0),
               arguments.panel, end_) {}

  SLUICE_DEVICE void run() {
    const int chunks = (end_ - begin_ + kChunk - 1) / kChunk;
    for (int chunk = 0; chunk < kStages - 1; ++chunk) stage(chunk, chunk * kStageBytes);
    Ring<kStages, kStageBytes> ring;  // what is multiplied
    for (int chunk = 0; chunk < chunks; ++chunk) {
      copy_async_wait<kStages - 2>();
      block_sync();
      stage(chunk + kStages - 1, ring.before());
      if (has_panel_) multiply(shared_memory() + ring.at);
      ring.at = ring.after();
    }
    copy_async_wait<0>();
    if (kRun == 0 && has_panel_) apply_row();
    float* y = args_.y + first_token_ * args_.ldy;
    if (args_.splits == 1) {
      if (has_panel_) write(y + panel_index_ * 16, args_.ldy, args_.n - panel_index_ * 16);
      return;
    }
    const SplitSums sums(args_.split, block_y() * grid_x() + block_x(), args_.splits, kTokens);
    if (has_panel_)
      write(sums.of(block_z()) + warp_index() * 16, SplitSums::kRows, WeightFormat::kPanelRows);
    const int tokens = args_.m - first_token_;
    sums.finish(shared_memory(), tokens < kTokens ? tokens : kTokens, block_y() * SplitSums::kRows,
                static_cast<int>(args_.n), args_.bias, y, args_.ldy);
  }

 private:
  static constexpr int kUnit = 32;  // columns of one matrix instruction
  static constexpr int kUnits = Panel::kRunColumns / kUnit;

  // A stage is [kPanelWarps][Panel::kChunkBytes], the codes of x, [kTokens][kRowBytes], and its
  // scales, [kRuns][kTokens].
  SLUICE_DEVICE static int codes_at() { return warp_index() * Panel::kChunkBytes; }
  static constexpr int kXAt = kPanelWarps * Panel::kChunkBytes;
  static constexpr int kScalesAt = kXAt + kTokens * kRowBytes;

  SLUICE_DEVICE void stage(int chunk, int at) const {
    const int begin = begin_ + chunk * kChunk;
    std::byte* to = shared_memory() + at;
    stage_codes(begin, to + kXAt);
    if (kRun > 0) stage_scales(begin, to + kScalesAt);
    panel_.copy(begin, to + codes_at(), has_panel_ && begin < end_);
    copy_async_commit();
  }

  SLUICE_DEVICE void stage_codes(int begin, std::byte* to) const {
    constexpr int kPieces = kChunk / 16;
    SLUICE_UNROLL
    for (int first = 0; first < kTokens * kPieces; first += kLinearThreads) {
      const int i = first + thread_index();
      const int row = i / kPieces;
      const int token = first_token_ + row;
      const int col = begin + i % kPieces * 16;
      const bool is_valid = token < args_.m && col < end_;
      copy_async16_if(begin < end_ && i < kTokens * kPieces,
                      to + row * kRowBytes + i % kPieces * 16,
                      args_.x.codes + (is_valid ? token * args_.x.columns + col : 0), is_valid);
    }
  }

  // Two tokens at a time; their number is rounded up to an even one where they lie.
  SLUICE_DEVICE void stage_scales(int begin, std::byte* to) const {
    constexpr int kPairs = kTokens / 2;
    static_assert(kRuns * kPairs <= kLinearThreads);
    const int i = thread_index();
    const int col = begin + i / kPairs * Panel::kRunColumns;
    const int token = first_token_ + i % kPairs * 2;
    const bool is_valid = token < args_.m && col < end_;
    const int group = col >> args_.panel.group_shift;
    copy_async16_if(begin < end_ && i < kRuns * kPairs, to + i * 16,
                    args_.x.scales + (is_valid ? group * args_.x.scale_stride + token : 0),
                    is_valid);
  }

  SLUICE_DEVICE void multiply(const std::byte* stage) {
    SLUICE_UNROLL
    for (int run = 0; run < kRuns; ++run)
      multiply_run(stage + codes_at() + run * Panel::kRunBytes,
                   stage + kXAt + run * Panel::kRunColumns,
                   reinterpret_cast<const Int8Scale*>(stage + kScalesAt) + run * kTokens);
  }

  SLUICE_DEVICE void multiply_run(const std::byte* codes, const std::byte* x,
                                  const Int8Scale* x_scales) {
    uint32_t a[kUnits][4];  // the first columns of both rows, then the others
    SLUICE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) unpack(codes, unit, a[unit]);
    if constexpr (kRun == 0) {
      SLUICE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) add_run(sums_[tile], a, x, tile);
    } else {
      const RowScales<kEncoding> scales(Panel::scales(codes + Panel::kRunCodeBytes));
      SLUICE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        int sums[4] = {};
        add_run(sums, a, x, tile);
        apply(tile, sums, x_scales + tile * 8, scales);
      }
    }
  }

  // Four bits: a lane has a line of 8 columns, low nibbles first. Eight: a line of 4, and the one
  // four lines on.
  SLUICE_DEVICE static void unpack(const std::byte* codes, int unit, uint32_t (&a)[4]) {
    constexpr uint32_t kLess128 = 0x80808080u;
    const Words2 first = Panel::codes(codes, unit * (kIsFourBit ? 4 : 8));
    const Words2 second = kIsFourBit ? first : Panel::codes(codes, unit * 8 + 4);
    SLUICE_UNROLL
    for (int row = 0; row < 2; ++row) {
      a[row] = kIsFourBit ? first.word[row] & 0x0f0f0f0fu : first.word[row] ^ kLess128;
      a[2 + row] = kIsFourBit ? second.word[row] >> 4 & 0x0f0f0f0fu : second.word[row] ^ kLess128;
    }
  }

  SLUICE_DEVICE static void add_run(int (&sums)[4], const uint32_t (&a)[kUnits][4],
                                    const std::byte* x, int tile) {
    const std::byte* row = x + (tile * 8 + lane_index() / 4) * kRowBytes;
    SLUICE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      Words2 b;
      if constexpr (kIsFourBit) {
        b = *reinterpret_cast<const Words2*>(row + unit * kUnit + lane_index() % 4 * 8);
      } else {
        const auto* words = reinterpret_cast<const uint32_t*>(row + unit * kUnit);
        b = {{words[lane_index() % 4], words[4 + lane_index() % 4]}};
      }
      mma_16x8x32_s8(sums, a[unit], b.word);
    }
  }

  // Sums of a group, scaled, join the totals. `x_scales`: of the tile's tokens.
  SLUICE_DEVICE void apply(int tile, const int (&sums)[4], const Int8Scale* x_scales,
                           const RowScales<kEncoding>& scales) {
    const Words4 pair = *reinterpret_cast<const Words4*>(x_scales + lane_index() % 4 * 2);
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      float sum = bits_to_float(pair.word[i % 2 * 2]) * static_cast<float>(sums[i]);
      if (kIsFourBit) sum -= scales.zero[i / 2] * bits_to_float(pair.word[i % 2 * 2 + 1]);
      totals_[tile][i] += scales.scale[i / 2] * sum;
    }
  }

  SLUICE_DEVICE void apply_row() {
    const RowScales<kEncoding> scales(
        Panel::scales(args_.w + (panel_index_ + int64_t{1}) * args_.panel.panel_bytes - 64));
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = first_token_ + tile * 8;
      if (token + lane_index() % 4 * 2 >= args_.m) break;
      apply(tile, sums_[tile], args_.x.scales + token, scales);
    }
  }

  // The panel's sums to columns [0, 16) of `y`, whose rows begin with the block's first token,
  // those before `n`.
  SLUICE_DEVICE void write(float* y, int64_t ldy, int64_t n) const {
    const float* bias = args_.bias && args_.splits == 1 ? args_.bias + panel_index_ * 16 : nullptr;
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + lane_index() % 4 * 2 + i % 2;
      const int row = lane_index() / 4 * 2 + i / 2;
      if (first_token_ + token >= args_.m || row >= n) continue;
      y[token * ldy + row] = totals_[tile][i] + (bias ? bias[row] : 0.0f);
    }
  }

  const Int8LinearArguments& args_;
  int first_token_;
  int panel_index_;
  bool has_panel_;
  int begin_;  // columns of this block
  int end_;
  Panel panel_;
  int sums_[kRun == 0 ? kTiles : 1][4] = {};  // of the whole row
  float totals_[kTiles][4] = {};
};

}  // namespace sluice::cuda
