// Attention of heads that are too wide for a warp to keep its outputs (Gemma 4's full layers have
// 512 columns). The warps of a block have the same packed rows: each has the scores of eight
// positions of a tile, and then a quarter of the output's columns for all of its positions. K and V
// take turns in one tile's memory, so that a Turing has room for a block.
#include "kernels/cuda/attention_numbers.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/wide_attention.h"

namespace sluice::cuda {

namespace {
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = kFewRows;
constexpr int kTile = kWideTile;
static_assert(kRows == 16 && kTile == 8 * kWarps, "a warp has 16 rows and 8 positions of scores");

template <bool kIsBF16, bool kAdjusts>
class WideBlock {
 public:
  static constexpr int kDim = kWideDim;
  static constexpr int kStride = kDim + 8;  // 16 bytes more than a row: no bank is met twice
  static constexpr int kWeightStride = kTile + 8;
  static constexpr int kColumns = kDim / kWarps;  // of the output, a warp's

  struct Budget {
    static constexpr int kSharedBytes = static_cast<int>(kWideSharedBytes);
    static constexpr int kTurnBytes = 2 * kTile * kDim * 2 / kWarps;  // K and V
    static constexpr int kAheadBytes = kTurnBytes / 2;
    static constexpr int kPlannedBlocks = kMostWideBlocks;
  };

  SLUICE_DEVICE WideBlock(const kernels::AttentionShape& shape, const AttentionArguments& arguments,
                          const AttentionItem& item, int kv_head)
      : shape_(shape),
        arguments_(arguments),
        item_(item),
        run_(arguments.runs[item.run]),
        group_(shape.num_heads / shape.num_kv_heads),
        rows_(run_.count * group_),
        kv_head_(kv_head),
        value_bytes_(shape.page_tokens * shape.head_dim * 2),
        q_(reinterpret_cast<uint16_t*>(shared_memory())),
        kv_(q_ + kRows * kStride),
        weights_(kv_ + kTile * kStride),
        maxima_(reinterpret_cast<float*>(weights_ + kRows * kWeightStride)),
        sums_(maxima_ + kWarps * kRows),
        places_(reinterpret_cast<const std::byte**>(sums_ + kWarps * kRows)),
        self_{position_of(row_of(0)), position_of(row_of(1))} {
    if constexpr (kAdjusts) inverse_cap_ = shape_.soft_cap > 0 ? 1.0f / shape_.soft_cap : 0.0f;
  }

  SLUICE_DEVICE void run() {
    load_queries();
    for (int begin = item_.begin; begin < item_.end; begin += kTile) {
      find(begin);
      block_sync();  // places are there, and V of the tile before has been used
      load(0, begin);
      copy_async_wait<0>();
      block_sync();
      float scores[4];
      score(begin, scores);
      keep_maxima(scores);
      block_sync();  // K has been used
      load(1, begin);
      weigh(scores);
      copy_async_wait<0>();
      block_sync();  // weights and V are there
      add_values();
    }
    finish();
  }

 private:
  using Numbers = AttentionNumbers<kIsBF16>;

  // The two rows that a lane's values are of.
  SLUICE_DEVICE static int row_of(int half) { return lane_index() / 4 + half * 8; }
  SLUICE_DEVICE int position_of(int row) const {
    return run_.first_position + (item_.first_row + row) / group_;
  }
  SLUICE_DEVICE int head_of(int packed) const { return kv_head_ * group_ + packed % group_; }

  SLUICE_DEVICE void load_queries() {
    for (int row = warp_index(); row < kRows; row += kWarps) {
      const int packed = item_.first_row + row;
      const float* query = nullptr;
      if (packed < rows_)
        query = arguments_.q + (run_.row_begin + packed / group_) * arguments_.q_stride +
                int64_t{head_of(packed)} * shape_.head_dim;
      for (int d = lane_index(); d < kDim; d += kWarp)
        q_[row * kStride + d] = Numbers::narrow(query && d < shape_.head_dim ? query[d] : 0.0f);
    }
    const int padding = kDim - shape_.head_dim;
    for (int i = thread_index(); i < kTile * padding; i += kThreads)
      kv_[i / padding * kStride + shape_.head_dim + i % padding] = 0;
  }

  // Where K of each position from `begin` on lies: of the last, where that is past it.
  SLUICE_DEVICE void find(int begin) {
    if (thread_index() >= kTile) return;
    const int at = begin + thread_index();
    const int position = at < item_.end ? at : item_.end - 1;
    const int page = position / shape_.page_tokens;
    places_[thread_index()] = arguments_.pages[run_.first_page + page] + arguments_.page_offset +
                              int64_t{kv_head_} * 2 * value_bytes_ +
                              (position - page * shape_.page_tokens) * shape_.head_dim * 2;
  }

