// Attention of all query heads to one latent row a position, which is key and value at once: rows
// come into shared memory once for both. A row is too wide for a warp to keep its outputs: the
// warps of a block share the scores of kLatentRows packed rows (two have the same rows, each half
// of the positions), and then each has a quarter of the output's columns for all of them.
#include "kernels/cuda/attention_numbers.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/latent_attention.h"

namespace sluice::cuda {

namespace {
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = kLatentRows;
constexpr int kTile = kLatentTile;
static_assert(kRows == 32 && kTile == 32, "a warp has 16 rows and 16 positions of scores");

template <bool kIsBF16, int kDim, bool kAdjusts>
class LatentBlock {
 public:
  static constexpr int kStride = kDim + 8;  // 16 bytes more than a row: no bank is met twice
  static constexpr int kWeightStride = kTile + 8;
  static constexpr int kColumns = kDim / kWarps;  // of the output, a warp's
  static_assert(kColumns % 16 == 0);

  struct Budget {
    static constexpr int kSharedBytes = static_cast<int>(latent_shared_bytes(kDim));
    static constexpr int kTurnBytes = kTile * kDim * 2 / kWarps;
    static constexpr int kAheadBytes = kTurnBytes;
    static constexpr int kPlannedBlocks = kMostLatentBlocks;
  };

  SLUICE_DEVICE LatentBlock(const kernels::AttentionShape& shape,
                            const AttentionArguments& arguments, const AttentionItem& item)
      : shape_(shape),
        arguments_(arguments),
        item_(item),
        run_(arguments.runs[item.run]),
        group_(shape.num_heads),
        rows_(run_.count * group_),
        q_(reinterpret_cast<uint16_t*>(shared_memory())),
        k_(q_ + kRows * kStride),
        weights_(k_ + kTile * kStride),
        maxima_(reinterpret_cast<float*>(weights_ + kRows * kWeightStride)),
        sums_(maxima_ + 2 * kRows),
        places_(reinterpret_cast<const std::byte**>(sums_ + 2 * kRows)) {
    if constexpr (kAdjusts) inverse_cap_ = shape_.soft_cap > 0 ? 1.0f / shape_.soft_cap : 0.0f;
  }

  SLUICE_DEVICE void run() {
    load_queries();
    for (int begin = item_.begin; begin < item_.end; begin += kTile) {
      load(begin);
      float scores[2][4];
      score(begin, scores);
      weigh(scores);
      add_values();
    }
    finish();
  }

 private:
  using Numbers = AttentionNumbers<kIsBF16>;

  // Of this warp's scores.
  SLUICE_DEVICE static int first_row() { return warp_index() / 2 * 16; }
  SLUICE_DEVICE static int first_position() { return warp_index() % 2 * 16; }
  // The rows that a lane's values are of: of scores the two of its warp (half 0, 1), of outputs all
  // four.
  SLUICE_DEVICE static int row_of(int i) { return lane_index() / 4 + i * 8; }
  SLUICE_DEVICE int position_of(int row) const {
    return run_.first_position + (item_.first_row + row) / group_;
  }

  SLUICE_DEVICE void load_queries() {
    for (int row = warp_index(); row < kRows; row += kWarps) {
      const int packed = item_.first_row + row;
      const float* query = nullptr;
      if (packed < rows_)
        query = arguments_.q + (run_.row_begin + packed / group_) * arguments_.q_stride +
                int64_t{packed % group_} * shape_.head_dim;
      for (int d = lane_index(); d < kDim; d += kWarp)
        q_[row * kStride + d] = Numbers::narrow(query && d < shape_.head_dim ? query[d] : 0.0f);
    }
    const int padding = kDim - shape_.head_dim;
    for (int i = thread_index(); i < kTile * padding; i += kThreads)
      k_[i / padding * kStride + shape_.head_dim + i % padding] = 0;
  }

  // Rows of the positions from `begin` on; zeros past the end.
  SLUICE_DEVICE void load(int begin) {
    if (thread_index() < kTile) {
      const int at = begin + thread_index();
      const int position = at < item_.end ? at : item_.end - 1;
      const int page = position / shape_.page_tokens;
      places_[thread_index()] = arguments_.pages[run_.first_page + page] + arguments_.page_offset +
                                int64_t{position - page * shape_.page_tokens} * shape_.head_dim * 2;
    }
    block_sync();  // places are there, and the tile before has been used
    if (shape_.head_dim % 8 == 0) {
      const int pieces = shape_.head_dim / 8;
      for (int i = thread_index(); i < kTile * pieces; i += kThreads) {
        const int row = i / pieces, piece = i % pieces;
        copy_async16(k_ + row * kStride + piece * 8, places_[row] + piece * 16,
                     begin + row < item_.end);
      }
      copy_async_commit();
      copy_async_wait<0>();
    } else {
      for (int row = warp_index(); row < kTile; row += kWarps) {
        const auto* from = reinterpret_cast<const uint16_t*>(places_[row]);
        for (int d = lane_index(); d < shape_.head_dim; d += kWarp)
          k_[row * kStride + d] = begin + row < item_.end ? from[d] : uint16_t{0};
      }
    }
    block_sync();
  }

