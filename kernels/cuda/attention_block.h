#pragma once
// The attention of one block: tiles of K and V go through shared memory (kv_tiles.h), each warp
// multiplies 16 packed rows with 16 positions at a time and keeps an online softmax
// (arXiv:1805.02867, arXiv:2205.14135). With a whole tile of rows every warp has rows of its own
// and sees all positions; with few rows all warps have the same and each sees every n-th 16
// positions, merged at the end. Only .cu files include it.
#include "kernels/cuda/attention_numbers.h"
#include "kernels/cuda/kv_tiles.h"

namespace sluice::cuda {

/// kAdjusts: scores are capped or get slopes. Apart, since what a score costs is in the hot loop.
template <KvKind kKind, int kDim, bool kHasFewRows, bool kAdjusts>
class AttentionBlock {
 public:
  using Tiles = KvTiles<kKind, kDim>;
  static constexpr int kWarps = Tiles::kWarps;
  static constexpr int kThreads = Tiles::kThreads;
  static constexpr int kTile = Tiles::kTile;
  static constexpr int kStride = Tiles::kStride;
  static constexpr int kRows = kHasFewRows ? kFewRows : kTile;  // of the block
  // Queries stay in registers, but of heads of 256 they are too many.
  static constexpr bool kKeepsQueries = kDim <= 128;
  // Else they have shared memory to themselves, before what codes are copied to.
  static constexpr int kQueryBytes = kKeepsQueries ? 0 : kRows * kStride * 2;
  static constexpr int kStagedAt = 2 * Tiles::kTileBytes + kQueryBytes;
  static constexpr int kPlacesAt = kStagedAt + Tiles::kStagedBytes;
  static constexpr int kSumsAt = kPlacesAt + Tiles::kPlaceBytes;

  struct Budget {
    static constexpr int kSharedBytes = kSumsAt + kWarps * kFewRows * 2 * 4;
    // K and V of a tile, or their codes and scales.
    static constexpr int kTurnBytes =
        (Tiles::kIsPlain ? 2 * kTile * kDim * 2
                         : Tiles::template kCodesBytes<0> + Tiles::template kCodesBytes<1>) /
        kWarps;
    static constexpr int kAheadBytes = Tiles::kIsPlain ? kTurnBytes : Tiles::kStagedBytes / kWarps;
    // Codes are decoded beside what a tile of rows keeps in registers.
    static constexpr int kPlannedBlocks =
        most_attention_blocks(kDim) - (kHasFewRows || !Tiles::kIsStaged ? 0 : 1);
  };

  SLUICE_DEVICE AttentionBlock(const kernels::AttentionShape& shape,
                               const AttentionArguments& arguments, const AttentionItem& item,
                               int kv_head)
      : shape_(shape),
        arguments_(arguments),
        item_(item),
        run_(arguments.runs[item.run]),
        group_(shape.num_heads / shape.num_kv_heads),
        rows_(run_.count * group_),
        kv_head_(kv_head),
        k_(reinterpret_cast<uint16_t*>(shared_memory())),
        v_(k_ + kTile * kStride),
        q_(kKeepsQueries ? k_ : v_ + kTile * kStride),
        sums_(reinterpret_cast<float*>(shared_memory() + kSumsAt)),
        tiles_(shape, arguments, run_.first_page, item.end, kv_head,
               reinterpret_cast<RowPlace*>(shared_memory() + kPlacesAt),
               shared_memory() + kStagedAt),
        first_self_(position_of(warp_row())),
        last_self_(position_of(warp_row() + 15)),
        self_{position_of(warp_row() + lane_index() / 4),
              position_of(warp_row() + lane_index() / 4 + 8)} {
    if constexpr (kAdjusts) {
      inverse_cap_ = shape_.soft_cap > 0 ? 1.0f / shape_.soft_cap : 0.0f;
      if (!shape_.slopes) return;
      for (int half = 0; half < 2; ++half) {
        const int row = item_.first_row + warp_row() + lane_index() / 4 + half * 8;
        slopes_[half] = shape_.slopes[kv_head_ * group_ + row % group_];
      }
    }
  }

