#pragma once
// The attention of one block: tiles of K and V go through shared memory, each warp multiplies 16
// packed rows with 16 positions at a time and keeps an online softmax (arXiv:1805.02867,
// arXiv:2205.14135). With a whole tile of rows every warp has rows of its own and sees all
// positions; with few rows all warps have the same and each sees every n-th 16 positions, merged at
// the end. Only .cu files include it.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/kv_kind.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

template <KvKind kKind, int kDim>
class AttentionBlock {
 public:
  static constexpr int kWarps = attention_warps(kDim);
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kTile = 16 * kWarps;
  static constexpr int kStride = kDim + 8;  // 16 bytes more than a row: no bank is met twice
  static constexpr int kTileBytes = kTile * kStride * 2;

  static constexpr int64_t shared_bytes(int32_t rows) {
    return 2 * kTileBytes + int64_t{rows} * kStride * 2 + kWarps * kFewRows * 2 * 4;
  }

  SLUICE_DEVICE AttentionBlock(const kernels::AttentionShape& shape,
                               const AttentionArguments& arguments, const AttentionItem& item,
                               int kv_head, bool has_few_rows)
      : shape_(shape),
        arguments_(arguments),
        item_(item),
        run_(arguments.runs[item.run]),
        group_(shape.num_heads / shape.num_kv_heads),
        rows_(run_.count * group_),
        kv_head_(kv_head),
        has_few_rows_(has_few_rows),
        k_(reinterpret_cast<uint16_t*>(shared_memory())),
        v_(k_ + kTile * kStride),
        q_(v_ + kTile * kStride),
        sums_(reinterpret_cast<float*>(q_ + (has_few_rows ? kFewRows : kTile) * kStride)) {}

  SLUICE_DEVICE void run() {
    load_queries();
    if (shape_.head_dim < kDim) clear_padding();
    load_tile(0, item_.begin, k_);
    for (int begin = item_.begin; begin < item_.end; begin += kTile) {
      copy_async_wait<0>();
      block_sync();  // K is there, and V of the tile before has been used
      load_tile(1, begin, v_);
      score(begin);
      block_sync();  // K has been used
      if (begin + kTile < item_.end) load_tile(0, begin + kTile, k_);
      wait_for_values(begin);
      block_sync();
      add_values(begin);
    }
    finish();
  }

 private:
  static constexpr bool kIsPlain = kKind == KvKind::kF16 || kKind == KvKind::kBF16;
  static constexpr bool kIsBF16 = kKind == KvKind::kBF16;
  static constexpr int kParts = kWarps;  // 16 positions each

  SLUICE_DEVICE static uint16_t narrow(float value) {
    return kIsBF16 ? float_to_bf16(value) : float_to_half(value);
  }
  SLUICE_DEVICE static uint32_t narrow_pair(float low, float high) {
    return kIsBF16 ? pair_of_bf16(low, high) : pair_of_half(low, high);
  }
  SLUICE_DEVICE static void multiply(float (&d)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[2]) {
    if (kIsBF16)
      mma_16x8x16_bf16(d, a, b);
    else
      mma_16x8x16_f16(d, a, b);
  }

  SLUICE_DEVICE int block_rows() const { return has_few_rows_ ? kFewRows : kTile; }
  // The 16 packed rows of this warp within the block.
  SLUICE_DEVICE int warp_row() const { return has_few_rows_ ? 0 : warp_index() * 16; }
  SLUICE_DEVICE bool has_part(int part) const { return !has_few_rows_ || part == warp_index(); }
  SLUICE_DEVICE int position_of(int row) const {
    return run_.first_position + (item_.first_row + row) / group_;
  }

  // Element d of a packed row of the block, 0 past the last.
  SLUICE_DEVICE float query(int row, int d) const {
    const int packed = item_.first_row + row;
    if (packed >= rows_ || d >= shape_.head_dim) return 0;
    return arguments_.q[(run_.row_begin + packed / group_) * arguments_.q_stride +
                        (int64_t{kv_head_} * group_ + packed % group_) * shape_.head_dim + d];
  }

