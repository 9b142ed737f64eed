#include "src/base/block_type.h"

#include <array>

namespace sluice {

namespace {
constexpr std::array kLayouts{
    BlockLayout{"q4_0", 2, 32, 18},      BlockLayout{"q4_1", 3, 32, 20},
    BlockLayout{"q5_0", 6, 32, 22},      BlockLayout{"q5_1", 7, 32, 24},
    BlockLayout{"q8_0", 8, 32, 34},      BlockLayout{"q2_k", 10, 256, 84},
    BlockLayout{"q3_k", 11, 256, 110},   BlockLayout{"q4_k", 12, 256, 144},
    BlockLayout{"q5_k", 13, 256, 176},   BlockLayout{"q6_k", 14, 256, 210},
    BlockLayout{"iq1_s", 19, 256, 50},   BlockLayout{"iq1_m", 29, 256, 56},
    BlockLayout{"iq2_xxs", 16, 256, 66}, BlockLayout{"iq2_xs", 17, 256, 74},
    BlockLayout{"iq2_s", 22, 256, 82},   BlockLayout{"iq3_xxs", 18, 256, 98},
    BlockLayout{"iq3_s", 21, 256, 110},  BlockLayout{"iq4_nl", 20, 32, 18},
    BlockLayout{"iq4_xs", 23, 256, 136}, BlockLayout{"tq1_0", 34, 256, 54},
    BlockLayout{"tq2_0", 35, 256, 66},   BlockLayout{"mxfp4", 39, 32, 17},
    BlockLayout{"nvfp4", 40, 64, 36},    BlockLayout{"q1_0", 41, 128, 18},
    BlockLayout{"q2_0", 42, 64, 18}};
}  // namespace

const BlockLayout& block_layout(BlockType type) noexcept {
  return kLayouts[static_cast<size_t>(type) - 1];
}

std::optional<BlockType> block_type(uint32_t gguf_type) noexcept {
  for (size_t i = 0; i < kLayouts.size(); ++i)
    if (kLayouts[i].gguf_type == gguf_type) return static_cast<BlockType>(i + 1);
  return std::nullopt;
}

}  // namespace sluice
