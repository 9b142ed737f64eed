#pragma once
// The product of few rows of x with quantised panels by one block: eight warps have a panel each,
// x goes through shared memory in chunks of columns. The panel's 16 rows are the rows of the matrix
// instruction, tokens its columns; since a dot product may take its terms in any order, each lane
// feeds the words it loads as they lie, and x in the same order. Only .cu files include it.
#include "kernels/cuda/quantised_codes.h"
#include "kernels/cuda/quantised_linear_launch.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

template <Encoding kEncoding, bool kIsBF16, int kTiles>
class QuantisedLinearBlock {
 public:
  using Code = Codes<kEncoding, kIsBF16>;
  static constexpr int kStageElements = kTiles * 8 * kChunkStride;
  static constexpr int64_t kSharedBytes =
      int64_t{kChunkStages} * kStageElements * 2 + Code::kTableBytes;

  SLUICE_DEVICE explicit QuantisedLinearBlock(const LinearArguments& arguments)
      : args_(arguments),
        stages_(reinterpret_cast<uint16_t*>(shared_memory())),
        table_(reinterpret_cast<uint32_t*>(stages_ + kChunkStages * kStageElements)),
        panel_(int64_t{block_x()} * kPanelWarps + warp_index()),
        has_panel_(panel_ * 16 < arguments.n),
        begin_(block_y() * arguments.split_columns),
        end_(begin_ + arguments.split_columns < arguments.panel.columns
                 ? begin_ + arguments.split_columns
                 : arguments.panel.columns) {}