  SLUICE_DEVICE void load_queries() {
    if constexpr (kKind == KvKind::kInt4) {
      load_rounded_queries();
    } else {
      for (int i = thread_index(); i < block_rows() * kDim; i += kThreads)
        q_[i / kDim * kStride + i % kDim] = narrow(query(i / kDim, i % kDim));
    }
  }

  // As kernels/attention.h rounds them beside int4 keys: a warp a group, two elements a lane.
  SLUICE_DEVICE void load_rounded_queries() {
    constexpr int kGroup = static_cast<int>(KvFormat::kGroup);
    constexpr int kGroups = kDim / kGroup;
    for (int i = warp_index(); i < block_rows() * kGroups; i += kWarps) {
      const int row = i / kGroups;
      const int d = i % kGroups * kGroup + lane_index();
      float value[2] = {query(row, d), query(row, d + kWarp)};
      const float low = value[0] < 0 ? -value[0] : value[0];
      const float high = value[1] < 0 ? -value[1] : value[1];
      const float largest = warp_max(low > high ? low : high);
      const float inverse = kernels::kQueryLevels / largest;
      const float step = largest / kernels::kQueryLevels;
      for (int part = 0; part < 2; ++part) {
        if (largest > kernels::kLeastQuery) value[part] = round_of(value[part] * inverse) * step;
        q_[row * kStride + d + part * kWarp] = narrow(value[part]);
      }
    }
  }

  SLUICE_DEVICE void clear_padding() {
    const int padding = kDim - shape_.head_dim;
    for (int i = thread_index(); i < kTile * padding; i += kThreads) {
      const int at = i / padding * kStride + shape_.head_dim + i % padding;
      k_[at] = 0;
      v_[at] = 0;
    }
  }

  SLUICE_DEVICE const std::byte* head_of(int is_value, int position) const {
    constexpr int kGroup = static_cast<int>(KvFormat::kGroup);
    const int groups = kIsPlain ? 0 : (shape_.head_dim + kGroup - 1) / kGroup;
    // 32 bits hold the offset within a page, and take fewer registers.
    return arguments_.pages[run_.first_page + position / shape_.page_tokens] +
           arguments_.page_offset +
           (kv_head_ * 2 + is_value) * shape_.page_tokens * (code_bytes() + groups * 4);
  }
  SLUICE_DEVICE int code_bytes() const { return code_bytes_of<kKind>(shape_.head_dim); }

  // K (0) or V (1) of kTile positions from `begin` on into shared memory; zeros past the end.
  SLUICE_DEVICE void load_tile(int is_value, int begin, uint16_t* to) {
    if (kIsPlain)
      load_plain(is_value, begin, to);
    else
      load_codes(is_value, begin, to);
    copy_async_commit();
  }

  SLUICE_DEVICE void load_plain(int is_value, int begin, uint16_t* to) {
    if (shape_.head_dim % 8 != 0) return load_elements(is_value, begin, to);
    const int pieces = shape_.head_dim / 8;
    for (int i = thread_index(); i < kTile * pieces; i += kThreads) {
      const int row = i / pieces;
      const int piece = i % pieces;
      const int position = begin + row;
      const bool is_valid = position < item_.end;
      const int last = is_valid ? position : item_.end - 1;  // zeros come from no address
      const std::byte* from =
          head_of(is_value, last) + int64_t{last % shape_.page_tokens} * code_bytes() + piece * 16;
      copy_async16(to + row * kStride + piece * 8, from, is_valid);
    }
  }

