#pragma once
// Blocks of GGUF's types whose elements are small whole numbers times a scale: codebooks of eight
// or four elements with signs (IQ1 to IQ3), of single ones (IQ4, MXFP4, NVFP4), and of three values
// (TQ), two (Q1_0) or four (Q2_0).
// Sixteen neighbours share a scale, so a block is parts of sixteen. Pure functions.
//   iq1_s   d (2 s + 1) (g / 8 -+ 1/8)  32 share s   iq1_m   the same, 16 share s
//   iq2_xxs d (s + 1/2) / 4 g           32 share s   iq2_xs, iq2_s   16 share s
//   iq3_xxs d (s + 1/2) / 2 g           32 share s   iq3_s   d (2 s + 1) g, 32 share s
//   iq4_nl  d v[q]                      iq4_xs  d (s - 32) v[q], 32 share s
//   mxfp4   2^(e - 127) e2m1(q)         32 share e   tq1_0, tq2_0    d (q - 1)
//   nvfp4   s e2m1(q), s in e4m3        16 share s   q1_0    d or -d
//   q2_0    d (q - 1)
#include <cstdint>

#include "src/base/block_type.h"

namespace sluice {

/// Elements [16 part, 16 part + 16) of a block are scale * codes[i], exactly as the file means
/// them. False for types of other kinds.
bool part_codes(BlockType type, const uint8_t* block, int64_t part, int8_t* codes,
                float& scale) noexcept;

/// A block of iq1_s or iq1_m as kIq1, of iq2_xxs, iq2_xs or iq2_s as kIq2: codes [256], scales
/// [16], with w = d scales[i / 16] times what codes[i] says (kernels/k_layout.h), exactly. False
/// for other types, and where d is not finite.
bool grid_parts(BlockType type, const uint8_t* block, uint8_t* codes, int8_t* scales,
                float& d) noexcept;

/// Whether both halves of each 32 elements have the same scale.
bool are_scales_of_32(BlockType type) noexcept;

}  // namespace sluice
