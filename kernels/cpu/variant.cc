#include "kernels/cpu/variant.h"

#include <algorithm>

namespace sluice::kernels {

const Variant& active_variant() noexcept {
#ifdef __x86_64__
  switch (active_isa()) {
    case Isa::kGeneric: return kVariantGeneric;
    case Isa::kAvx2: return kVariantAvx2;
    case Isa::kAvx512: return kVariantAvx512;
    case Isa::kAvx512Bf16:
    case Isa::kAmx: return kVariantAvx512Bf16;
    case Isa::kNeon:
    case Isa::kNeonBf16: break;
  }
#elif defined(__aarch64__)
  if (active_isa() == Isa::kNeonBf16) return kVariantNeonBf16;
  if (active_isa() == Isa::kNeon) return kVariantNeon;
#endif
  return kVariantGeneric;
}

int64_t attention_most_rows(const AttentionShape& shape) noexcept {
  return std::max<int64_t>(attention_block_rows(shape), shape.num_heads / shape.num_kv_heads);
}

int64_t attention_thread_floats(const AttentionShape& shape) noexcept {
  const int64_t rows = attention_most_rows(shape);
  const int64_t dim = (shape.head_dim + kAttentionLanes - 1) / kAttentionLanes * kAttentionLanes;
  const int64_t plain = 2 * rows * dim + 2 * kAttentionChunk * dim + rows * kAttentionChunk +
                        (2 + kAttentionLanes) * rows + (rows + 1) * sparse_stride(shape);
  if (!shape.kv_dtype.is_quantised()) return plain;
  return plain + rows * KvFormat::kMostHeadDim / KvFormat::kGroup +
         kAttentionChunk *
             (shape.kv_dtype.keys().code_bytes(shape.head_dim) +
              shape.kv_dtype.values().code_bytes(shape.head_dim)) /
             4;
}

}  // namespace sluice::kernels