  SLUICE_DEVICE void load_elements(int is_value, int begin, uint16_t* to) {
    for (int i = thread_index(); i < kTile * shape_.head_dim; i += kThreads) {
      const int row = i / shape_.head_dim;
      const int position = begin + row;
      uint16_t bits = 0;
      if (position < item_.end)
        bits = reinterpret_cast<const uint16_t*>(head_of(is_value, position) +
                                                 position % shape_.page_tokens *
                                                     code_bytes())[i % shape_.head_dim];
      to[row * kStride + i % shape_.head_dim] = bits;
    }
  }

  // scale * code + minimum: exact integers in f16, one rounding.
  SLUICE_DEVICE void load_codes(int is_value, int begin, uint16_t* to) {
    if (shape_.page_tokens % static_cast<int>(KvFormat::kKeyBlock) == 0)
      load_blocks(is_value, begin, to);
    else
      load_bytes(is_value, begin, to);
  }

  // Scales (0) or minima (1) of a group of a head.
  SLUICE_DEVICE const uint16_t* scales_of(const std::byte* head, int group, int is_minimum) const {
    return reinterpret_cast<const uint16_t*>(head + int64_t{shape_.page_tokens} * code_bytes()) +
           (int64_t{group} * 2 + is_minimum) * shape_.page_tokens;
  }

  // Pages of whole blocks: 16 bytes are a word of each of four positions (K) or four bytes of four
  // positions (V), which become words.
  SLUICE_DEVICE void load_blocks(int is_value, int begin, uint16_t* to) {
    constexpr int kElements = kKind == KvKind::kInt8 ? 4 : 8;  // of a word
    const int words = code_bytes() / 4;
    for (int i = thread_index(); i < kTile / 4 * words; i += kThreads) {
      const int word = is_value ? i % words : i / 4 % words;
      const int row = is_value ? i / words * 4 : i / (4 * words) * 16 + i % 4 * 4;
      const int position = begin + row;
      Words4 codes{};
      uint32_t scale[4] = {}, minimum[4] = {};
      if (position < item_.end) {
        const int in_page = position % shape_.page_tokens;
        const std::byte* head = head_of(is_value, position);
        codes = *reinterpret_cast<const Words4*>(
            head + code_offset(is_value, code_bytes(), shape_.page_tokens, in_page, word * 4));
        if (is_value) turn_bytes(codes);
        const int group = word * kElements / static_cast<int>(KvFormat::kGroup);
        const uint16_t* scales = scales_of(head, group, 0) + in_page;
        const uint16_t* minima = scales_of(head, group, 1) + in_page;
        for (int t = 0; t < 4 && position + t < item_.end; ++t) {
          scale[t] = scales[t] * 0x00010001u;
          minimum[t] = minima[t] * 0x00010001u;
        }
      }
      SLUICE_UNROLL
      for (int t = 0; t < 4; ++t) {
        uint16_t* out = to + (row + t) * kStride;
        if (kKind == KvKind::kInt8) {
          write_four(codes.word[t], scale[t], minimum[t], out, word * 4);
        } else {
          const int element = word / 4 * 32 + word % 4 * 4;
          write_four(codes.word[t] & 0x0f0f0f0fu, scale[t], minimum[t], out, element);
          write_four((codes.word[t] >> 4) & 0x0f0f0f0fu, scale[t], minimum[t], out, element + 16);
        }
      }
    }
  }

  // Byte t of each word becomes word t.
  SLUICE_DEVICE static void turn_bytes(Words4& words) {
    const uint32_t low_ab = byte_permute(words.word[0], words.word[1], 0x5140u);
    const uint32_t high_ab = byte_permute(words.word[0], words.word[1], 0x7362u);
    const uint32_t low_cd = byte_permute(words.word[2], words.word[3], 0x5140u);
    const uint32_t high_cd = byte_permute(words.word[2], words.word[3], 0x7362u);
    words = {{byte_permute(low_ab, low_cd, 0x5410u), byte_permute(low_ab, low_cd, 0x7632u),
              byte_permute(high_ab, high_cd, 0x5410u), byte_permute(high_ab, high_cd, 0x7632u)}};
  }

