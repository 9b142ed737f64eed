#pragma once
// The product of few rows of x with panels of GGUF's K types by one block: eight warps have a panel
// each and read its words from memory as they multiply, each lane those of two rows and a quarter
// of the columns; x comes from the caches. The panel's 16 rows are the rows of the matrix
// instruction, as in quantised_linear_block.h; a part's sum is scaled in f32, and what its minima
// take away needs the sums of x, which a matrix of ones gives. Only .cu files include it.
#include "kernels/cuda/k_codes.h"
#include "kernels/cuda/k_linear_launch.h"
#include "kernels/cuda/split_sums.h"

namespace sluice::cuda {

/// kTiles: eight rows of x each, that are multiplied while the panel is read once.
template <Encoding kEncoding, bool kIsBF16, int kTiles>
class KLinearBlock {
 public:
  using Places = KPlaces<kEncoding>;

  struct Budget {
    static constexpr int kSharedBytes = static_cast<int>(sizeof(int));  // which block is the last
    static constexpr int kTurnBytes = Places::kBytes;
    // What the compiler asks for before it waits is not known here: a block of 32 columns.
    static constexpr int kAheadBytes = Places::kBlockBytes;
    static constexpr int kPlannedBlocks = kBlocksEach;
  };

  SLUICE_DEVICE explicit KLinearBlock(const LinearArguments& arguments)
      : args_(arguments),
        panel_index_(block_x() * kPanelWarps + warp_index()),
        begin_(block_y() * static_cast<int>(arguments.split_columns)),
        end_(static_cast<int>(begin_ + arguments.split_columns < arguments.panel.columns
                                  ? begin_ + arguments.split_columns
                                  : arguments.panel.columns)),
        panel_(arguments.w + panel_index_ * arguments.panel.panel_bytes) {}

  SLUICE_DEVICE void run() {
    const bool has_panel = int64_t{panel_index_} * 16 < args_.n;
    const bool is_split = args_.splits > 1;
    for (int first = 0; has_panel && first < args_.m; first += 8 * kTiles) {
      float totals[kTiles][4] = {};
      for (int col = begin_; col < end_; col += Places::kColumns)
        multiply_group(panel_ + col / Places::kColumns * Places::kBytes, first, col, totals);
      if (is_split)
        write(totals, first, sums().of(block_y()) + warp_index() * 16, SplitSums::kRows,
              WeightFormat::kPanelRows);
      else
        write(totals, first, args_.y + panel_index_ * 16, args_.ldy, args_.n - panel_index_ * 16);
    }
    if (is_split)
      sums().finish(shared_memory(), args_.m, block_x() * SplitSums::kRows,
                    static_cast<int>(args_.n), args_.bias, args_.y, args_.ldy);
  }

 private:
  static constexpr bool kHasWideParts = Places::kPartColumns == 32;
  static constexpr uint32_t kOne = kIsBF16 ? 0x3f803f80u : 0x3c003c00u;

  SLUICE_DEVICE SplitSums sums() const {
    return SplitSums(args_.split, block_x(), args_.splits, args_.m);
  }

  // Rows 2 g and 2 g + 1 of a line.
  SLUICE_DEVICE static Words2 words_at(const std::byte* line) {
    return *reinterpret_cast<const Words2*>(line + lane_index() / 4 * 8);
  }

  SLUICE_DEVICE static void multiply_tile(float (&sum)[4], const uint32_t (&a)[4],
                                          const uint32_t (&b)[2]) {
    if (kIsBF16)
      mma_16x8x16_bf16(sum, a, b);
    else
      mma_16x8x16_f16(sum, a, b);
  }

