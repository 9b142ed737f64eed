#pragma once
// The product of few rows of x with quantised panels by one block: eight warps have a panel each,
// whose codes and scales go through shared memory of their own (panel_stream.h); x goes through
// shared memory of the block, in the same chunks of columns. The panel's 16 rows are the rows of
// the matrix instruction, tokens its columns; since a dot product may take its terms in any order,
// each lane feeds the words it has as they lie, and x in the same order. What a group's zeros take
// away needs the sums of x, which the warps share out. Only .cu files include it.
#include "kernels/cuda/panel_stream.h"
#include "kernels/cuda/split_sums.h"

namespace sluice::cuda {

template <Encoding kEncoding, bool kIsBF16, int kTiles, int kRun>
class QuantisedLinearBlock {
 public:
  using Code = Codes<kEncoding, kIsBF16>;
  static constexpr bool kHasZeros = kEncoding == Encoding::kInt4;
  static constexpr bool kIsFourBit = kColumnsOfWord<kEncoding> == 8;
  static constexpr int kTokens = 8 * kTiles;
  static constexpr int kChunk = kIsFourBit && kTiles < 4 ? 128 : 64;
  using Panel = PanelStream<kEncoding, kChunk, kRun>;
  static constexpr int kRuns = Panel::kRuns;
  // Chunks of x are there one ahead of the panel's where their sums are wanted.
  static constexpr int kAhead = kHasZeros ? 1 : 0;
  static constexpr int kStride = kChunk + 8;  // 16 bytes more: no bank is met twice
  static constexpr int kSumElements = kHasZeros ? kRuns * kTokens : 0;

  static constexpr int shared_bytes(int stages) {
    return stages * kPanelWarps * Panel::kChunkBytes + (stages + kAhead) * kTokens * kStride * 2 +
           2 * kSumElements * 4 + Code::kTableBytes;
  }
  // As many as a multiprocessor of 100 KiB has for two blocks, or a Turing for one.
  static constexpr int stages() {
    constexpr int kMost = kTiles == 1 ? 49 << 10 : 64 << 10;
    int count = 6;
    while (shared_bytes(count) > kMost) --count;
    return count;
  }
  static constexpr int kStages = stages();
  static constexpr int kXStages = kStages + kAhead;
  static constexpr int kStageBytes = kPanelWarps * Panel::kChunkBytes;
  static constexpr int kXBytes = kTokens * kStride * 2;
  static_assert(kStages >= 3);

  struct Budget {
    static constexpr int kSharedBytes = shared_bytes(kStages);
    static constexpr int kTurnBytes = Panel::kChunkBytes;
    static constexpr int kAheadBytes = (kStages - 1) * kTurnBytes;
    static constexpr int kPlannedBlocks = kBlocksEach;
  };

  SLUICE_DEVICE explicit QuantisedLinearBlock(const LinearArguments& arguments)
      : args_(arguments),
        panel_index_(block_x() * kPanelWarps + warp_index()),
        has_panel_(int64_t{panel_index_} * 16 < arguments.n),
        begin_(block_y() * static_cast<int>(arguments.split_columns)),
        end_(static_cast<int>(begin_ + arguments.split_columns < arguments.panel.columns
                                  ? begin_ + arguments.split_columns
                                  : arguments.panel.columns)),
        panel_(arguments.w + (has_panel_ ? panel_index_ * arguments.panel.panel_bytes : 0),
               arguments.panel, end_),
        codes_(shared_memory() + warp_index() * Panel::kChunkBytes),
        x_(reinterpret_cast<uint16_t*>(shared_memory() +
                                       kStages * kPanelWarps * Panel::kChunkBytes)),
        x_sums_(reinterpret_cast<float*>(x_ + kXStages * kTokens * kStride)),
        table_(reinterpret_cast<uint32_t*>(x_sums_ + 2 * kSumElements)) {
    SLUICE_UNROLL
    for (int i = 0; i < kXCopies; ++i) {
      const int piece = i * kLinearThreads + thread_index();
      x_from_[i] = piece / kXPieces * static_cast<int>(args_.x.stride) + piece % kXPieces * 8;
    }
  }

