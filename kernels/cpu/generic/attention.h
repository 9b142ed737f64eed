#pragma once
// Attention of one item, whatever its K and V are. Products: what attention on integers takes
// (int_attention.h), or void where the instruction set has nothing for it.
#include <type_traits>

#include "kernels/cpu/generic/int_attention.h"

namespace sluice::kernels {
namespace {

template <typename From>
void attend_typed(const AttentionShape& shape, const AttentionSequence& sequence,
                  const AttentionItem& item, AttentionTile& tile) {
  if (shape.sparsity < 1)
    attend_highest_plain<From>(shape, sequence, item, tile);
  else if (tile.dim == shape.head_dim)
    attend_direct<From>(shape, sequence, item, tile);
  else
    attend_padded<From>(shape, sequence, item, tile);
}

template <typename KeyCodes, typename ValueCodes>
void attend_quantised(const AttentionShape& shape, const AttentionSequence& sequence,
                      const AttentionItem& item, AttentionTile& tile) {
  if (shape.sparsity < 1)
    attend_highest_codes<KeyCodes, ValueCodes>(shape, sequence, item, tile);
  else
    attend_codes<KeyCodes, ValueCodes>(shape, sequence, item, tile);
}

template <typename Products>
void attend(const AttentionShape& shape, const AttentionItem& item, float* scratch) {
  const AttentionSequence& sequence = *item.sequence;
  const int group = shape.num_heads / shape.num_kv_heads;
  AttentionTile tile = make_tile(shape, (item.token_end - item.token_begin) * group, scratch);
  FetchAhead fetch(takes_many_misses());
  tile.fetch = &fetch;
  tile.position_end = item.position_end;
  tile.next_item = item.next;
  tile.next_begin = -1;
  tile.has_scores = false;
  tile.added = nullptr;
  tile.added_stride = 0;
  const int64_t products =
      int64_t{tile.rows} * kAttentionChunk * tile.dim / kLanes;  // of K, and as many of V
  tile.chunk_work = shape.sparsity < 1 ? products : 2 * products + tile.rows * kSoftenWork;
  for (int r = 0; r < tile.rows; ++r) {
    const float* q = sequence.q + (item.token_begin + r / group) * sequence.q_stride +
                     (int64_t{item.kv_head} * group + r % group) * shape.head_dim;
    float* to = tile.q + r * tile.dim;
    for (int d = 0; d < shape.head_dim; ++d) to[d] = q[d];
    for (int d = shape.head_dim; d < tile.dim; ++d) to[d] = 0;
    if (shape.kv_dtype.key_encoding == KvEncoding::kInt4) round_queries(to, tile.dim);
    scale_range(to, shape.scale, tile.dim);
    for (int d = 0; d < tile.dim; ++d) tile.sums[r * tile.dim + d] = 0;
    tile.maxima[r] = -__builtin_inff();
    for (int i = 0; i < kAttentionLanes; ++i) tile.weights[r * kAttentionLanes + i] = 0;
  }
  if (shape.kv_dtype.is_quantised()) sum_queries(tile);
  if constexpr (!std::is_void_v<Products>)
    if (shape.kv_dtype.is_quantised() && attend_ints<Products>(shape, sequence, item, tile))
      return put_rows(shape, sequence, item, tile);
  if (shape.kv_dtype == kInt8KeysInt4Values)
    attend_quantised<Codes8, Codes4>(shape, sequence, item, tile);
  else if (shape.kv_dtype.key_encoding == KvEncoding::kInt8)
    attend_quantised<Codes8, Codes8>(shape, sequence, item, tile);
  else if (shape.kv_dtype.key_encoding == KvEncoding::kInt4)
    attend_quantised<Codes4, Codes4>(shape, sequence, item, tile);
  else if (shape.kv_dtype.dtype == DType::kF32)
    attend_typed<FromF32>(shape, sequence, item, tile);
  else if (shape.kv_dtype.dtype == DType::kF16)
    attend_typed<FromF16>(shape, sequence, item, tile);
  else
    attend_typed<FromBf16>(shape, sequence, item, tile);
  put_rows(shape, sequence, item, tile);
}

}  // namespace
}  // namespace sluice::kernels