  SLUICE_DEVICE void multiply_group(const std::byte* group, int first, int col,
                                    float (&totals)[kTiles][4]) const {
    KRowScales<kEncoding> scales[2];
    SLUICE_UNROLL
    for (int row = 0; row < 2; ++row) scales[row].load_all(group, lane_index() / 4 * 2 + row);
    SLUICE_UNROLL
    for (int block = 0; block < Places::kBlocks; ++block) {
      uint32_t a[2][4];
      load_codes(group + Places::kScaleBytes + block * Places::kBlockBytes, a);
      SLUICE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        float part_sums[2][4] = {}, x_sums[2][4] = {};
        SLUICE_UNROLL
        for (int half = 0; half < 2; ++half) {
          uint32_t b[2];
          load_x(first + tile * 8, col + block * 32 + half * 16, b);
          const int part = kHasWideParts ? 0 : half;
          multiply_tile(part_sums[part], a[half], b);
          if (Places::kHasMinima) multiply_tile(x_sums[part], {kOne, kOne, kOne, kOne}, b);
        }
        SLUICE_UNROLL
        for (int half = 0; half < (kHasWideParts ? 1 : 2); ++half) {
          const int part = kHasWideParts ? block : block * 2 + half;
          SLUICE_UNROLL
          for (int i = 0; i < 4; ++i) {
            totals[tile][i] += scales[i / 2].scale_of(part) * part_sums[half][i];
            if (Places::kHasMinima)
              totals[tile][i] -= scales[i / 2].minimum_of(part) * x_sums[half][i % 2];
          }
        }
      }
    }
  }

  // The codes of a block as left operands: 16 columns each, of which lane % 4 is a quad.
  SLUICE_DEVICE static void load_codes(const std::byte* lines, uint32_t (&a)[2][4]) {
    const int quad = lane_index() % 4;
    Words2 bits{};
    if (Places::kHasBits) bits = words_at(lines + Places::kBitLine * 64);
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      Words2 nibbles{}, pairs{};
      if (Places::kHasNibbles) nibbles = words_at(lines + (2 * half + quad / 2) * 64);
      if (Places::kHasPairs) pairs = words_at(lines + (Places::kPairLine + half) * 64);
      SLUICE_UNROLL
      for (int row = 0; row < 2; ++row) {
        const uint32_t codes = k_quad<kEncoding>(
            {nibbles.word[row], pairs.word[row], bits.word[row]}, 4 * half + quad);
        a[half][row] = k_pair<kEncoding, kIsBF16>(codes);
        a[half][2 + row] = k_pair<kEncoding, kIsBF16>(codes >> 8);
      }
    }
  }

  // 16 columns of eight rows of x as the right operand; zeros past the last row.
  SLUICE_DEVICE void load_x(int first, int col, uint32_t (&b)[2]) const {
    const int row = first + lane_index() / 4;
    Words2 words{};
    if (row < args_.m)
      words = *reinterpret_cast<const Words2*>(args_.x.data + row * args_.x.stride + col +
                                               lane_index() % 4 * 4);
    b[0] = words.word[0];
    b[1] = words.word[1];
  }

  // The panel's sums to columns [0, 16) of `y`, those before `n`.
  SLUICE_DEVICE void write(const float (&totals)[kTiles][4], int first, float* y, int64_t ldy,
                           int64_t n) const {
    const float* bias = args_.bias && args_.splits == 1 ? args_.bias + panel_index_ * 16 : nullptr;
    SLUICE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = first + tile * 8 + lane_index() % 4 * 2 + i % 2;
      const int row = lane_index() / 4 * 2 + i / 2;
      if (token >= args_.m || row >= n) continue;
      y[token * ldy + row] = totals[tile][i] + (bias ? bias[row] : 0.0f);
    }
  }

  const LinearArguments& args_;
  int panel_index_;
  int begin_;  // columns of this block, whole groups
  int end_;
  const std::byte* panel_;
};

/// A block of the product each (KLinearBlock), started by the next.
template <Encoding kEncoding, bool kIsBF16, int kTiles>
SLUICE_KERNEL_OF_BLOCKS(kLinearThreads, kBlocksEach)
k_linear_kernel(LinearArguments arguments) {
  using Block = KLinearBlock<kEncoding, kIsBF16, kTiles>;
  state_budget<typename Block::Budget>();
  Block block(arguments);
  block.run();
}

