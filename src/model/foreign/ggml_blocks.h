#pragma once
// Blocks of GGUF's quantised tensors: their elements, and their codes where the format is one of
// ours with other places for the bits. d, m: f16 scales of the block; sc, mn: 6-bit ones inside a
// block of 256. Pure functions.
//   q4_0  d (q - 8)         q4_1  d q + m       32 elements, 4 bits
//   q5_0  d (q - 16)        q5_1  d q + m       32 elements, 5 bits
//   q8_0  d q                                   32 elements, 8 bits
//   q2_k  d sc q - m mn     16 x 16, 2 bits     q3_k  d (sc - 32)(q - 4)   16 x 16, 3 bits
//   q4_k  d sc q - m mn      8 x 32, 4 bits     q5_k  d sc q - m mn         8 x 32, 5 bits
//   q6_k  d sc (q - 32)     16 x 16, 6 bits
// Those of IQ, TQ, MXFP4, NVFP4, Q1_0 and Q2_0: ggml_grid_blocks.h.
#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/base/block_type.h"
#include "src/base/weight_format.h"

namespace sluice {

/// The block's elements, block_layout(type).elements of them.
void decode_block(BlockType type, const std::byte* block, float* out) noexcept;

/// The K type of ours, or what is kept like one, that has such blocks' values exactly, or nothing.
std::optional<WeightFormat> k_type_format(BlockType type) noexcept;

/// Codes [256], scales [16] and d of a block as kIq1 or kIq2; false for types of other formats, and
/// where d is not finite. (The others' blocks become panels in kernels/block_panels.h.)
bool block_parts(BlockType type, const std::byte* block, uint8_t* codes, int8_t* scales,
                 float& d) noexcept;

/// Our other format that keeps the codes of such blocks, or nothing. kInt4 keeps q4_1's and q4_k's
/// offsets rounded to f16.
std::optional<WeightFormat> format_of_blocks(BlockType type) noexcept;

/// Codes of elements [32 part, 32 part + 32) of a block with w = scale (code - zero), of mxfp4
/// scale e2m1(code), of iq4 scale times the code's value; false for types without a
/// format_of_blocks, and where a power of mxfp4 is past f32.
bool block_codes(BlockType type, const std::byte* block, int64_t part, uint8_t* codes, float& scale,
                 float& zero) noexcept;

}  // namespace sluice