  // K (0) or V (1) of the tile; zeros past the end.
  SLUICE_DEVICE void load(int is_value, int begin) {
    if (shape_.head_dim % 8 == 0) {
      const int pieces = shape_.head_dim / 8;
      for (int i = thread_index(); i < kTile * pieces; i += kThreads) {
        const int row = i / pieces, piece = i % pieces;
        copy_async16(kv_ + row * kStride + piece * 8,
                     places_[row] + is_value * value_bytes_ + piece * 16, begin + row < item_.end);
      }
    } else {
      for (int row = warp_index(); row < kTile; row += kWarps) {
        const auto* from =
            reinterpret_cast<const uint16_t*>(places_[row] + is_value * value_bytes_);
        for (int d = lane_index(); d < shape_.head_dim; d += kWarp)
          kv_[row * kStride + d] = begin + row < item_.end ? from[d] : uint16_t{0};
      }
    }
    copy_async_commit();
  }

  SLUICE_DEVICE float adjusted(float product, int half, int position) const {
    float value = product * shape_.scale;
    if (inverse_cap_ > 0) value = shape_.soft_cap * tanh_of(value * inverse_cap_);
    if (!shape_.slopes) return value;
    return value + shape_.slopes[head_of(item_.first_row + row_of(half))] *
                       static_cast<float>(position - self_[half]);
  }

  // Of 16 rows with the warp's eight positions, in powers of two.
  SLUICE_DEVICE void score(int begin, float (&scores)[4]) const {
    SLUICE_UNROLL
    for (float& value : scores) value = 0;
    const uint16_t* queries = q_ + lane_index() % 16 * kStride + lane_index() / 16 * 8;
    const uint16_t* keys =
        kv_ + (warp_index() * 8 + lane_index() % 8) * kStride + lane_index() / 8 * 8;
    SLUICE_UNROLL
    for (int d = 0; d < kDim; d += 32) {
      uint32_t a[2][4], b[4];
      load_matrix_x4(a[0], queries + d);
      load_matrix_x4(a[1], queries + d + 16);
      load_matrix_x4(b, keys + d);
      Numbers::multiply(scores, a[0], {b[0], b[1]});
      Numbers::multiply(scores, a[1], {b[2], b[3]});
    }
    const float scale = kAdjusts ? kLog2E : shape_.scale * kLog2E;
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int position = begin + warp_index() * 8 + lane_index() % 4 * 2 + i % 2;
      const int self = self_[i / 2];
      if constexpr (kAdjusts) scores[i] = adjusted(scores[i], i / 2, position);
      const bool is_seen = position <= self && position < item_.end &&
                           (shape_.sliding_window == 0 || position > self - shape_.sliding_window);
      scores[i] = is_seen ? scores[i] * scale : kNoScore;
    }
  }

  // The largest of this warp's scores of each row, for all warps.
  SLUICE_DEVICE void keep_maxima(const float (&scores)[4]) {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float largest =
          scores[half * 2] > scores[half * 2 + 1] ? scores[half * 2] : scores[half * 2 + 1];
      for (int mask = 1; mask < 4; mask *= 2) {
        const float other = shuffle_xor(largest, mask);
        largest = other > largest ? other : largest;
      }
      if (lane_index() % 4 == 0) maxima_[warp_index() * kRows + row_of(half)] = largest;
    }
  }

