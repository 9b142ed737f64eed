#pragma once
// Where codes lie in quantised pages (src/base/kv_format.h), for kernels. Only .cu files include
// it.
#include "kernels/cuda/kv_kind.h"
#include "kernels/cuda/vocabulary.h"
#include "src/base/kv_format.h"

namespace sluice::cuda {

/// Bytes of a row's elements or codes (KvFormat::code_bytes).
template <KvKind kKind>
SLUICE_DEVICE int code_bytes_of(int head_dim) {
  if (kKind == KvKind::kInt8) return (head_dim + 15) / 16 * 16;
  if (kKind == KvKind::kInt4) return (head_dim + 31) / 32 * 16;
  return head_dim * 2;
}

/// Byte of a head where byte `byte` of the codes of a key (value) lies.
SLUICE_DEVICE int64_t code_offset(bool is_value, int code_bytes, int page_tokens, int in_page,
                                  int byte) {
  const int block = static_cast<int>(is_value ? KvFormat::kValueBlock : KvFormat::kKeyBlock);
  const int unit = is_value ? 1 : 4;  // bytes of a row that lie together
  const int first = in_page / block * block;
  const int left = page_tokens - first;
  const int together = left < block ? left : block;
  return int64_t{first} * code_bytes + (byte / unit * together + in_page - first) * unit +
         byte % unit;
}

}  // namespace sluice::cuda