  SLUICE_DEVICE void run() {
    Code::fill_table(table_);
    const int chunks = (end_ - begin_ + kChunk - 1) / kChunk;
    if (kAhead > 0) stage_x(0, 0);
    for (int chunk = 0; chunk < kStages - 1; ++chunk)
      stage(chunk, chunk * kStageBytes, (chunk + kAhead) * kXBytes);
    if (kHasZeros) {
      copy_async_wait<kStages - 2>();
      block_sync();
      sum_x(0, 0);
    }
    Ring<kStages, kStageBytes> panel;  // what is multiplied
    Ring<kXStages, kXBytes> rows;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      copy_async_wait<kStages - 2>();
      block_sync();
      stage(chunk + kStages - 1, panel.before(), rows.before());
      if (kHasZeros && chunk + 1 < chunks) sum_x(chunk + 1, rows.after());
      if (has_panel_) multiply(chunk, panel.at, rows.at);
      panel.at = panel.after();
      rows.at = rows.after();
    }
    copy_async_wait<0>();
    if (args_.splits == 1) {
      if (has_panel_) write(args_.y + panel_index_ * 16, args_.ldy, args_.n - panel_index_ * 16);
      return;
    }
    const SplitSums sums(args_.split, block_x(), args_.splits, args_.m);
    if (has_panel_)
      write(sums.of(block_y()) + warp_index() * 16, SplitSums::kRows, WeightFormat::kPanelRows);
    sums.finish(shared_memory(), args_.m, block_x() * SplitSums::kRows, static_cast<int>(args_.n),
                args_.bias, args_.y, args_.ldy);
  }

 private:
  static constexpr int kWordColumns = kColumnsOfWord<kEncoding>;
  static constexpr int kUnit = 4 * kWordColumns;  // columns of the lines that a warp reads at once
  static constexpr int kUnits = Panel::kRunColumns / kUnit;
  static constexpr int kProducts = kWordColumns / 4;  // of a unit
  static constexpr int kXPieces = kChunk / 8;         // of a row of x, 16 bytes each
  static constexpr int kXCopies = (kTokens * kXPieces + kLinearThreads - 1) / kLinearThreads;

  SLUICE_DEVICE int chunk_begin(int chunk) const { return begin_ + chunk * kChunk; }
  // At so many bytes of their rings.
  SLUICE_DEVICE uint16_t* x_at(int at) const { return x_ + at / 2; }
  SLUICE_DEVICE std::byte* codes_at(int at) const { return codes_ + at; }

  // A chunk of the panel, and one of x, which may be a later one.
  SLUICE_DEVICE void stage(int chunk, int at, int rows_at) {
    stage_x(chunk + kAhead, rows_at);
    panel_.copy(chunk_begin(chunk), codes_at(at), has_panel_ && chunk_begin(chunk) < end_);
    copy_async_commit();
  }

  SLUICE_DEVICE void stage_x(int chunk, int at) {
    const int begin = chunk_begin(chunk);
    SLUICE_UNROLL
    for (int i = 0; i < kXCopies; ++i) {
      const int piece = i * kLinearThreads + thread_index();
      const int row = piece / kXPieces;
      const int col = piece % kXPieces * 8;
      const bool is_valid = row < args_.m && begin + col < end_;
      copy_async16_if(begin < end_ && piece < kTokens * kXPieces, x_at(at) + row * kStride + col,
                      args_.x.data + static_cast<uint32_t>(is_valid ? x_from_[i] + begin : 0),
                      is_valid);
    }
  }