  // Four codes, a byte each, to elements [d, d + 4) of a row.
  SLUICE_DEVICE void write_four(uint32_t codes, uint32_t scale, uint32_t minimum, uint16_t* row,
                                int d) const {
    for (int half = 0; half < 2; ++half, d += 2) {
      const uint32_t raised = byte_permute(codes, 0x64646464u, half == 0 ? 0x4140u : 0x4342u);
      const uint32_t pair = dequantise(raised, scale, minimum);
      if (d + 1 < shape_.head_dim)
        *reinterpret_cast<uint32_t*>(row + d) = pair;
      else if (d < shape_.head_dim)
        row[d] = static_cast<uint16_t>(pair);
    }
  }

  // Two codes, each as f16 plus 1024.
  SLUICE_DEVICE static uint32_t dequantise(uint32_t raised, uint32_t scale, uint32_t minimum) {
    return fma_half2(sub_half2(raised, 0x64006400u), scale, minimum);
  }

  // Pages of any number of tokens, byte by byte.
  SLUICE_DEVICE void load_bytes(int is_value, int begin, uint16_t* to) {
    for (int i = thread_index(); i < kTile * code_bytes(); i += kThreads) {
      const int byte = i % code_bytes();
      const int position = begin + i / code_bytes();
      const int low = kKind == KvKind::kInt8 ? byte : byte / 16 * 32 + byte % 16;
      uint32_t pair = 0;  // of int4 elements low and low + 16
      if (position < item_.end) {
        const int in_page = position % shape_.page_tokens;
        const std::byte* head = head_of(is_value, position);
        const auto code = static_cast<uint32_t>(
            head[code_offset(is_value, code_bytes(), shape_.page_tokens, in_page, byte)]);
        const int group = low / static_cast<int>(KvFormat::kGroup);
        const uint32_t raised = kKind == KvKind::kInt8 ? code : (code & 15) | (code >> 4) << 16;
        pair = dequantise(raised | 0x64006400u, scales_of(head, group, 0)[in_page] * 0x00010001u,
                          scales_of(head, group, 1)[in_page] * 0x00010001u);
      }
      uint16_t* out = to + i / code_bytes() * kStride;
      if (low < shape_.head_dim) out[low] = static_cast<uint16_t>(pair);
      if (kKind == KvKind::kInt4 && low + 16 < shape_.head_dim)
        out[low + 16] = static_cast<uint16_t>(pair >> 16);
    }
  }

  // V must have arrived; K of the next tile may still be under way.
  SLUICE_DEVICE void wait_for_values(int begin) {
    if (begin + kTile < item_.end)
      copy_async_wait<1>();
    else
      copy_async_wait<0>();
  }

  SLUICE_DEVICE bool sees(int row, int position) const {
    const int self = position_of(row);
    return position <= self && position < item_.end &&
           (shape_.sliding_window == 0 || position > self - shape_.sliding_window);
  }

  // Any of the warp's rows sees any of the 16 positions; the same for all lanes.
  SLUICE_DEVICE bool part_matters(int begin, int part) const {
    const int first = begin + part * 16;
    return has_part(part) && first < item_.end && first <= position_of(warp_row() + 15);
  }

