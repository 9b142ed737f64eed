#pragma once
// The product of up to 64 rows of int8 x with panels of int4 or int8 codes by one block: eight
// warps have a panel each, x and its scales go through shared memory in chunks of columns. A
// panel's 16 rows are the rows of the matrix instruction, tokens its columns. Since a dot product
// may take its terms in any order, each lane feeds the words it loads as they lie, and x was
// quantised in that order. Only .cu files include it.
#include "kernels/cuda/int8_linear.h"
#include "kernels/cuda/quantised_linear_launch.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

struct Int8LinearArguments {
  Int8Rows x;
  int m = 0;
  const std::byte* w = nullptr;
  PanelShape panel;
  int64_t n = 0;
  int64_t split_columns = 0;
  const float* bias = nullptr;
  float* y = nullptr;  ///< or the workspace, [splits, m, n]
  int64_t ldy = 0;
  bool is_split = false;
};

template <Encoding kEncoding, int kTiles>
class Int8LinearBlock {
 public:
  static constexpr int kTokens = 8 * kTiles;
  static constexpr int kMostGroups = kChunkColumns / 32;
  static constexpr int kRowBytes = kChunkColumns + 32;  // no bank is met twice by eight rows
  static constexpr int kCodeBytes = kTokens * kRowBytes;
  static constexpr int kStageBytes =
      kCodeBytes + kMostGroups * kTokens * static_cast<int>(sizeof(Int8Scale));
  static constexpr int64_t kSharedBytes = int64_t{kChunkStages} * kStageBytes;

  SLUICE_DEVICE explicit Int8LinearBlock(const Int8LinearArguments& arguments)
      : args_(arguments),
        first_token_(block_x() * kTokens),
        panel_(int64_t{block_y()} * kPanelWarps + warp_index()),
        has_panel_(panel_ * 16 < arguments.n),
        begin_(block_z() * arguments.split_columns),
        end_(begin_ + arguments.split_columns < arguments.panel.columns
                 ? begin_ + arguments.split_columns
                 : arguments.panel.columns) {}