  SLUICE_DEVICE static void multiply_tile(float (&sum)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2]) {
    if (kIsBF16)
      mma_16x8x16_bf16(sum, a, b);
    else
      mma_16x8x16_f16(sum, a, b);
  }

  // x of a unit as the right operands of its products.
  SLUICE_DEVICE static void load_x(const uint16_t* x, int tile, uint32_t (&b)[kProducts][2]) {
    const uint16_t* from =
        x + (tile * 8 + lane_index() / 4) * kStride + lane_index() % 4 * kWordColumns;
    if constexpr (kProducts == 2) {
      const Words4 words = *reinterpret_cast<const Words4*>(from);
      for (int i = 0; i < 4; ++i) b[i / 2 % kProducts][i % 2] = words.word[i];
    } else {
      const Words2 words = *reinterpret_cast<const Words2*>(from);
      for (int i = 0; i < 2; ++i) b[0][i] = words.word[i];
    }
  }

  // Sums of x over each run of a chunk, [kRuns][kTokens]: each warp has some runs of some tiles.
  SLUICE_DEVICE void sum_x(int chunk, int at) {
    constexpr uint32_t kOne = kIsBF16 ? 0x3f803f80u : 0x3c003c00u;
    const uint32_t ones[4] = {kOne, kOne, kOne, kOne};
    float* sums = x_sums_ + chunk % 2 * kSumElements;
    SLUICE_UNROLL
    for (int first = 0; first < kRuns * kTiles; first += kPanelWarps) {
      const int i = first + warp_index();
      if (i >= kRuns * kTiles) break;
      const int run = i % kRuns;
      const int tile = i / kRuns;
      float sum[4] = {};
      SLUICE_UNROLL
      for (int unit = 0; unit < kUnits; ++unit) {
        uint32_t b[kProducts][2];
        load_x(x_at(at) + run * Panel::kRunColumns + unit * kUnit, tile, b);
        SLUICE_UNROLL
        for (int j = 0; j < kProducts; ++j) multiply_tile(sum, ones, b[j]);
      }
      if (lane_index() >= 4) continue;
      float* to = sums + run * kTokens + tile * 8 + lane_index() * 2;
      to[0] = sum[0];
      to[1] = sum[1];
    }
  }

  SLUICE_DEVICE void multiply(int chunk, int at, int rows_at) {
    const std::byte* codes = codes_at(at);
    const uint16_t* x = x_at(rows_at);
    const float* sums = x_sums_ + chunk % 2 * kSumElements;
    SLUICE_UNROLL
    for (int run = 0; run < kRuns; ++run)
      multiply_run(codes + run * Panel::kRunBytes, x + run * Panel::kRunColumns,
                   sums + run * kTokens);
  }

  SLUICE_DEVICE void multiply_run(const std::byte* codes, const uint16_t* x, const float* x_sums) {
    uint32_t a[kUnits][kProducts][4];
    SLUICE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      const Words2 words = Panel::codes(codes, 4 * unit);
      SLUICE_UNROLL
      for (int i = 0; i < kProducts; ++i) SLUICE_UNROLL
      for (int j = 0; j < 4; ++j)
        a[unit][i][j] = Code::pair(words.word[j % 2], 2 * i + j / 2, table_);
    }
    if constexpr (kRun == 0) {
      SLUICE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) add_run(totals_[tile], a, x, tile);
    } else {
      const RowScales<kEncoding> scales(Panel::scales(codes + Panel::kRunCodeBytes));
      SLUICE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        float sums[4] = {};
        add_run(sums, a, x, tile);
        float x_sum[2] = {};
        if constexpr (kHasZeros) {
          const Words2 pair =
              *reinterpret_cast<const Words2*>(x_sums + tile * 8 + lane_index() % 4 * 2);
          for (int i = 0; i < 2; ++i) x_sum[i] = bits_to_float(pair.word[i]);
        }
        SLUICE_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (kHasZeros) sums[i] -= scales.zero[i / 2] * x_sum[i % 2];
          totals_[tile][i] += scales.scale[i / 2] * sums[i];
        }
      }
    }
  }

  SLUICE_DEVICE static void add_run(float (&sums)[4], const uint32_t (&a)[kUnits][kProducts][4],
                                    const uint16_t* x, int tile) {
    SLUICE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      uint32_t b[kProducts][2];
      load_x(x + unit * kUnit, tile, b);
      SLUICE_UNROLL
      for (int i = 0; i < kProducts; ++i) multiply_tile(sums, a[unit][i], b[i]);
    }
  }

  // The panel's sums to columns [0, 16) of `y`, those before `n`.
  SLUICE_DEVICE void write(float* y, int64_t ldy, int64_t n) const {
    const float* bias = args_.bias && args_.splits == 1 ? args_.bias + panel_index_ * 16 : nullptr;
    float factor[2] = {1, 1};
    if constexpr (kRun == 0) {
      const RowScales<kEncoding> scales(
          Panel::scales(args_.w + (panel_index_ + int64_t{1}) * args_.panel.panel_bytes - 64));
      factor[0] = scales.scale[0];
      factor[1] = scales.scale[1];
    }
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + lane_index() % 4 * 2 + i % 2;
      const int row = lane_index() / 4 * 2 + i / 2;
      if (token >= args_.m || row >= n) continue;
      y[token * ldy + row] = factor[i / 2] * totals_[tile][i] + (bias ? bias[row] : 0.0f);
    }
  }

  const LinearArguments& args_;
  int panel_index_;
  bool has_panel_;
  int begin_;  // columns of this block
  int end_;
  Panel panel_;
  std::byte* codes_;  // [kStages][kPanelWarps][Panel::kChunkBytes], from this warp's on
  uint16_t* x_;       // [kXStages][kTokens][kStride]
  float* x_sums_;     // [2][kRuns][kTokens]
  uint32_t* table_;
  int x_from_[kXCopies];  // the pieces that this thread copies, in a chunk
  float totals_[kTiles][4] = {};
};

