#pragma once
// Types of GGUF's tensors whose elements are not plain: consecutive elements of a row make a block
// of fixed size. Layouts: src/model/foreign/ggml_blocks.h.
#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice {

enum class BlockType : uint8_t {
  kNone,  ///< plain elements
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kIQ4_NL,
  kIQ4_XS,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
  kQ1_0,
  kQ2_0
};

/// How a type's blocks lie.
struct BlockLayout {
  std::string_view name;   ///< "q4_0"
  uint32_t gguf_type = 0;  ///< as files number it
  int64_t elements = 1;    ///< of one block
  int64_t bytes = 0;
};

/// Not for kNone.
const BlockLayout& block_layout(BlockType type) noexcept;
std::optional<BlockType> block_type(uint32_t gguf_type) noexcept;

}  // namespace sluice