  SLUICE_DEVICE float adjusted(float product, int row, int position) const {
    float value = product * shape_.scale;
    if (inverse_cap_ > 0) value = shape_.soft_cap * tanh_of(value * inverse_cap_);
    if (!shape_.slopes) return value;
    const float slope = shape_.slopes[(item_.first_row + row) % group_];
    return value + slope * static_cast<float>(position - position_of(row));
  }

  // 16 rows with 16 positions, in powers of two.
  SLUICE_DEVICE void score(int begin, float (&scores)[2][4]) const {
    SLUICE_UNROLL
    for (int i = 0; i < 8; ++i) scores[i / 4][i % 4] = 0;
    const uint16_t* queries =
        q_ + (first_row() + lane_index() % 16) * kStride + lane_index() / 16 * 8;
    const uint16_t* keys = k_ +
                           (first_position() + lane_index() % 8 + lane_index() / 16 * 8) * kStride +
                           lane_index() / 8 % 2 * 8;
    SLUICE_UNROLL
    for (int d = 0; d < kDim; d += 16) {
      uint32_t a[4], b[4];
      load_matrix_x4(a, queries + d);
      load_matrix_x4(b, keys + d);
      Numbers::multiply(scores[0], a, {b[0], b[1]});
      Numbers::multiply(scores[1], a, {b[2], b[3]});
    }
    const float scale = kAdjusts ? kLog2E : shape_.scale * kLog2E;
    SLUICE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float& value = scores[i / 4][i % 4];
      const int row = first_row() + row_of(i / 2 % 2);
      const int position = begin + first_position() + i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
      if constexpr (kAdjusts) value = adjusted(value, row, position);
      const int self = position_of(row);
      const bool is_seen = position <= self && position < item_.end &&
                           (shape_.sliding_window == 0 || position > self - shape_.sliding_window);
      value = is_seen ? value * scale : kNoScore;
    }
  }