  SLUICE_DEVICE void run() {
    load_queries();
    tiles_.keep(0, tiles_.find(item_.begin));
    block_sync();
    if constexpr (kKeepsQueries) {
      SLUICE_UNROLL
      for (int d = 0; d < kDim; d += 16) read_query(d, queries_[d / 16]);
      block_sync();  // K comes where they were
    }
    if (shape_.head_dim < kDim) clear_padding();
    if constexpr (Tiles::kIsStaged) {
      if (tiles_.has_blocks()) {
        if constexpr (Tiles::kParts == 2)
          run_staged();
        else
          run_in_turn();
        return finish();
      }
    }
    run_loaded();
    finish();
  }

 private:
  using Numbers = AttentionNumbers<kKind == KvKind::kBF16>;
  // Of 16 positions each, that a warp multiplies of a tile.
  static constexpr int kParts = kHasFewRows ? 1 : kWarps;

  // V comes while K is used, and the next K while V is.
  SLUICE_DEVICE void run_loaded() {
    tiles_.template load<0>(item_.begin, 0, k_);
    int buffer = 0;
    for (int begin = item_.begin; begin < item_.end; begin += kTile) {
      const bool is_last = begin + kTile >= item_.end;
      copy_async_wait<0>();
      block_sync();  // K is there, and V of the tile before has been used
      tiles_.template load<1>(begin, buffer, v_);
      RowPlace next{};
      if (!is_last) next = tiles_.find(begin + kTile);
      score(begin);
      buffer ^= 1;
      if (!is_last) tiles_.keep(buffer, next);
      block_sync();  // K has been used
      if (!is_last) {
        tiles_.template load<0>(begin + kTile, buffer, k_);
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      block_sync();
      add_values(begin);
    }
  }

  // Codes of the next tile come while the rows of this one are used.
  SLUICE_DEVICE void run_staged() {
    tiles_.template stage<0>(item_.begin, 0);
    int buffer = 0;
    for (int begin = item_.begin; begin < item_.end; begin += kTile) {
      const bool is_last = begin + kTile >= item_.end;
      copy_async_wait<0>();
      block_sync();  // the codes are there, and the rows of the tile before have been used
      RowPlace next{};
      if (!is_last) next = tiles_.find(begin + kTile);
      if (tiles_.template clear_end<0>(begin)) block_sync();
      tiles_.template decode<0>(k_);
      tiles_.template decode<1>(v_);
      buffer ^= 1;
      if (!is_last) tiles_.keep(buffer, next);
      block_sync();
      if (!is_last) tiles_.template stage<0>(begin + kTile, buffer);
      score(begin);
      add_values(begin);
    }
  }

  // Codes of V come while the rows of K are used, and those of the next K while V's are.
  SLUICE_DEVICE void run_in_turn() {
    tiles_.template stage<0>(item_.begin, 0);
    int buffer = 0;
    for (int begin = item_.begin; begin < item_.end; begin += kTile) {
      const bool is_last = begin + kTile >= item_.end;
      RowPlace next{};
      if (!is_last) next = tiles_.find(begin + kTile);
      decode_part<0>(begin, k_);
      tiles_.template stage<1>(begin, buffer);
      score(begin);
      buffer ^= 1;
      if (!is_last) tiles_.keep(buffer, next);
      decode_part<1>(begin, v_);
      if (!is_last) tiles_.template stage<0>(begin + kTile, buffer);
      add_values(begin);
    }
  }

  template <int kIsValue>
  SLUICE_DEVICE void decode_part(int begin, uint16_t* to) {
    copy_async_wait<0>();
    block_sync();  // the codes are there, and the rows of the tile before have been used
    if (tiles_.template clear_end<kIsValue>(begin)) block_sync();
    tiles_.template decode<kIsValue>(to);
    block_sync();
  }

  // The 16 packed rows of this warp within the block.
  SLUICE_DEVICE static int warp_row() { return kHasFewRows ? 0 : warp_index() * 16; }
  // Which 16 positions of a tile a part is.
  SLUICE_DEVICE static int place_of(int part) { return kHasFewRows ? warp_index() : part; }
  SLUICE_DEVICE int position_of(int row) const {
    return run_.first_position + (item_.first_row + row) / group_;
  }

  // A packed row of the block; null past the last.
  SLUICE_DEVICE const float* query_of(int row) const {
    const int packed = item_.first_row + row;
    if (packed >= rows_) return nullptr;
    const int token = packed / group_;
    return arguments_.q + (run_.row_begin + token) * arguments_.q_stride +
           (int64_t{kv_head_} * group_ + packed - token * group_) * shape_.head_dim;
  }

  SLUICE_DEVICE void load_queries() {
    for (int row = warp_index(); row < kRows; row += kWarps) {
      const float* query = query_of(row);
      if constexpr (kKind == KvKind::kInt4) {
        SLUICE_UNROLL
        for (int d = 0; d < kDim; d += static_cast<int>(KvFormat::kGroup))
          load_rounded(query, row, d + lane_index());
      } else {
        SLUICE_UNROLL
        for (int d = lane_index(); d < kDim; d += kWarp)
          q_[row * kStride + d] = Numbers::narrow(query && d < shape_.head_dim ? query[d] : 0.0f);
      }
    }
  }

  // As kernels/attention.h rounds a group of them beside int4 keys: two elements a lane.
  SLUICE_DEVICE void load_rounded(const float* query, int row, int d) {
    float value[2] = {0, 0};
    for (int part = 0; part < 2; ++part)
      if (query && d + part * kWarp < shape_.head_dim) value[part] = query[d + part * kWarp];
    const float low = value[0] < 0 ? -value[0] : value[0];
    const float high = value[1] < 0 ? -value[1] : value[1];
    const float largest = warp_max(low > high ? low : high);
    const float inverse = kernels::kQueryLevels / largest;
    const float step = largest / kernels::kQueryLevels;
    for (int part = 0; part < 2; ++part) {
      if (largest > kernels::kLeastQuery) value[part] = round_of(value[part] * inverse) * step;
      q_[row * kStride + d + part * kWarp] = Numbers::narrow(value[part]);
    }
  }

  // Columns [d, d + 16) of the warp's queries as the left operand of a product.
  SLUICE_DEVICE void read_query(int d, uint32_t (&a)[4]) const {
    load_matrix_x4(a, q_ + (warp_row() + lane_index() % 16) * kStride + d + lane_index() / 16 * 8);
  }

  SLUICE_DEVICE void clear_padding() {
    const int padding = kDim - shape_.head_dim;
    for (int i = thread_index(); i < kTile * padding; i += kThreads) {
      const int at = i / padding * kStride + shape_.head_dim + i % padding;
      k_[at] = 0;
      v_[at] = 0;
    }
  }

  SLUICE_DEVICE bool sees(int half, int position) const {
    return position <= self_[half] && position < item_.end &&
           (shape_.sliding_window == 0 || position > self_[half] - shape_.sliding_window);
  }

  // Any of the warp's rows sees any of the 16 positions; the same for all lanes.
  SLUICE_DEVICE bool part_matters(int begin, int part) const {
    const int first = begin + place_of(part) * 16;
    return first < item_.end && first <= last_self_;
  }

  // All of the warp's rows see all positions of its parts of the tile; the same for all lanes.
  SLUICE_DEVICE bool sees_all(int begin) const {
    const int first = begin + place_of(0) * 16;
    const int end = begin + place_of(kParts - 1) * 16 + 16;
    return end - 1 <= first_self_ && end <= item_.end &&
           (shape_.sliding_window == 0 || first > last_self_ - shape_.sliding_window);
  }

  // A product with a query of this lane's row lane / 4 + half * 8 as AttentionShape wants it.
  SLUICE_DEVICE float adjusted(float product, int half, int position) const {
    float score = product * shape_.scale;
    if (inverse_cap_ > 0) score = shape_.soft_cap * tanh_of(score * inverse_cap_);
    return score + slopes_[half] * static_cast<float>(position - self_[half]);
  }

  // Scores of this warp's parts become weights; the running maximum, sums and outputs follow.
  SLUICE_DEVICE void score(int begin) {
    float scores[kParts][2][4];
    SLUICE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      SLUICE_UNROLL
      for (int i = 0; i < 8; ++i) scores[part][i / 4][i % 4] = 0;
      if (!part_matters(begin, part)) continue;
      const uint16_t* keys =
          k_ + (place_of(part) * 16 + lane_index() % 8 + lane_index() / 16 * 8) * kStride +
          lane_index() / 8 % 2 * 8;
      SLUICE_UNROLL
      for (int d = 0; d < kDim; d += 16) {
        uint32_t b[4];
        load_matrix_x4(b, keys + d);
        if constexpr (kKeepsQueries) {
          Numbers::multiply(scores[part][0], queries_[d / 16], {b[0], b[1]});
          Numbers::multiply(scores[part][1], queries_[d / 16], {b[2], b[3]});
        } else {
          uint32_t a[4];
          read_query(d, a);
          Numbers::multiply(scores[part][0], a, {b[0], b[1]});
          Numbers::multiply(scores[part][1], a, {b[2], b[3]});
        }
      }
    }
    const float scale = kAdjusts ? kLog2E : shape_.scale * kLog2E;
    const bool has_mask = !sees_all(begin);
    SLUICE_UNROLL
    for (int part = 0; part < kParts; ++part) SLUICE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float& value = scores[part][i / 4][i % 4];
      const int position = begin + place_of(part) * 16 + i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
      if constexpr (kAdjusts) value = adjusted(value, i / 2 % 2, position);
      value *= scale;
      if (has_mask && !sees(i / 2 % 2, position)) value = kNoScore;
    }
    weigh(scores);
  }

