#pragma once
// K and V of a block's attention on their way into shared memory, as 16-bit rows: kTile positions
// at a time. Where each position lies is looked up once for both, a tile ahead (a page table's
// entry takes as long as memory itself). Plain rows are copied asynchronously to where they are
// used; codes of pages of whole blocks are copied as they lie and then decoded by words; of pages
// of other sizes, whose rows may begin at any two bytes, all is loaded and decoded at once. Only
// .cu files include it.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/kv_kind.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

/// Where the K of one position lies: its head's begin, of plain KV its row's.
struct alignas(16) RowPlace {
  const std::byte* at;
  int in_page;
};

template <KvKind kKind, int kDim>
class KvTiles {
 public:
  static constexpr bool kIsPlain = kKind == KvKind::kF16 || kKind == KvKind::kBF16;
  static constexpr int kWarps = attention_warps(kDim);
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kTile = 16 * kWarps;
  static constexpr int kStride = kDim + 8;  // 16 bytes more than a row: no bank is met twice
  static constexpr int kTileBytes = kTile * kStride * 2;
  static constexpr int kPlaceBytes = 2 * kTile * static_cast<int>(sizeof(RowPlace));
  /// Codes pass through shared memory: K's and V's at once, of heads of 256 in turn, which leave no
  /// room for both on every GPU.
  static constexpr bool kIsStaged = !kIsPlain;
  static constexpr int kParts = kDim <= 128 ? 2 : 1;
  static constexpr int kGroup = static_cast<int>(KvFormat::kGroup);
  static constexpr int kGroups = kDim / kGroup;
  // Of K (0) or V (1):
  template <int kIsValue>
  static constexpr bool kIsInt8 = (kIsValue == 0 ? kKeysOf<kKind>
                                                 : kValuesOf<kKind>) == KvKind::kInt8;
  template <int kIsValue>
  static constexpr int kCodes = kIsInt8<kIsValue> ? kDim : kDim / 2;  // bytes of a row, at most
  template <int kIsValue>
  static constexpr int kScalesAt = kTile* kCodes<kIsValue>;
  template <int kIsValue>
  static constexpr int kCodesBytes = kScalesAt<kIsValue> + kGroups * 2 * kTile * 2;  // as they lie
  static constexpr int kStagedBytes =
      kIsStaged ? kCodesBytes<0> + (kParts == 2 ? kCodesBytes<1> : 0) : 0;
  static_assert(kCodesBytes<0> >= kCodesBytes<1>);

  /// `places` [2][kTile], `staged` kStagedBytes of shared memory; positions before `end`.
  SLUICE_DEVICE KvTiles(const kernels::AttentionShape& shape, const AttentionArguments& arguments,
                        int64_t first_page, int end, int kv_head, RowPlace* places,
                        std::byte* staged)
      : shape_(shape),
        pages_(arguments.pages + first_page),
        end_(end),
        places_(places),
        staged_(staged),
        code_bytes_{code_bytes_of<kKeysOf<kKind>>(shape.head_dim),
                    code_bytes_of<kValuesOf<kKind>>(shape.head_dim)},
        value_bytes_(shape.page_tokens * (code_bytes_[0] + scale_bytes())),
        head_bytes_(arguments.page_offset +
                    int64_t{kv_head} * shape.page_tokens *
                        (code_bytes_[0] + code_bytes_[1] + 2 * scale_bytes())),
        has_blocks_(shape.page_tokens % static_cast<int>(KvFormat::kKeyBlock) == 0 &&
                    shape.head_dim % 4 == 0) {}

  /// Pages of whole blocks of positions, whose codes can be decoded by words.
  SLUICE_DEVICE bool has_blocks() const { return has_blocks_; }

  /// The place of this thread's position of the tile at `begin`: of the last where that is past it.
  SLUICE_DEVICE RowPlace find(int begin) const {
    if (thread_index() >= kTile) return {};
    const int position = begin + thread_index() < end_ ? begin + thread_index() : end_ - 1;
    const int page = position / shape_.page_tokens;
    const int in_page = position - page * shape_.page_tokens;
    return {pages_[page] + head_bytes_ + (kIsPlain ? in_page * code_bytes_[0] : 0), in_page};
  }
  /// For all threads to see, after a barrier.
  SLUICE_DEVICE void keep(int buffer, const RowPlace& place) {
    if (thread_index() < kTile) places_[buffer * kTile + thread_index()] = place;
  }