  // Scores become weights in shared memory; maxima, sums and outputs follow.
  SLUICE_DEVICE void weigh(const float (&scores)[2][4]) {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float largest = kNoScore;
      SLUICE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float value = scores[i / 2][half * 2 + i % 2];
        largest = value > largest ? value : largest;
      }
      for (int mask = 1; mask < 4; mask *= 2) {
        const float other = shuffle_xor(largest, mask);
        largest = other > largest ? other : largest;
      }
      if (lane_index() % 4 == 0)
        maxima_[warp_index() % 2 * kRows + first_row() + row_of(half)] = largest;
    }
    block_sync();
    float fades[4];
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float one = maxima_[row_of(i)], other = maxima_[kRows + row_of(i)];
      float now = one > other ? one : other;
      now = now > maximum_[i] ? now : maximum_[i];
      fades[i] = exp2_approx(maximum_[i] - now);
      maximum_[i] = now;
    }
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      // This warp's rows are outputs 0 and 1, or 2 and 3.
      const float now = warp_index() < 2 ? maximum_[half] : maximum_[2 + half];
      const float fade = warp_index() < 2 ? fades[half] : fades[2 + half];
      float sum = 0;
      SLUICE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float pair[2];
        SLUICE_UNROLL
        for (int j = 0; j < 2; ++j) {
          const float value = scores[i][half * 2 + j];
          pair[j] = value == kNoScore ? 0.0f : exp2_approx(value - now);
          sum += pair[j];
        }
        *reinterpret_cast<uint32_t*>(weights_ + (first_row() + row_of(half)) * kWeightStride +
                                     first_position() + i * 8 + lane_index() % 4 * 2) =
            Numbers::narrow_pair(pair[0], pair[1]);
      }
      sum_[half] = sum_[half] * fade + sum;
    }
    SLUICE_UNROLL
    for (int row = 0; row < 2; ++row) SLUICE_UNROLL
    for (int tile = 0; tile < kColumns / 8; ++tile) SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) out_[row][tile][i] *= fades[row * 2 + i / 2];
    block_sync();
  }

  SLUICE_DEVICE void add_values() {
    const int first_column = warp_index() * kColumns;
    SLUICE_UNROLL
    for (int part = 0; part < kTile; part += 16) {
      uint32_t a[2][4];
      SLUICE_UNROLL
      for (int row = 0; row < 2; ++row)
        load_matrix_x4(a[row], weights_ + (row * 16 + lane_index() % 16) * kWeightStride + part +
                                   lane_index() / 16 * 8);
      SLUICE_UNROLL
      for (int d = 0; d < kColumns; d += 16) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, k_ + (part + lane_index() % 16) * kStride + first_column + d +
                                         lane_index() / 16 * 8);
        SLUICE_UNROLL
        for (int row = 0; row < 2; ++row) {
          Numbers::multiply(out_[row][d / 8], a[row], {b[0], b[1]});
          Numbers::multiply(out_[row][d / 8 + 1], a[row], {b[2], b[3]});
        }
      }
    }
  }

  SLUICE_DEVICE void finish() {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      for (int mask = 1; mask < 4; mask *= 2) sum_[half] += shuffle_xor(sum_[half], mask);
      if (lane_index() % 4 == 0)
        sums_[warp_index() % 2 * kRows + first_row() + row_of(half)] = sum_[half];
    }
    block_sync();
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int packed = item_.first_row + row_of(i);
      if (packed >= rows_) continue;
      const float sum = sums_[row_of(i)] + sums_[kRows + row_of(i)];
      const float factor = sum_factor(nullptr, maximum_[i], sum);
      float* out = item_.split < 0
                       ? arguments_.out +
                             (run_.row_begin + packed / group_) * arguments_.out_stride +
                             int64_t{packed % group_} * shape_.head_dim
                       : arguments_.workspace +
                             (int64_t{item_.split} * group_ + packed) * (shape_.head_dim + 1);
      SLUICE_UNROLL
      for (int tile = 0; tile < kColumns / 8; ++tile) SLUICE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int d = warp_index() * kColumns + tile * 8 + lane_index() % 4 * 2 + j;
        if (d < shape_.head_dim) out[d] = out_[i / 2][tile][i % 2 * 2 + j] * factor;
      }
      if (item_.split >= 0 && warp_index() == 0 && lane_index() % 4 == 0)
        out[shape_.head_dim] = sum > 0 ? maximum_[i] + log2_of(sum) : kNoScore;
    }
  }

  const kernels::AttentionShape& shape_;
  const AttentionArguments& arguments_;
  AttentionItem item_;
  AttentionRun run_;
  int group_;
  int rows_;                  // packed rows of the run
  uint16_t* q_;               // [kRows][kStride]
  uint16_t* k_;               // [kTile][kStride]
  uint16_t* weights_;         // [kRows][kWeightStride]
  float* maxima_;             // [half of the positions][kRows]
  float* sums_;               // likewise
  const std::byte** places_;  // [kTile]
  float inverse_cap_ = 0;     // 0: scores have none
  float out_[2][kColumns / 8][4] = {};
  float maximum_[4] = {kNoScore, kNoScore, kNoScore, kNoScore};
  float sum_[2] = {0, 0};
};

template <bool kIsBF16, int kDim, bool kAdjusts>
SLUICE_KERNEL_OF_BLOCKS(kThreads, kMostLatentBlocks)
latent_attention_kernel(kernels::AttentionShape shape, AttentionArguments arguments) {
  using Block = LatentBlock<kIsBF16, kDim, kAdjusts>;
  state_budget<typename Block::Budget>();
  const AttentionItem item = arguments.items[block_x()];
  if (item.run < 0) return;
  Block block(shape, arguments, item);
  block.run();
}

template <bool kIsBF16, int kDim>
void run_items(const kernels::AttentionShape& shape, const AttentionPlan& plan,
               const AttentionArguments& arguments, Stream stream) {
  const auto run = [&](auto kernel) {
    launch("latent_attention", kernel, {static_cast<int>(plan.items.size())}, kThreads,
           LatentBlock<kIsBF16, kDim, false>::Budget::kSharedBytes, stream, shape, arguments);
  };
  if (shape.soft_cap > 0 || shape.slopes)
    run(latent_attention_kernel<kIsBF16, kDim, true>);
  else
    run(latent_attention_kernel<kIsBF16, kDim, false>);
}
}  // namespace

void latent_attention(const kernels::AttentionShape& shape, const AttentionPlan& plan,
                      const AttentionArguments& arguments, Stream stream) {
  const auto with_dim = [&](auto is_bf16) {
    switch (padded_latent_dim(shape.head_dim)) {
      case 128: return run_items<is_bf16.value, 128>(shape, plan, arguments, stream);
      case 320: return run_items<is_bf16.value, 320>(shape, plan, arguments, stream);
      default: return run_items<is_bf16.value, kMostLatentDim>(shape, plan, arguments, stream);
    }
  };
  if (plan.items.empty()) return;
  if (shape.kv_dtype == KvFormat(DType::kBF16))
    with_dim(Constant<true>());
  else
    with_dim(Constant<false>());
}

}  // namespace sluice::cuda