  // Scores become weights in shared memory; maxima, sums and outputs follow.
  SLUICE_DEVICE void weigh(const float (&scores)[4]) {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float now = maximum_[half];
      SLUICE_UNROLL
      for (int warp = 0; warp < kWarps; ++warp) {
        const float largest = maxima_[warp * kRows + row_of(half)];
        now = largest > now ? largest : now;
      }
      const float fade = exp2_approx(maximum_[half] - now);
      maximum_[half] = now;
      float pair[2];
      SLUICE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float value = scores[half * 2 + i];
        pair[i] = value == kNoScore ? 0.0f : exp2_approx(value - now);
      }
      sum_[half] = sum_[half] * fade + pair[0] + pair[1];
      *reinterpret_cast<uint32_t*>(weights_ + row_of(half) * kWeightStride + warp_index() * 8 +
                                   lane_index() % 4 * 2) = Numbers::narrow_pair(pair[0], pair[1]);
      SLUICE_UNROLL
      for (int tile = 0; tile < kColumns / 8; ++tile) {
        out_[tile][half * 2] *= fade;
        out_[tile][half * 2 + 1] *= fade;
      }
    }
  }

  SLUICE_DEVICE void add_values() {
    SLUICE_UNROLL
    for (int part = 0; part < kTile; part += 16) {
      uint32_t a[4];
      load_matrix_x4(a,
                     weights_ + lane_index() % 16 * kWeightStride + part + lane_index() / 16 * 8);
      const uint16_t* values = kv_ + (part + lane_index() % 16) * kStride +
                               warp_index() * kColumns + lane_index() / 16 * 8;
      SLUICE_UNROLL
      for (int d = 0; d < kColumns; d += 16) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, values + d);
        Numbers::multiply(out_[d / 8], a, {b[0], b[1]});
        Numbers::multiply(out_[d / 8 + 1], a, {b[2], b[3]});
      }
    }
  }

  SLUICE_DEVICE void finish() {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      for (int mask = 1; mask < 4; mask *= 2) sum_[half] += shuffle_xor(sum_[half], mask);
      if (lane_index() % 4 == 0) sums_[warp_index() * kRows + row_of(half)] = sum_[half];
    }
    block_sync();
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int packed = item_.first_row + row_of(half);
      if (packed >= rows_) continue;
      float sum = 0;
      SLUICE_UNROLL
      for (int warp = 0; warp < kWarps; ++warp) sum += sums_[warp * kRows + row_of(half)];
      const bool is_split = item_.split >= 0;
      const bool has_sink = shape_.sinks && !is_split;
      const float factor =
          sum_factor(has_sink ? shape_.sinks + head_of(packed) : nullptr, maximum_[half], sum);
      float* out =
          is_split
              ? arguments_.workspace +
                    ((int64_t{item_.split} * shape_.num_kv_heads + kv_head_) * kRows + packed) *
                        (shape_.head_dim + 1)
              : arguments_.out + (run_.row_begin + packed / group_) * arguments_.out_stride +
                    int64_t{head_of(packed)} * shape_.head_dim;
      SLUICE_UNROLL
      for (int tile = 0; tile < kColumns / 8; ++tile) SLUICE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int d = warp_index() * kColumns + tile * 8 + lane_index() % 4 * 2 + i;
        if (d < shape_.head_dim) out[d] = out_[tile][half * 2 + i] * factor;
      }
      if (is_split && warp_index() == 0 && lane_index() % 4 == 0)
        out[shape_.head_dim] = sum > 0 ? maximum_[half] + log2_of(sum) : kNoScore;
    }
  }

  const kernels::AttentionShape& shape_;
  const AttentionArguments& arguments_;
  AttentionItem item_;
  AttentionRun run_;
  int group_;
  int rows_;  // packed rows of the run
  int kv_head_;
  int value_bytes_;           // from a page's K of a head to its V
  uint16_t* q_;               // [kRows][kStride]
  uint16_t* kv_;              // [kTile][kStride]
  uint16_t* weights_;         // [kRows][kWeightStride]
  float* maxima_;             // [kWarps][kRows]
  float* sums_;               // likewise
  const std::byte** places_;  // [kTile]
  int self_[2];               // positions of this lane's rows
  float inverse_cap_ = 0;     // 0: scores have none
  float out_[kColumns / 8][4] = {};
  float maximum_[2] = {kNoScore, kNoScore};
  float sum_[2] = {0, 0};
};

template <bool kIsBF16, bool kAdjusts>
SLUICE_KERNEL_OF_BLOCKS(kThreads, kMostWideBlocks)
wide_attention_kernel(kernels::AttentionShape shape, AttentionArguments arguments) {
  using Block = WideBlock<kIsBF16, kAdjusts>;
  state_budget<typename Block::Budget>();
  const AttentionItem item = arguments.items[block_x()];
  if (item.run < 0) return;
  Block block(shape, arguments, item, block_y());
  block.run();
}
}  // namespace

void wide_attention(const kernels::AttentionShape& shape, const AttentionPlan& plan,
                    const AttentionArguments& arguments, Stream stream) {
  if (plan.items.empty()) return;
  const bool adjusts = shape.soft_cap > 0 || shape.slopes;
  const bool is_bf16 = shape.kv_dtype == KvFormat(DType::kBF16);
  const auto kernel =
      is_bf16
          ? (adjusts ? wide_attention_kernel<true, true> : wide_attention_kernel<true, false>)
          : (adjusts ? wide_attention_kernel<false, true> : wide_attention_kernel<false, false>);
  launch("wide_attention", kernel, {static_cast<int>(plan.items.size()), shape.num_kv_heads},
         kThreads, kWideSharedBytes, stream, shape, arguments);
}

}  // namespace sluice::cuda