  /// K (0) or V (1) of the tile at `begin` to `to`; zeros past the end.
  template <int kIsValue>
  SLUICE_DEVICE void load(int begin, int buffer, uint16_t* to) const {
    const RowPlace* places = places_ + buffer * kTile;
    if constexpr (kIsPlain) {
      if (shape_.head_dim % 8 == 0)
        load_plain(kIsValue, begin, places, to);
      else
        load_elements(kIsValue, begin, places, to);
    } else {
      load_bytes<kIsValue>(begin, places, to);
    }
    copy_async_commit();
  }

  /// kParts of the tile at `begin` as they lie, from K (0) or V (1) on.
  template <int kFirst>
  SLUICE_DEVICE void stage(int begin, int buffer) const {
    stage_side<kFirst>(begin, buffer);
    if constexpr (kParts == 2) stage_side<1>(begin, buffer);
    copy_async_commit();
  }

  /// Of what stage<kFirst>() brought of the last tile, at `begin`: positions past the end come out
  /// as zeros. True where there are such in its last block; a barrier must follow then.
  template <int kFirst>
  SLUICE_DEVICE bool clear_end(int begin) const {
    const int rows = end_ - begin;
    if (rows >= kTile || rows % static_cast<int>(KvFormat::kKeyBlock) == 0) return false;
    clear_scales<kFirst>(rows);
    if constexpr (kParts == 2) clear_scales<1>(rows);
    return true;
  }

  /// What stage() brought, as rows.
  template <int kIsValue>
  SLUICE_DEVICE void decode(uint16_t* to) const {
    decode_blocks<kIsValue>(to);
  }

 private:
  SLUICE_DEVICE int scale_bytes() const {  // of a row
    return kIsPlain ? 0 : (shape_.head_dim + kGroup - 1) / kGroup * 4;
  }

  // Where K or V is staged: of heads of 256 one takes the other's place.
  template <int kIsValue>
  SLUICE_DEVICE std::byte* staged() const {
    return staged_ + (kIsValue && kParts == 2 ? kCodesBytes<0> : 0);
  }

  template <int kIsValue>
  SLUICE_DEVICE void stage_side(int begin, int buffer) const {
    constexpr int kBlock = static_cast<int>(KvFormat::kKeyBlock);
    constexpr int kBlocks = kTile / kBlock;
    constexpr int kPieces = kCodes<kIsValue> * kBlock / 16;           // of a block's codes
    constexpr int kAcross = kPieces < kThreads ? kPieces : kThreads;  // of them at a time
    static_assert(kThreads % kAcross == 0 && kPieces % kAcross == 0);
    const int code_bytes = code_bytes_[kIsValue];
    std::byte* const to = staged<kIsValue>();
    SLUICE_UNROLL
    for (int first = 0; first < kBlocks; first += kThreads / kAcross) {
      const int block = first + thread_index() / kAcross;
      const RowPlace& place = places_[buffer * kTile + block * kBlock];
      const bool is_valid = begin + block * kBlock < end_;
      const std::byte* from = place.at + kIsValue * value_bytes_ + first_of(place) * code_bytes;
      SLUICE_UNROLL
      for (int across = 0; across < kPieces; across += kAcross) {
        const int piece = across + thread_index() % kAcross;
        if (piece >= code_bytes) continue;
        copy_async16(to + block * kBlock * kCodes<kIsValue> + piece * 16, from + piece * 16,
                     is_valid);
      }
    }
    // Scales and minima of a group: 32 bytes of a block.
    constexpr int kLines = kGroups * 4;
    static_assert(kBlocks * kLines <= kThreads);
    const int block = thread_index() / kLines;
    const int line = thread_index() % kLines / 2;
    if (block < kBlocks && line / 2 * kGroup < shape_.head_dim) {
      const RowPlace& place = places_[buffer * kTile + block * kBlock];
      const int half = thread_index() % 2 * 16;
      copy_async16(to + kScalesAt<kIsValue> + (line * kTile + block * kBlock) * 2 + half,
                   place.at + kIsValue * value_bytes_ + shape_.page_tokens * code_bytes +
                       (line * shape_.page_tokens + first_of(place)) * 2 + half,
                   begin + block * kBlock < end_);
    }
  }

