#include "kernels/block_panels.h"

#include "kernels/cpu/variant.h"

namespace sluice::kernels {

bool repack_blocks(BlockType type, const WeightFormat& format, const std::byte* const* rows,
                   int64_t cols, std::byte* panel) noexcept {
  if (format.group != 32 && !format.is_k()) return false;
  return active_variant().repack_blocks(type, format.encoding, rows, cols, panel);
}

}  // namespace sluice::kernels