  SLUICE_DEVICE void run() {
    const int chunks = static_cast<int>((end_ - begin_ + kChunkColumns - 1) / kChunkColumns);
    for (int chunk = 0; chunk < kChunkStages - 1; ++chunk) stage(chunk);
    Loaded next;
    load(0, next);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      copy_async_wait<kChunkStages - 2>();
      block_sync();
      stage(chunk + kChunkStages - 1);
      const Loaded now = next;
      if (chunk + 1 < chunks) load(chunk + 1, next);
      if (has_panel_) multiply(chunk, now);
    }
    copy_async_wait<0>();
    if (!has_panel_) return;
    if (is_whole_row()) apply(args_.x.scales + first_token_, scales_of(0));
    write();
  }

 private:
  static constexpr bool kIsFourBit = kEncoding == Encoding::kInt4;
  static constexpr int kUnit = 32;  // columns of one matrix instruction
  static constexpr int kUnits = kChunkColumns / kUnit;

  // A lane's part of a chunk: of each unit the codes of 8 columns of its two rows, and the scales
  // (and zeros) of its groups.
  struct Loaded {
    Words2 codes[kUnits][kIsFourBit ? 1 : 2];
    Words2 scales[kMostGroups];
  };

  SLUICE_DEVICE bool is_whole_row() const { return args_.panel.group_columns > kChunkColumns; }
  SLUICE_DEVICE int64_t chunk_begin(int chunk) const {
    return begin_ + int64_t{chunk} * kChunkColumns;
  }
  SLUICE_DEVICE std::byte* stage_at(int chunk) const {
    return shared_memory() + chunk % kChunkStages * kStageBytes;
  }

  SLUICE_DEVICE void stage(int chunk) const {
    if (chunk_begin(chunk) < end_) {
      stage_codes(chunk);
      if (!is_whole_row()) stage_scales(chunk);
    }
    copy_async_commit();
  }

  SLUICE_DEVICE void stage_codes(int chunk) const {
    constexpr int kPieces = kChunkColumns / 16;
    std::byte* to = stage_at(chunk);
    for (int i = thread_index(); i < kTokens * kPieces; i += kLinearThreads) {
      const int row = i / kPieces;
      const int token = first_token_ + row;
      const int64_t col = chunk_begin(chunk) + i % kPieces * 16;
      const bool is_valid = token < args_.m && col < end_;
      copy_async16(to + row * kRowBytes + i % kPieces * 16,
                   args_.x.codes + (is_valid ? token * args_.x.columns + col : 0), is_valid);
    }
  }

  // Two tokens at a time; their number is rounded up to an even one where they lie.
  SLUICE_DEVICE void stage_scales(int chunk) const {
    constexpr int kPairs = kTokens / 2;
    std::byte* to = stage_at(chunk) + kCodeBytes;
    const auto columns = static_cast<int>(args_.panel.group_columns);
    const int64_t first_group = chunk_begin(chunk) / columns;
    for (int i = thread_index(); i < kChunkColumns / columns * kPairs; i += kLinearThreads) {
      const int group = i / kPairs;
      const int token = first_token_ + i % kPairs * 2;
      const bool is_valid = token < args_.m && chunk_begin(chunk) + group * columns < end_;
      copy_async16(
          to + i * 16,
          args_.x.scales + (is_valid ? (first_group + group) * args_.x.scale_stride + token : 0),
          is_valid);
    }
  }

  // Rows 2 g and 2 g + 1 of the panel are this lane's, g = lane / 4.
  SLUICE_DEVICE const std::byte* group_at(int64_t group) const {
    return args_.w + panel_ * args_.panel.panel_bytes + group * args_.panel.group_bytes;
  }
  SLUICE_DEVICE Words2 scales_of(int64_t group) const {
    const std::byte* scales = group_at(group) + args_.panel.group_bytes - 64;
    const int pair = lane_index() / 4;
    if (!kIsFourBit) return reinterpret_cast<const Words2*>(scales)[pair];
    const auto* words = reinterpret_cast<const uint32_t*>(scales);
    return {{words[pair], words[8 + pair]}};
  }

  // A unit is four lines of 8 columns, one a lane of four, or eight lines of 4, two a lane.
  SLUICE_DEVICE void load(int chunk, Loaded& to) const {
    if (!has_panel_) return;
    constexpr int kLines = kIsFourBit ? 1 : 2;
    const int64_t columns = args_.panel.group_columns;
    SLUICE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      const int64_t col = chunk_begin(chunk) + unit * kUnit;
      SLUICE_UNROLL
      for (int i = 0; i < kLines; ++i) {
        to.codes[unit][i] = {};
        if (col >= end_) continue;
        const int64_t line = col % columns / (8 / kLines) + lane_index() % 4 * kLines + i;
        to.codes[unit][i] =
            load_streaming8(group_at(col / columns) + line * 64 + lane_index() / 4 * 8);
      }
    }
    if (is_whole_row()) return;
    SLUICE_UNROLL
    for (int group = 0; group < kMostGroups; ++group) {
      const int64_t col = chunk_begin(chunk) + group * columns;
      to.scales[group] = {};
      if (group * columns < kChunkColumns && col < end_)
        to.scales[group] = scales_of(col / columns);
    }
  }

  SLUICE_DEVICE void multiply(int chunk, const Loaded& loaded) {
    const std::byte* stage = stage_at(chunk);
    const auto* x_scales = reinterpret_cast<const Int8Scale*>(stage + kCodeBytes);
    const auto columns = static_cast<int>(args_.panel.group_columns);
    SLUICE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      add_unit(stage + unit * kUnit, loaded.codes[unit]);
      if (is_whole_row() || (unit + 1) * kUnit % columns != 0) continue;
      const int group = (unit + 1) * kUnit / columns - 1;
      SLUICE_UNROLL
      for (int i = 0; i < kMostGroups; ++i)
        if (i == group) apply(x_scales + i * kTokens, loaded.scales[i]);
    }
  }

  template <int kWords>
  SLUICE_DEVICE void add_unit(const std::byte* x, const Words2 (&codes)[kWords]) {
    uint32_t a[4];  // the first four columns of both rows, then the other four
    SLUICE_UNROLL
    for (int row = 0; row < 2; ++row) {
      if constexpr (kIsFourBit) {
        a[row] = codes[0].word[row] & 0x0f0f0f0fu;
        a[2 + row] = codes[0].word[row] >> 4 & 0x0f0f0f0fu;
      } else {
        constexpr uint32_t kLess128 = 0x80808080u;
        a[row] = codes[0].word[row] ^ kLess128;
        a[2 + row] = codes[1].word[row] ^ kLess128;
      }
    }
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const Words2 b = *reinterpret_cast<const Words2*>(
          x + (tile * 8 + lane_index() / 4) * kRowBytes + lane_index() % 4 * 8);
      mma_16x8x32_s8(sums_[tile], a, b.word);
    }
  }

  // A group has ended: its sums, scaled, join the totals. `x_scales`: the tokens' of the group.
  SLUICE_DEVICE void apply(const Int8Scale* x_scales, const Words2& scales) {
    float scale[2], zero[2];
    SLUICE_UNROLL
    for (int row = 0; row < 2; ++row) {
      scale[row] = kIsFourBit ? half_to_float(static_cast<uint16_t>(scales.word[0] >> (16 * row)))
                              : bits_to_float(scales.word[row]);
      zero[row] =
          kIsFourBit ? half_to_float(static_cast<uint16_t>(scales.word[1] >> (16 * row))) : 0.0f;
    }
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = tile * 8 + lane_index() % 4 * 2;
      if (is_whole_row() && first_token_ + token >= args_.m) break;  // not staged: there is no more
      const Words4 pair = *reinterpret_cast<const Words4*>(x_scales + token);
      SLUICE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float x_scale = bits_to_float(pair.word[i % 2 * 2]);
        const float x_sum = bits_to_float(pair.word[i % 2 * 2 + 1]);
        float sum = x_scale * static_cast<float>(sums_[tile][i]);
        if (kIsFourBit) sum -= zero[i / 2] * x_sum;
        totals_[tile][i] += scale[i / 2] * sum;
        sums_[tile][i] = 0;
      }
    }
  }

  SLUICE_DEVICE void write() const {
    float* y = args_.y + (args_.is_split ? int64_t{block_z()} * args_.m * args_.ldy : 0);
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = first_token_ + tile * 8 + lane_index() % 4 * 2 + i % 2;
      const int64_t row = panel_ * 16 + lane_index() / 4 * 2 + i / 2;
      if (token >= args_.m || row >= args_.n) continue;
      const float bias = args_.bias && !args_.is_split ? args_.bias[row] : 0.0f;
      y[token * args_.ldy + row] = totals_[tile][i] + bias;
    }
  }

  const Int8LinearArguments& args_;
  int first_token_;
  int64_t panel_;
  bool has_panel_;
  int64_t begin_;  // columns of this block
  int64_t end_;
  int sums_[kTiles][4] = {};  // of the group
  float totals_[kTiles][4] = {};
};

}  // namespace sluice::cuda