  // Of the last block of `rows` positions: those past its end.
  template <int kIsValue>
  SLUICE_DEVICE void clear_scales(int rows) const {
    constexpr int kBlock = static_cast<int>(KvFormat::kKeyBlock);
    auto* const scales = reinterpret_cast<uint16_t*>(staged<kIsValue>() + kScalesAt<kIsValue>);
    for (int i = thread_index(); i < kGroups * 2 * kBlock; i += kThreads) {
      const int row = rows / kBlock * kBlock + i % kBlock;
      if (row >= rows) scales[i / kBlock * kTile + row] = 0;
    }
  }

  // Of a block of positions; the last position stands for blocks past the end.
  SLUICE_DEVICE static int first_of(const RowPlace& place) {
    constexpr int kBlock = static_cast<int>(KvFormat::kKeyBlock);
    return place.in_page / kBlock * kBlock;
  }

  SLUICE_DEVICE void load_plain(int is_value, int begin, const RowPlace* places,
                                uint16_t* to) const {
    constexpr int kPieces = kDim / 8;
    constexpr int kRows = kThreads / kPieces;  // at once
    const int piece = thread_index() % kPieces;
    if (piece * 8 >= shape_.head_dim) return;
    SLUICE_UNROLL
    for (int first = 0; first < kTile; first += kRows) {
      const int row = first + thread_index() / kPieces;
      copy_async16(to + row * kStride + piece * 8,
                   places[row].at + is_value * value_bytes_ + piece * 16, begin + row < end_);
    }
  }

  SLUICE_DEVICE void load_elements(int is_value, int begin, const RowPlace* places,
                                   uint16_t* to) const {
    for (int row = warp_index(); row < kTile; row += kWarps) {
      const auto* from =
          reinterpret_cast<const uint16_t*>(places[row].at + is_value * value_bytes_);
      for (int d = lane_index(); d < shape_.head_dim; d += kWarp)
        to[row * kStride + d] = begin + row < end_ ? from[d] : uint16_t{0};
    }
  }

  // Scales (0) or minima (1) of a group of a head's K or V.
  template <int kIsValue>
  SLUICE_DEVICE const uint16_t* scales_of(const std::byte* head, int group, int is_minimum) const {
    return reinterpret_cast<const uint16_t*>(head + shape_.page_tokens * code_bytes_[kIsValue]) +
           (group * 2 + is_minimum) * shape_.page_tokens;
  }