/// A block of the product each (QuantisedLinearBlock), started by the next.
template <Encoding kEncoding, bool kIsBF16, int kTiles, int kRun>
SLUICE_KERNEL_OF_BLOCKS(kLinearThreads, kBlocksEach)
quantised_linear_kernel(LinearArguments arguments) {
  using Block = QuantisedLinearBlock<kEncoding, kIsBF16, kTiles, kRun>;
  state_budget<typename Block::Budget>();
  Block block(arguments);
  block.run();
}

/// Starts the kernel of one variant.
template <Encoding kEncoding, bool kIsBF16, int kTiles, int kRun>
void launch_linear(const LinearArguments& arguments, Grid grid, Stream stream) {
  launch("quantised_linear", quantised_linear_kernel<kEncoding, kIsBF16, kTiles, kRun>, grid,
         kLinearThreads,
         QuantisedLinearBlock<kEncoding, kIsBF16, kTiles, kRun>::Budget::kSharedBytes, stream,
         arguments);
}

/// Calls visit(tiles, run) with the two as constants: of the kernel that takes m rows of x.
template <Encoding kEncoding, class Visit>
void with_kernel(const PanelShape& shape, int64_t m, const Visit& visit) {
  const auto with_run = [&](auto run) {
    if (m <= 8)
      visit(Constant<1>(), run);
    else if (m <= 16)
      visit(Constant<2>(), run);
    else if (m <= 32)
      visit(Constant<4>(), run);
    else
      visit(Constant<8>(), run);
  };
  if constexpr (kEncoding != Encoding::kMxfp4 &&
                kEncoding < Encoding::kQ4_0) {  // their groups have 32
    constexpr bool kIsFourBit = kColumnsOfWord<kEncoding> == 8;
    if (kIsFourBit ? shape.group_columns % 64 == 0
                   : shape.columns == shape.group_columns && shape.columns % 64 == 0)
      return with_run(Constant < kIsFourBit ? 64 : 0 > ());
  }
  with_run(Constant<32>());
}

constexpr int kDequantiseThreads = 256;

