#pragma once
// The codes and scales of a warp's panel on their way through shared memory: chunks of columns,
// copied asynchronously, so that many bytes are under way and no register holds them. A chunk is
// runs of columns that end in one scale each; where a group is longer than a run, its scale is
// copied for each. Places are 32-bit and shifts: a panel has less than 2^31 bytes. Only .cu files
// include it.
#include "kernels/cuda/quantised_codes.h"
#include "kernels/cuda/quantised_linear_launch.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

/// kRun: columns that are summed before they are scaled, 32 or 64, which divide every group; 0:
/// the whole row, whose scale is not copied.
template <Encoding kEncoding, int kChunk, int kRun>
class PanelStream {
 public:
  static constexpr int kColumnBytes = 64 / kColumnsOfWord<kEncoding>;
  static constexpr int kScaleBytes = kScaleBytesOf<kEncoding>;
  static constexpr int kRunColumns = kRun > 0 ? kRun : kChunk;
  static constexpr int kRuns = kChunk / kRunColumns;
  static constexpr int kRunCodeBytes = kRunColumns * kColumnBytes;
  static constexpr int kRunBytes = kRunCodeBytes + (kRun > 0 ? kScaleBytes : 0);
  static constexpr int kChunkBytes = kRuns * kRunBytes;

  /// Of the panel at `panel`, columns before `end`.
  SLUICE_DEVICE PanelStream(const std::byte* panel, const PanelShape& shape, int end)
      : panel_(panel),
        group_shift_(shape.group_shift),
        group_bytes_(static_cast<int>(shape.group_bytes)),
        end_(end) {
    SLUICE_UNROLL
    for (int i = 0; i < kCopies; ++i)
      codes_[i] = codes_of(run_of(i) * kRunColumns) + (i * kWarp + lane_index()) % kPieces * 16;
    scales_ =
        scales_of(lane_index() / kScalePieces * kRunColumns) + lane_index() % kScalePieces * 16;
  }

  /// The chunk at column `begin`, a multiple of kChunk, to `to`, zeros past the end: by a warp,
  /// where it `is_wanted`. No branch: the copies of a block's warps are issued one behind the
  /// other.
  SLUICE_DEVICE void copy(int begin, std::byte* to, bool is_wanted) const {
    // Whole chunks are whole groups or lie in one: places within a chunk are the same in each.
    const int codes = codes_of(begin);
    SLUICE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      const bool is_valid = begin + run_of(i) * kRunColumns < end_;
      copy_async16_if(is_wanted,
                      to + run_of(i) * kRunBytes + (i * kWarp + lane_index()) % kPieces * 16,
                      panel_ + static_cast<uint32_t>(is_valid ? codes + codes_[i] : 0), is_valid);
    }
    if constexpr (kRun > 0) {
      const int run = lane_index() / kScalePieces;
      const bool is_valid = begin + run * kRunColumns < end_;
      const int from = (begin >> group_shift_) * group_bytes_ + scales_;
      copy_async16_if(is_wanted && run < kRuns,
                      to + run * kRunBytes + kRunCodeBytes + lane_index() % kScalePieces * 16,
                      panel_ + static_cast<uint32_t>(is_valid ? from : 0), is_valid);
    }
  }

  /// Words of rows 2 g and 2 g + 1, g = lane / 4, of the lane's line of four that begin at `line`.
  SLUICE_DEVICE static Words2 codes(const std::byte* run, int line) {
    return *reinterpret_cast<const Words2*>(run + line * 64 + lane_index() % 4 * 64 +
                                            lane_index() / 4 * 8);
  }
  /// The same rows' scales, as f32; of int4 a word of scales and one of zeros, as f16.
  SLUICE_DEVICE static Words2 scales(const std::byte* at) {
    const int pair = lane_index() / 4;
    if (kEncoding == Encoding::kMxfp4) {
      const uint32_t bytes = reinterpret_cast<const uint16_t*>(at)[pair];
      return {{e8m0_bits(bytes & 255u), e8m0_bits(bytes >> 8)}};
    }
    if (!kHasInt4Codes<kEncoding>) return reinterpret_cast<const Words2*>(at)[pair];
    const auto* words = reinterpret_cast<const uint32_t*>(at);
    if (kEncoding == Encoding::kQ4_0) return {{words[pair], 0x48004800u}};  // 8
    return {{words[pair], words[8 + pair]}};
  }

 private:
  static constexpr int kPieces = kRunCodeBytes / 16;
  static constexpr int kScalePieces = kScaleBytes / 16;
  static constexpr int kCopies = kRuns * kPieces / kWarp;

  SLUICE_DEVICE static int run_of(int copy) { return (copy * kWarp + lane_index()) / kPieces; }
  // Byte of the panel where the codes of a column lie: those of 16 rows, and scales of the groups
  // before.
  SLUICE_DEVICE int codes_of(int col) const {
    return col * kColumnBytes + (col >> group_shift_) * kScaleBytes;
  }
  SLUICE_DEVICE int scales_of(int col) const {
    return ((col >> group_shift_) + 1) * group_bytes_ - kScaleBytes;
  }

  const std::byte* panel_;
  int group_shift_;
  int group_bytes_;
  int end_;
  int codes_[kCopies];  // what this lane copies, in a chunk
  int scales_;
};

/// Bytes from the begin of a ring to one of its places, walked one by one.
template <int kPlaces, int kPlaceBytes>
struct Ring {
  int at = 0;

  SLUICE_DEVICE int before() const { return (at == 0 ? kPlaces * kPlaceBytes : at) - kPlaceBytes; }
  SLUICE_DEVICE int after() const {
    return at == (kPlaces - 1) * kPlaceBytes ? 0 : at + kPlaceBytes;
  }
};

/// As numbers: scales of two rows, and zeros, which only codes of int4 have.
template <Encoding kEncoding>
struct RowScales {
  float scale[2];
  float zero[2];

  SLUICE_DEVICE explicit RowScales(const Words2& words) {
    SLUICE_UNROLL
    for (int row = 0; row < 2; ++row) {
      constexpr bool kIsInt4 = kHasInt4Codes<kEncoding>;
      scale[row] = kIsInt4 ? half_to_float(static_cast<uint16_t>(words.word[0] >> (16 * row)))
                           : bits_to_float(words.word[row]);
      zero[row] = kIsInt4 ? half_to_float(static_cast<uint16_t>(words.word[1] >> (16 * row))) : 0;
    }
  }
};

}  // namespace sluice::cuda