  SLUICE_DEVICE void run() {
    Code::fill_table(table_);
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
      if (has_panel_) multiply(chunk, now, chunk + 1 == chunks);
    }
    copy_async_wait<0>();
    if (has_panel_) write();
  }

 private:
  static constexpr int kWordColumns = kColumnsOfWord<kEncoding>;
  static constexpr int kUnit = 4 * kWordColumns;  // columns of the lines that a warp reads at once
  static constexpr int kUnits = kChunkColumns / kUnit;
  static constexpr int kMostGroups = kChunkColumns / 32;
  static constexpr bool kHasZeros = kEncoding == Encoding::kInt4;

  // A lane's part of a chunk: words of its two rows, and the scales (and zeros) of its groups.
  struct Loaded {
    Words2 codes[kUnits];
    Words2 scales[kMostGroups];
  };

  SLUICE_DEVICE int64_t chunk_begin(int chunk) const {
    return begin_ + int64_t{chunk} * kChunkColumns;
  }

  SLUICE_DEVICE void stage(int chunk) {
    constexpr int kPieces = kChunkColumns / 8;
    uint16_t* to = stages_ + chunk % kChunkStages * kStageElements;
    if (chunk_begin(chunk) < end_)
      for (int i = thread_index(); i < kTiles * 8 * kPieces; i += kLinearThreads) {
        const int row = i / kPieces;
        const int64_t col = chunk_begin(chunk) + i % kPieces * 8;
        const bool is_valid = row < args_.m && col < end_;
        copy_async16(to + row * kChunkStride + i % kPieces * 8,
                     args_.x.data + (is_valid ? row * args_.x.stride + col : 0), is_valid);
      }
    copy_async_commit();
  }

  // Rows 2 g and 2 g + 1 of the panel are this lane's, g = lane / 4.
  SLUICE_DEVICE const std::byte* group_at(int64_t group) const {
    return args_.w + panel_ * args_.panel.panel_bytes + group * args_.panel.group_bytes;
  }
  SLUICE_DEVICE Words2 scales_of(int64_t group) const {
    const std::byte* scales = group_at(group) + args_.panel.group_bytes - 64;
    const int pair = lane_index() / 4;
    if (!kHasZeros) return reinterpret_cast<const Words2*>(scales)[pair];
    const auto* words = reinterpret_cast<const uint32_t*>(scales);
    return {{words[pair], words[8 + pair]}};
  }

  SLUICE_DEVICE void load(int chunk, Loaded& to) const {
    if (!has_panel_) return;
    const int64_t columns = args_.panel.group_columns;
    SLUICE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      const int64_t col = chunk_begin(chunk) + unit * kUnit;
      to.codes[unit] = {};
      if (col >= end_) continue;
      const int64_t line = col % columns / kWordColumns + lane_index() % 4;
      to.codes[unit] = load_streaming8(group_at(col / columns) + line * 64 + lane_index() / 4 * 8);
    }
    if (columns > kChunkColumns) return;  // one scale for the row: at the end
    SLUICE_UNROLL
    for (int group = 0; group < kMostGroups; ++group) {
      const int64_t col = chunk_begin(chunk) + group * columns;
      to.scales[group] = {};
      if (group * columns < kChunkColumns && col < end_)
        to.scales[group] = scales_of(col / columns);
    }
  }

  SLUICE_DEVICE static void multiply_tile(float (&sum)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2]) {
    if (kIsBF16)
      mma_16x8x16_bf16(sum, a, b);
    else
      mma_16x8x16_f16(sum, a, b);
  }

  SLUICE_DEVICE void multiply(int chunk, const Loaded& loaded, bool is_last) {
    const uint16_t* x = stages_ + chunk % kChunkStages * kStageElements;
    const auto columns = static_cast<int>(
        args_.panel.group_columns < kChunkColumns ? args_.panel.group_columns : kChunkColumns);
    const bool is_whole_row = args_.panel.group_columns > kChunkColumns;
    SLUICE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      add_unit(x + unit * kUnit, loaded.codes[unit]);
      if ((unit + 1) * kUnit % columns != 0 || is_whole_row) continue;
      // Which group it is the compiler knows where the groups' size is a constant to it.
      const int group = (unit + 1) * kUnit / columns - 1;
      SLUICE_UNROLL
      for (int i = 0; i < kMostGroups; ++i)
        if (i == group) apply(loaded.scales[i]);
    }
    if (is_whole_row && is_last) apply(scales_of(0));
  }

  SLUICE_DEVICE void add_unit(const uint16_t* x, const Words2& codes) {
    constexpr int kProducts = kWordColumns / 4;
    uint32_t a[kProducts][4];
    SLUICE_UNROLL
    for (int i = 0; i < kProducts; ++i) SLUICE_UNROLL
    for (int j = 0; j < 4; ++j) a[i][j] = Code::pair(codes.word[j % 2], 2 * i + j / 2, table_);
    constexpr uint32_t kOne = kIsBF16 ? 0x3f803f80u : 0x3c003c00u;
    const uint32_t ones[4] = {kOne, kOne, kOne, kOne};
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint16_t* from =
          x + (tile * 8 + lane_index() / 4) * kChunkStride + lane_index() % 4 * kWordColumns;
      uint32_t b[kProducts][2];
      if constexpr (kProducts == 2) {
        const Words4 words = *reinterpret_cast<const Words4*>(from);
        for (int i = 0; i < 4; ++i) b[i / 2 % kProducts][i % 2] = words.word[i];
      } else {
        const Words2 words = *reinterpret_cast<const Words2*>(from);
        for (int i = 0; i < 2; ++i) b[0][i] = words.word[i];
      }
      SLUICE_UNROLL
      for (int i = 0; i < kProducts; ++i) {
        multiply_tile(sums_[tile], a[i], b[i]);
        if (kHasZeros) multiply_tile(x_sums_[tile], ones, b[i]);
      }
    }
  }

  // A group has ended: its sums, scaled, join the totals.
  SLUICE_DEVICE void apply(const Words2& scales) {
    float scale[2], zero[2];
    SLUICE_UNROLL
    for (int row = 0; row < 2; ++row) {
      scale[row] = kHasZeros ? half_to_float(static_cast<uint16_t>(scales.word[0] >> (16 * row)))
                             : bits_to_float(scales.word[row]);
      zero[row] =
          kHasZeros ? half_to_float(static_cast<uint16_t>(scales.word[1] >> (16 * row))) : 0.0f;
    }
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      SLUICE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float sum = sums_[tile][i];
        if (kHasZeros) sum -= zero[i / 2] * x_sums_[tile][i % 2];
        totals_[tile][i] += scale[i / 2] * sum;
        sums_[tile][i] = 0;
      }
      SLUICE_UNROLL
      for (int i = 0; i < 4; ++i) x_sums_[tile][i] = 0;
    }
  }

  SLUICE_DEVICE void write() const {
    float* y = args_.y + (args_.is_split ? int64_t{block_y()} * args_.m * args_.ldy : 0);
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = tile * 8 + lane_index() % 4 * 2 + i % 2;
      const int64_t row = panel_ * 16 + lane_index() / 4 * 2 + i / 2;
      if (token >= args_.m || row >= args_.n) continue;
      const float bias = args_.bias && !args_.is_split ? args_.bias[row] : 0.0f;
      y[token * args_.ldy + row] = totals_[tile][i] + bias;
    }
  }

  const LinearArguments& args_;
  uint16_t* stages_;  // [kChunkStages][kTiles * 8][kChunkStride]
  uint32_t* table_;
  int64_t panel_;
  bool has_panel_;
  int64_t begin_;  // columns of this block
  int64_t end_;
  float sums_[kTiles][4] = {};    // of the group, codes as they are
  float x_sums_[kTiles][4] = {};  // of x over the group, for the zeros
  float totals_[kTiles][4] = {};
};