/// Starts the variant for the arguments' rows: more than four tiles read the panels again.
template <Encoding kEncoding>
void run_k_linear(const LinearArguments& arguments, Grid grid, Stream stream) {
  const bool is_bf16 = arguments.x.type == DType::kBF16;
  const auto kernel =
      arguments.m <= 8
          ? (is_bf16 ? k_linear_kernel<kEncoding, true, 1> : k_linear_kernel<kEncoding, false, 1>)
          : (is_bf16 ? k_linear_kernel<kEncoding, true, 4> : k_linear_kernel<kEncoding, false, 4>);
  launch("k_linear", kernel, grid, kLinearThreads, static_cast<int64_t>(sizeof(int)), stream,
         arguments);
}

constexpr int kKDequantiseThreads = 256;

// A thread has eight columns of a row, two quads; the lanes of a warp two such pieces of 16 rows.
template <Encoding kEncoding, bool kIsBF16>
SLUICE_KERNEL(kKDequantiseThreads)
k_dequantise_kernel(const std::byte* w, PanelShape shape, int n, int k, uint16_t* out, int64_t ld,
                    bool is_wide) {
  using Places = KPlaces<kEncoding>;
  const int index = block_x() * kKDequantiseThreads + thread_index();
  const int in_panel = index % 16;
  const int row = block_y() * 16 + in_panel;
  const int col = index / 16 * 8;
  if (row >= n || col >= k) return;
  const std::byte* group =
      w + block_y() * shape.panel_bytes + int64_t{col} / Places::kColumns * Places::kBytes;
  const int in_group = col % Places::kColumns;
  const std::byte* lines = group + Places::kScaleBytes + in_group / 32 * Places::kBlockBytes;
  const auto word = [&](int line) {
    return reinterpret_cast<const uint32_t*>(lines + line * 64)[in_panel];
  };
  const int v = in_group % 32 / 4;  // the first quad, even
  KWords words;
  if (Places::kHasNibbles) words.nibbles = word(v / 2);
  if (Places::kHasPairs) words.pairs = word(Places::kPairLine + v / 4);
  if (Places::kHasBits) words.bits = word(Places::kBitLine);
  KRowScales<kEncoding> scales;
  scales.load_all(group, in_panel);
  const int part = in_group / Places::kPartColumns;
  const float scale = scales.scale_of(part);
  const float minimum = scales.minimum_of(part);
  uint32_t pairs[4];
  SLUICE_UNROLL
  for (int quad = 0; quad < 2; ++quad) {
    const uint32_t codes = k_quad<kEncoding>(words, v + quad);
    SLUICE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float value[2];
      SLUICE_UNROLL
      for (int j = 0; j < 2; ++j) {  // columns 2 i and 2 i + 1: bytes i and i + 2
        const int code = static_cast<int>(codes >> (8 * i + 16 * j) & 255u);
        value[j] = scale * static_cast<float>(code - Places::kZero);
        if (Places::kHasMinima) value[j] -= minimum;
      }
      pairs[quad * 2 + i] =
          kIsBF16 ? pair_of_bf16(value[0], value[1]) : pair_of_half(value[0], value[1]);
    }
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

/// Rows [0, n) of panels to `type`, row stride ld elements.
template <Encoding kEncoding>
void run_k_dequantise(const std::byte* w, const PanelShape& shape, int64_t n, int64_t k, DType type,
                      uint16_t* out, int64_t ld, Stream stream) {
  const int64_t pieces = shape.columns / 8 * 16;
  const Grid grid{static_cast<int>((pieces + kKDequantiseThreads - 1) / kKDequantiseThreads),
                  static_cast<int>((n + 15) / 16)};
  const bool is_wide = ld % 8 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  launch("k_dequantise",
         type == DType::kBF16 ? k_dequantise_kernel<kEncoding, true>
                              : k_dequantise_kernel<kEncoding, false>,
         grid, kKDequantiseThreads, 0, stream, w, shape, static_cast<int>(n), static_cast<int>(k),
         out, ld, is_wide);
}

}  // namespace sluice::cuda