  // Of each lane's two rows, lane / 4 and that + 8.
  SLUICE_DEVICE void weigh(float (&scores)[kParts][2][4]) {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float largest = kNoScore;
      SLUICE_UNROLL
      for (int part = 0; part < kParts; ++part) SLUICE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float value = scores[part][i / 2][half * 2 + i % 2];
        largest = value > largest ? value : largest;
      }
      for (int mask = 1; mask < 4; mask *= 2) {
        const float other = shuffle_xor(largest, mask);
        largest = other > largest ? other : largest;
      }
      const float before = maximum_[half];
      const float now = largest > before ? largest : before;
      const float fade = exp2_approx(before - now);
      maximum_[half] = now;
      float sum = 0;
      SLUICE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        SLUICE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& value = scores[part][i / 2][half * 2 + i % 2];
          value = value == kNoScore ? 0.0f : exp2_approx(value - now);
          sum += value;
        }
        SLUICE_UNROLL
        for (int i = 0; i < 2; ++i)
          weights_[part][half + i * 2] =
              Numbers::narrow_pair(scores[part][i][half * 2], scores[part][i][half * 2 + 1]);
      }
      sum_[half] = sum_[half] * fade + sum;
      SLUICE_UNROLL
      for (int tile = 0; tile < kDim / 8; ++tile) {
        out_[tile][half * 2] *= fade;
        out_[tile][half * 2 + 1] *= fade;
      }
    }
  }

  SLUICE_DEVICE void add_values(int begin) {
    SLUICE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      if (!part_matters(begin, part)) continue;
      SLUICE_UNROLL
      for (int d = 0; d < kDim; d += 16) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, v_ + (place_of(part) * 16 + lane_index() % 16) * kStride + d +
                                         lane_index() / 16 * 8);
        Numbers::multiply(out_[d / 8], weights_[part], {b[0], b[1]});
        Numbers::multiply(out_[d / 8 + 1], weights_[part], {b[2], b[3]});
      }
    }
  }

  SLUICE_DEVICE void finish() {
    for (int half = 0; half < 2; ++half)
      for (int mask = 1; mask < 4; mask *= 2) sum_[half] += shuffle_xor(sum_[half], mask);
    if constexpr (kHasFewRows)
      merge_warps();
    else
      write_rows();
  }

  SLUICE_DEVICE float* out_row(int packed) const {
    return arguments_.out + (run_.row_begin + packed / group_) * arguments_.out_stride +
           (int64_t{kv_head_} * group_ + packed % group_) * shape_.head_dim;
  }

  SLUICE_DEVICE float factor_of(int packed, float maximum, float sum) const {
    const float* sinks = shape_.sinks;
    return sum_factor(sinks ? sinks + kv_head_ * group_ + packed % group_ : nullptr, maximum, sum);
  }

  SLUICE_DEVICE void write_rows() {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int packed = item_.first_row + warp_row() + lane_index() / 4 + half * 8;
      if (packed >= rows_) continue;
      float* out = out_row(packed);
      const float factor = factor_of(packed, maximum_[half], sum_[half]);
      SLUICE_UNROLL
      for (int tile = 0; tile < kDim / 8; ++tile) SLUICE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int d = tile * 8 + lane_index() % 4 * 2 + i;
        if (d < shape_.head_dim) out[d] = out_[tile][half * 2 + i] * factor;
      }
    }
  }

  // All warps have the same rows, each its share of the context: through shared memory.
  SLUICE_DEVICE void merge_warps() {
    auto* shares = reinterpret_cast<float*>(k_);  // [kWarps][kFewRows][kDim]
    block_sync();
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = warp_index() * kFewRows + lane_index() / 4 + half * 8;
      SLUICE_UNROLL
      for (int tile = 0; tile < kDim / 8; ++tile) SLUICE_UNROLL
      for (int i = 0; i < 2; ++i)
        shares[row * kDim + tile * 8 + lane_index() % 4 * 2 + i] = out_[tile][half * 2 + i];
      if (lane_index() % 4 == 0) {
        sums_[row * 2] = maximum_[half];
        sums_[row * 2 + 1] = sum_[half];
      }
    }
    block_sync();
    for (int i = thread_index(); i < rows_ * shape_.head_dim; i += kThreads) {
      const int row = i / shape_.head_dim;
      const int d = i % shape_.head_dim;
      float maximum = kNoScore;
      for (int warp = 0; warp < kWarps; ++warp) {
        const float theirs = sums_[(warp * kFewRows + row) * 2];
        maximum = theirs > maximum ? theirs : maximum;
      }
      float sum = 0, value = 0;
      for (int warp = 0; warp < kWarps; ++warp) {
        const int at = warp * kFewRows + row;
        const float factor = exp2_approx(sums_[at * 2] - maximum);
        sum += sums_[at * 2 + 1] * factor;
        value += shares[at * kDim + d] * factor;
      }
      if (item_.split < 0) {
        out_row(row)[d] = value * factor_of(row, maximum, sum);
        continue;
      }
      float* share = arguments_.workspace +
                     ((int64_t{item_.split} * shape_.num_kv_heads + kv_head_) * kFewRows + row) *
                         (shape_.head_dim + 1);
      share[d] = value * sum_factor(nullptr, maximum, sum);
      if (d == 0) share[shape_.head_dim] = sum > 0 ? maximum + log2_of(sum) : kNoScore;
    }
  }

  const kernels::AttentionShape& shape_;
  const AttentionArguments& arguments_;
  AttentionItem item_;
  AttentionRun run_;
  int group_;
  int rows_;  // packed rows of the run
  int kv_head_;
  uint16_t* k_;  // [kTile][kStride]
  uint16_t* v_;  // likewise
  uint16_t* q_;  // [kRows][kStride]; where they are kept in registers, K's memory
  float* sums_;  // [kWarps][kFewRows][2]: maximum and sum
  Tiles tiles_;
  int first_self_;            // positions of the warp's rows: the first,
  int last_self_;             // the last,
  int self_[2];               // and this lane's
  float slopes_[2] = {0, 0};  // of this lane's rows
  float inverse_cap_ = 0;     // 0: scores have none
  uint32_t queries_[kKeepsQueries ? kDim / 16 : 1][4] = {};
  float out_[kDim / 8][4] = {};
  float maximum_[2] = {kNoScore, kNoScore};
  float sum_[2] = {0, 0};
  uint32_t weights_[kParts][4] = {};  // as the left operand of the product with V
};

}  // namespace sluice::cuda
