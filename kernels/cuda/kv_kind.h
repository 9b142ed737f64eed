#pragma once
// Which kernel takes which kind of KV. Only .cu files include it.
#include "src/base/kv_format.h"

namespace sluice::cuda {

/// How K and V lie in their pages; kInt8Int4: K in int8, V in int4.
enum class KvKind : uint8_t { kF16, kBF16, kInt8, kInt4, kInt8Int4 };

/// Of the K or the V of such pages alone.
template <KvKind kKind>
inline constexpr KvKind kKeysOf = kKind == KvKind::kInt8Int4 ? KvKind::kInt8 : kKind;
template <KvKind kKind>
inline constexpr KvKind kValuesOf = kKind == KvKind::kInt8Int4 ? KvKind::kInt4 : kKind;

/// Of pages of that format.
inline KvKind kind_of(const KvFormat& format) {
  if (format == kInt8KeysInt4Values) return KvKind::kInt8Int4;
  switch (format.key_encoding) {
    case KvEncoding::kInt8: return KvKind::kInt8;
    case KvEncoding::kInt4: return KvKind::kInt4;
    case KvEncoding::kPlain: break;
  }
  return format.dtype == DType::kBF16 ? KvKind::kBF16 : KvKind::kF16;
}

}  // namespace sluice::cuda