  // Scores of this warp's parts become weights; the running maximum, sums and outputs follow.
  SLUICE_DEVICE void score(int begin) {
    float scores[kParts][2][4];
    SLUICE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      SLUICE_UNROLL
      for (int i = 0; i < 8; ++i) scores[part][i / 4][i % 4] = 0;
      if (!part_matters(begin, part)) continue;
      SLUICE_UNROLL
      for (int d = 0; d < kDim; d += 16) {
        uint32_t a[4], b[4];
        load_matrix_x4(a,
                       q_ + (warp_row() + lane_index() % 16) * kStride + d + lane_index() / 16 * 8);
        load_matrix_x4(b, k_ + (part * 16 + lane_index() % 8 + lane_index() / 16 * 8) * kStride +
                              d + lane_index() / 8 % 2 * 8);
        multiply(scores[part][0], a, {b[0], b[1]});
        multiply(scores[part][1], a, {b[2], b[3]});
      }
    }
    weigh(begin, scores);
  }

  // Of each lane's two rows, lane / 4 and that + 8.
  SLUICE_DEVICE void weigh(int begin, float (&scores)[kParts][2][4]) {
    constexpr float kLog2E = 1.4426950408889634f;
    const float scale = shape_.scale * kLog2E;
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row() + lane_index() / 4 + half * 8;
      float largest = kNone;
      SLUICE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        if (!has_part(part)) continue;
        SLUICE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int position = begin + part * 16 + i / 2 * 8 + lane_index() % 4 * 2 + i % 2;
          float& value = scores[part][i / 2][half * 2 + i % 2];
          value = sees(row, position) ? value * scale : kNone;
          largest = value > largest ? value : largest;
        }
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
        if (!has_part(part)) continue;
        SLUICE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& value = scores[part][i / 2][half * 2 + i % 2];
          value = value == kNone ? 0.0f : exp2_approx(value - now);
          sum += value;
        }
        SLUICE_UNROLL
        for (int i = 0; i < 2; ++i)
          weights_[part][half + i * 2] =
              narrow_pair(scores[part][i][half * 2], scores[part][i][half * 2 + 1]);
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
        load_matrix_x4_transposed(
            b, v_ + (part * 16 + lane_index() % 16) * kStride + d + lane_index() / 16 * 8);
        multiply(out_[d / 8], weights_[part], {b[0], b[1]});
        multiply(out_[d / 8 + 1], weights_[part], {b[2], b[3]});
      }
    }
  }

  SLUICE_DEVICE void finish() {
    for (int half = 0; half < 2; ++half)
      for (int mask = 1; mask < 4; mask *= 2) sum_[half] += shuffle_xor(sum_[half], mask);
    if (has_few_rows_)
      merge_warps();
    else
      write_rows();
  }

  SLUICE_DEVICE float* out_row(int packed) const {
    return arguments_.out + (run_.row_begin + packed / group_) * arguments_.out_stride +
           (int64_t{kv_head_} * group_ + packed % group_) * shape_.head_dim;
  }

  SLUICE_DEVICE void write_rows() {
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int packed = item_.first_row + warp_row() + lane_index() / 4 + half * 8;
      if (packed >= rows_) continue;
      float* out = out_row(packed);
      const float factor = 1.0f / sum_[half];
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
      float maximum = kNone;
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
      value = sum > 0 ? value / sum : 0.0f;
      if (item_.split < 0) {
        out_row(row)[d] = value;
        continue;
      }
      float* share = arguments_.workspace +
                     ((int64_t{item_.split} * shape_.num_kv_heads + kv_head_) * kFewRows + row) *
                         (shape_.head_dim + 1);
      share[d] = value;
      if (d == 0) share[shape_.head_dim] = sum > 0 ? maximum + log2_of(sum) : kNone;
    }
  }

  static constexpr float kNone = -1e30f;  // the score of a position that is not seen

  const kernels::AttentionShape& shape_;
  const AttentionArguments& arguments_;
  AttentionItem item_;
  AttentionRun run_;
  int group_;
  int rows_;  // packed rows of the run
  int kv_head_;
  bool has_few_rows_;
  uint16_t* k_;  // [kTile][kStride]
  uint16_t* v_;  // likewise
  uint16_t* q_;  // [block_rows()][kStride]
  float* sums_;  // [kWarps][kFewRows][2]: maximum and sum
  float out_[kDim / 8][4] = {};
  float maximum_[2] = {kNone, kNone};
  float sum_[2] = {0, 0};
  uint32_t weights_[kParts][4] = {};  // as the left operand of the product with V
};

}  // namespace sluice::cuda