template <Encoding kEncoding, bool kIsBF16, int kTiles>
SLUICE_KERNEL(kLinearThreads)
quantised_linear_kernel(LinearArguments arguments) {
  QuantisedLinearBlock<kEncoding, kIsBF16, kTiles> block(arguments);
  block.run();
}

template <Encoding kEncoding, bool kIsBF16>
void launch_linear(const LinearArguments& arguments, Grid grid, Stream stream) {
  const auto run = [&](auto kernel, int64_t shared_bytes) {
    launch("quantised_linear", kernel, grid, kLinearThreads, shared_bytes, stream, arguments);
  };
  if (arguments.m <= 8)
    run(quantised_linear_kernel<kEncoding, kIsBF16, 1>,
        QuantisedLinearBlock<kEncoding, kIsBF16, 1>::kSharedBytes);
  else if (arguments.m <= 16)
    run(quantised_linear_kernel<kEncoding, kIsBF16, 2>,
        QuantisedLinearBlock<kEncoding, kIsBF16, 2>::kSharedBytes);
  else if (arguments.m <= 32)
    run(quantised_linear_kernel<kEncoding, kIsBF16, 4>,
        QuantisedLinearBlock<kEncoding, kIsBF16, 4>::kSharedBytes);
  else
    run(quantised_linear_kernel<kEncoding, kIsBF16, 8>,
        QuantisedLinearBlock<kEncoding, kIsBF16, 8>::kSharedBytes);
}

constexpr int kDequantiseThreads = 256;

// A thread a word: of 16 rows in turn, so that reads are whole lines.
template <Encoding kEncoding, bool kIsBF16>
SLUICE_KERNEL(kDequantiseThreads)
dequantise_kernel(const std::byte* w, PanelShape shape, int64_t n, int64_t k, uint16_t* out,
                  int64_t ld) {
  using Code = Codes<kEncoding, false>;
  constexpr int kColumns = kColumnsOfWord<kEncoding>;
  const int64_t index = int64_t{block_x()} * kDequantiseThreads + thread_index();
  const int64_t panel = block_y();
  const int in_panel = static_cast<int>(index % 16);
  const int64_t row = panel * 16 + in_panel;
  const int64_t col = index / 16 * kColumns;
  if (row >= n || col >= k) return;
  const std::byte* group =
      w + panel * shape.panel_bytes + col / shape.group_columns * shape.group_bytes;
  const std::byte* scales = group + shape.group_bytes - 64;
  const uint32_t word = *reinterpret_cast<const uint32_t*>(
      group + col % shape.group_columns / kColumns * 64 + in_panel * 4);
  float scale, zero = 0;
  if (kEncoding == Encoding::kInt4) {
    scale = half_to_float(reinterpret_cast<const uint16_t*>(scales)[in_panel]);
    zero = half_to_float(reinterpret_cast<const uint16_t*>(scales)[16 + in_panel]);
  } else {
    scale = reinterpret_cast<const float*>(scales)[in_panel];
  }
  SLUICE_UNROLL
  for (int i = 0; i < kColumns; ++i) {
    float value;
    if (kEncoding == Encoding::kNf4) {
      const int pair_shift = 4 * (i / 2) + 16 * (i % 2);
      value = nf4_value(static_cast<int>((word >> pair_shift) & 15u));
    } else {
      value =
          half_to_float(static_cast<uint16_t>(Code::pair(word, i / 2, nullptr) >> (16 * (i % 2))));
    }
    value = scale * (value - zero);
    if (col + i < k)
      out[row * ld + col + i] = kIsBF16 ? float_to_bf16(value) : float_to_half(value);
  }
}

template <Encoding kEncoding>
void run_linear(const LinearArguments& arguments, Grid grid, Stream stream) {
  if (arguments.x.type == DType::kBF16)
    launch_linear<kEncoding, true>(arguments, grid, stream);
  else
    launch_linear<kEncoding, false>(arguments, grid, stream);
}

template <Encoding kEncoding>
void run_dequantise(const std::byte* w, const PanelShape& shape, int64_t n, int64_t k, DType type,
                    uint16_t* out, int64_t ld, Stream stream) {
  const int64_t words = shape.columns / kColumnsOfWord<kEncoding> * 16;
  const Grid grid{static_cast<int>((words + kDequantiseThreads - 1) / kDequantiseThreads),
                  static_cast<int>((n + 15) / 16)};
  launch("dequantise",
         type == DType::kBF16 ? dequantise_kernel<kEncoding, true>
                              : dequantise_kernel<kEncoding, false>,
         grid, kDequantiseThreads, 0, stream, w, shape, n, k, out, ld);
}

}  // namespace sluice::cuda