// A thread has eight columns of a row, the lanes of a warp two such pieces of 16 rows: reads are
// whole lines, writes whole sectors of 32 bytes where `is_wide` (rows aligned to 16 bytes).
template <Encoding kEncoding, bool kIsBF16>
SLUICE_KERNEL(kDequantiseThreads)
dequantise_kernel(const std::byte* w, PanelShape shape, int n, int k, uint16_t* out, int64_t ld,
                  bool is_wide) {
  using Code = Codes<kEncoding, false>;
  constexpr int kColumns = kColumnsOfWord<kEncoding>;
  constexpr int kWords = 8 / kColumns;
  auto* table = reinterpret_cast<float*>(shared_memory());
  if constexpr (kHasTable<kEncoding>) {
    if (thread_index() < 16) table[thread_index()] = table_value<kEncoding>(thread_index());
    block_sync();
  }
  const int index = block_x() * kDequantiseThreads + thread_index();
  const int in_panel = index % 16;
  const int row = block_y() * 16 + in_panel;
  const int col = index / 16 * 8;
  if (row >= n || col >= k) return;
  const auto group_bytes = static_cast<int>(shape.group_bytes);
  const std::byte* group =
      w + block_y() * shape.panel_bytes + (col >> shape.group_shift) * group_bytes;
  const std::byte* scales = group + group_bytes - kScaleBytesOf<kEncoding>;
  const auto* words =
      reinterpret_cast<const uint32_t*>(
          group + (col & static_cast<int>((1u << shape.group_shift) - 1)) / kColumns * 64) +
      in_panel;
  float scale, zero = 0;
  if (kEncoding == Encoding::kInt4) {
    scale = half_to_float(reinterpret_cast<const uint16_t*>(scales)[in_panel]);
    zero = half_to_float(reinterpret_cast<const uint16_t*>(scales)[16 + in_panel]);
  } else if (kEncoding == Encoding::kQ4_0) {
    scale = half_to_float(reinterpret_cast<const uint16_t*>(scales)[in_panel]);
  } else if (kEncoding == Encoding::kMxfp4) {
    scale = bits_to_float(e8m0_bits(static_cast<uint32_t>(scales[in_panel])));
  } else {
    scale = reinterpret_cast<const float*>(scales)[in_panel];
  }
  uint32_t pairs[4];
  SLUICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = words[i * 2 / kColumns % kWords * 16];
    float value[2];
    if constexpr (kHasTable<kEncoding>) {
      for (int j = 0; j < 2; ++j) value[j] = table[(word >> (4 * i + 16 * j)) & 15u];
    } else {
      const uint32_t pair = Code::pair(word, i % (kColumns / 2), nullptr);
      for (int j = 0; j < 2; ++j) value[j] = half_to_float(static_cast<uint16_t>(pair >> (16 * j)));
    }
    for (int j = 0; j < 2; ++j) value[j] = scale * (value[j] - zero);
    pairs[i] = kIsBF16 ? pair_of_bf16(value[0], value[1]) : pair_of_half(value[0], value[1]);
  }
  uint16_t* to = out + row * ld + col;
  if (is_wide && col + 8 <= k) {
    *reinterpret_cast<Words4*>(to) = {{pairs[0], pairs[1], pairs[2], pairs[3]}};
    return;
  }
  SLUICE_UNROLL
  for (int i = 0; i < 8; ++i)
    if (col + i < k) to[i] = static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2)));
}

/// Shared memory of a block of products with m rows of x.
template <Encoding kEncoding>
int64_t linear_shared_bytes(const PanelShape& shape, int64_t m) {
  int64_t bytes = 0;
  with_kernel<kEncoding>(shape, m, [&](auto tiles, auto run) {
    bytes = QuantisedLinearBlock<kEncoding, false, tiles.value, run.value>::Budget::kSharedBytes;
  });
  return bytes;
}

/// Starts the variant for the arguments' rows and group.
template <Encoding kEncoding>
void run_linear(const LinearArguments& arguments, Grid grid, Stream stream) {
  with_kernel<kEncoding>(arguments.panel, arguments.m, [&](auto tiles, auto run) {
    if (arguments.x.type == DType::kBF16)
      launch_linear<kEncoding, true, tiles.value, run.value>(arguments, grid, stream);
    else
      launch_linear<kEncoding, false, tiles.value, run.value>(arguments, grid, stream);
  });
}

/// Rows [0, n) of panels to `type`, row stride ld elements.
template <Encoding kEncoding>
void run_dequantise(const std::byte* w, const PanelShape& shape, int64_t n, int64_t k, DType type,
                    uint16_t* out, int64_t ld, Stream stream) {
  const int64_t pieces = shape.columns / 8 * 16;
  const Grid grid{static_cast<int>((pieces + kDequantiseThreads - 1) / kDequantiseThreads),
                  static_cast<int>((n + 15) / 16)};
  const bool is_wide = ld % 8 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  constexpr int64_t kTableBytes = kHasTable<kEncoding> ? 64 : 0;
  launch("dequantise",
         type == DType::kBF16 ? dequantise_kernel<kEncoding, true>
                              : dequantise_kernel<kEncoding, false>,
         grid, kDequantiseThreads, kTableBytes, stream, w, shape, static_cast<int>(n),
         static_cast<int>(k), out, ld, is_wide);
}

}  // namespace sluice::cuda