  // 16 bytes are a word of each of four positions (K) or four bytes of four positions (V), which
  // become words. scale * code + minimum: exact integers in f16, one rounding.
  template <int kIsValue>
  SLUICE_DEVICE void decode_blocks(uint16_t* to) const {
    constexpr int kWords = kCodes<kIsValue> / 4;
    constexpr int kPasses = kTile / 4 * kWords / kThreads;
    SLUICE_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      int word, row;
      if constexpr (kThreads % (4 * kWords) == 0) {  // a pass is whole blocks of positions
        constexpr int kRows = kThreads * 4 / kWords;
        word = kIsValue ? thread_index() % kWords : thread_index() / 4 % kWords;
        row =
            pass * kRows + (kIsValue ? thread_index() / kWords * 4
                                     : thread_index() / (4 * kWords) * 16 + thread_index() % 4 * 4);
      } else {
        const int i = pass * kThreads + thread_index();
        word = kIsValue ? i % kWords : i / 4 % kWords;
        row = kIsValue ? i / kWords * 4 : i / (4 * kWords) * 16 + i % 4 * 4;
      }
      if (word * 4 >= (kIsInt8<kIsValue> ? shape_.head_dim : code_bytes_[kIsValue])) continue;
      decode_staged<kIsValue>(row, word, to);
    }
  }

  template <int kIsValue>
  SLUICE_DEVICE void decode_staged(int row, int word, uint16_t* to) const {
    constexpr int kElements = kIsInt8<kIsValue> ? 4 : 8;  // of a word
    const int group = word * kElements / kGroup;
    const std::byte* from = staged<kIsValue>();
    const auto* lines = reinterpret_cast<const uint16_t*>(from + kScalesAt<kIsValue>) + row;
    decode_four<kIsValue>(
        *reinterpret_cast<const Words4*>(
            from + row / 16 * 16 * kCodes<kIsValue> +
            (kIsValue ? row % 16 * code_bytes_[1] + word * 16 : word * 64 + row % 16 * 4)),
        *reinterpret_cast<const Words2*>(lines + group * 2 * kTile),
        *reinterpret_cast<const Words2*>(lines + (group * 2 + 1) * kTile), word,
        to + row * kStride);
  }

  // Codes of four positions to their rows.
  template <int kIsValue>
  SLUICE_DEVICE void decode_four(Words4 codes, const Words2& scales, const Words2& minima, int word,
                                 uint16_t* to) const {
    if constexpr (kIsValue) turn_bytes(codes);
    SLUICE_UNROLL
    for (int t = 0; t < 4; ++t) {
      const uint32_t both = t % 2 == 0 ? 0x1010u : 0x3232u;
      const uint32_t scale = byte_permute(scales.word[t / 2], 0, both);
      const uint32_t minimum = byte_permute(minima.word[t / 2], 0, both);
      uint16_t* out = to + t * kStride;
      if constexpr (kIsInt8<kIsValue>) {
        write_four<true>(codes.word[t], scale, minimum, out, word * 4);
      } else {
        const int element = word / 4 * 32 + word % 4 * 4;
        write_four<false>(codes.word[t] & 0x0f0f0f0fu, scale, minimum, out, element);
        write_four<false>((codes.word[t] >> 4) & 0x0f0f0f0fu, scale, minimum, out, element + 16);
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

  // Four codes, a byte each, to elements [d, d + 4) of a row, if it has them (kAll: it does).
  template <bool kAll>
  SLUICE_DEVICE void write_four(uint32_t codes, uint32_t scale, uint32_t minimum, uint16_t* row,
                                int d) const {
    const uint32_t low = dequantise(byte_permute(codes, 0x64646464u, 0x4140u), scale, minimum);
    const uint32_t high = dequantise(byte_permute(codes, 0x64646464u, 0x4342u), scale, minimum);
    if (kAll || d < shape_.head_dim) *reinterpret_cast<Words2*>(row + d) = {{low, high}};
  }

  // Two codes, each as f16 plus 1024.
  SLUICE_DEVICE static uint32_t dequantise(uint32_t raised, uint32_t scale, uint32_t minimum) {
    return fma_half2(sub_half2(raised, 0x64006400u), scale, minimum);
  }

  // Pages of any number of tokens, heads of any size, byte by byte.
  template <int kIsValue>
  SLUICE_DEVICE void load_bytes(int begin, const RowPlace* places, uint16_t* to) const {
    const int code_bytes = code_bytes_[kIsValue];
    for (int i = thread_index(); i < kTile * code_bytes; i += kThreads) {
      const int byte = i % code_bytes;
      const int row = i / code_bytes;
      const int low = kIsInt8<kIsValue> ? byte : byte / 16 * 32 + byte % 16;
      uint32_t pair = 0;  // of int4 elements low and low + 16
      if (begin + row < end_) {
        const std::byte* head = places[row].at + kIsValue * value_bytes_;
        const int in_page = places[row].in_page;
        const auto code = static_cast<uint32_t>(
            head[code_offset(kIsValue, code_bytes, shape_.page_tokens, in_page, byte)]);
        const int group = low / kGroup;
        const uint32_t raised = kIsInt8<kIsValue> ? code : (code & 15) | (code >> 4) << 16;
        pair = dequantise(raised | 0x64006400u,
                          scales_of<kIsValue>(head, group, 0)[in_page] * 0x00010001u,
                          scales_of<kIsValue>(head, group, 1)[in_page] * 0x00010001u);
      }
      uint16_t* out = to + row * kStride;
      if (low < shape_.head_dim) out[low] = static_cast<uint16_t>(pair);
      if (!kIsInt8<kIsValue> && low + 16 < shape_.head_dim)
        out[low + 16] = static_cast<uint16_t>(pair >> 16);
    }
  }

  const kernels::AttentionShape& shape_;
  const std::byte* const* pages_;
  int end_;
  RowPlace* places_;
  std::byte* staged_;
  int code_bytes_[2];   // of a row of K and of V
  int value_bytes_;     // from K of a head to V
  int64_t head_bytes_;  // from a page to the head
  bool has_blocks_;
};

}  // namespace sluice::cuda
