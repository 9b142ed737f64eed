#pragma once
// Which kernel takes which kind of KV. Only .cu files include it.
#include "src/base/kv_format.h"

namespace sluice::cuda {

/// How K and V lie in their pages.
enum class KvKind : uint8_t { kF16, kBF16, kInt8, kInt4 };

/// Of pages of that format.
inline KvKind kind_of(const KvFormat& format) {
  switch (format.encoding) {
    case KvEncoding::kInt8: return KvKind::kInt8;
    case KvEncoding::kInt4: return KvKind::kInt4;
    case KvEncoding::kPlain: break;
  }
  return format.dtype == DType::kBF16 ? KvKind::kBF16 : KvKind::kF16;
}

}  // namespace sluice::cuda
