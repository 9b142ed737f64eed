#pragma once
// Causal attention of ragged sequences over paged KV, prefill chunks and single decode tokens alike
// (online softmax, arXiv:1805.02867; tiles as in FlashAttention, arXiv:2205.14135: the s x s matrix
// is never built). A page of one layer is [num_kv_heads][2 (K, V)][page_tokens][head_dim] of
// kv_dtype, contiguous (quantised: src/base/kv_format.h); where keys are the values too it is
// [num_kv_heads][page_tokens][head_dim]. Only positions that have been written
// count. Runs on the calling thread's team (src/base/team.h).
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/kv_format.h"

namespace sluice::kernels {

/// What attention of a layer looks like, the same for all sequences.
struct AttentionShape {
  int num_heads = 0;
  int num_kv_heads = 0;  ///< divides num_heads
  int head_dim = 0;
  int page_tokens = 0;
  float scale = 0;  ///< of q k, usually 1 / sqrt(head_dim)
  KvFormat kv_dtype = DType::kF32;
  int sliding_window = 0;  ///< a position attends itself and the window - 1 before it; 0: all
  /// Share of the visible positions whose values count, those of the highest scores (ties: the
  /// first), for each head and token; their weights sum to 1 (sparse attention of FlexGen,
  /// arXiv:2303.06865, section 5, which leaves them as they were). ceil(sparsity visible); 1: all.
  float sparsity = 1;
  int sparse_positions = 0;  ///< with sparsity below 1 the longest context
  /// Scaled scores s become soft_cap tanh(s / soft_cap) (Gemma 2, arXiv:2408.00118); 0: they stay.
  float soft_cap = 0;
  /// [num_heads], where the shape is used: scores get slope times the key's position less the
  /// query's (ALiBi, arXiv:2108.12409); null: nothing.
  const float* slopes = nullptr;
  /// With slopes: slope times the key's position is rounded to bf16, and it less slope times the
  /// query's added before q k is scaled (Falcon's, transformers' modeling_falcon.py). On the CPU.
  bool rounds_slopes = false;
  /// [num_heads], where the shape is used: a score that each head has beside those of positions,
  /// with a value of zeros (attention sinks, gpt-oss): out = sum e^s v / (sum e^s + e^sink), and
  /// lse counts it too; null: none.
  const float* sinks = nullptr;
  /// False: a position's value is its key (latent rows, arXiv:2405.04434), plain, of which the
  /// columns before value_begin are the key's alone: what `out` has there means nothing.
  bool has_values = true;
  int value_begin = 0;
  /// With a window: a position attends itself and those before it from the last whole multiple of
  /// the window on. On the CPU of plain KV.
  bool is_chunked = false;

  /// Of a page: K and V of each KV head, or one for both.
  int page_heads() const noexcept { return (has_values ? 2 : 1) * num_kv_heads; }
  /// How the K (0) or V (1) of a head are stored.
  KvRows rows_of(bool is_value) const noexcept {
    return is_value ? kv_dtype.values() : kv_dtype.keys();
  }
  /// Bytes of a KV head in a page of one layer.
  int64_t head_bytes() const noexcept {
    return page_tokens *
           (has_values ? kv_dtype.pair_bytes(head_dim) : kv_dtype.keys().row_bytes(head_dim));
  }
  /// Bytes of such a page.
  int64_t page_bytes() const noexcept { return num_kv_heads * head_bytes(); }
  /// Where in a page the K (0) or V (1) of a KV head begins; where keys are the values too, the
  /// same.
  int64_t head_offset(int kv_head, bool is_value) const noexcept {
    const int64_t keys = page_tokens * kv_dtype.keys().row_bytes(head_dim);
    return kv_head * head_bytes() + (is_value && has_values ? keys : 0);
  }
};

/// The tokens of one sequence that attend together.
struct AttentionSequence {
  const float* q = nullptr;  ///< [count, num_heads, head_dim], row stride q_stride floats
  int64_t q_stride = 0;
  int32_t first_position = 0;  ///< of token 0; token i attends positions 0 .. first_position + i
  int32_t count = 0;
  const std::byte* const* pages =
      nullptr;           ///< page p holds positions [p * page_tokens, (p + 1) * page_tokens)
  float* out = nullptr;  ///< [count, num_heads, head_dim], row stride out_stride floats
  int64_t out_stride = 0;
  float* lse = nullptr;  ///< [count, num_heads] log-sum-exp of the scores, for merging; may be null
};

/// Queries that meet int4 keys are rounded, wherever and in however many rows they are computed:
/// each 64 elements (KvFormat::kGroup) of a head to whole multiples of the largest magnitude over
/// kQueryLevels, ties to even, so that their products with codes are products of bytes; where the
/// largest is kLeastQuery or below they stay. It moves scores by a sixteenth of what int4 itself
/// does.
constexpr float kQueryLevels = 127;
constexpr float kLeastQuery = 1e-30f;

/// `scratch`: attention_scratch_floats() for at least one thread; for fewer than the
/// team has, fewer run. f32 products and sums of the KV as stored: the error is that of f32 dot
/// products of head_dim and of the context. With AVX512-VNNI, and with AVX2 alone, int8 and int4 KV
/// with head_dim a multiple of 64 is multiplied as codes by up to 16 rows that share it. Queries
/// beside int8 keys, and softmax weights times the scales of int8 values, are then rounded to 15
/// bits of the largest of their 64; weights times the scales of int4 values to 8 bits, and what
/// rounding takes or gives meets the middle of the codes: it moves sums by a twentieth of what int4
/// itself does. Work is split over (sequence, block of tokens, KV head) and, where that leaves
/// threads idle, over pieces of the context.
void attention(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
               float* scratch, int64_t scratch_floats) noexcept;
int64_t attention_scratch_floats(const AttentionShape& shape, int threads) noexcept;

/// Converts k, v [count, num_kv_heads, head_dim] (row stride `stride` floats) into their pages;
/// without values v is not read.
void kv_write(const AttentionShape& shape, const float* k, const float* v, int64_t stride,
              int32_t first_position, int32_t count, std::byte* const* pages) noexcept;

/// Adds a score without a value to a row's log-sum-exp, and says what the row's output is then to
/// be multiplied with: 1 / (1 + e^(sink - lse)).
float add_sink(float sink, float& lse) noexcept;

/// Merges a second partial result into the first: out, lse as if one attention had seen both
/// contexts.
///   out, other_out [rows, cols]   lse, other_lse [rows]; a row of -inf lse counts for nothing
void merge_attention(float* out, float* lse, const float* other_out, const float* other_lse,
                     int64_t rows, int64_t cols) noexcept;

namespace reference {
void attention(const AttentionShape& shape, std::span<const AttentionSequence> sequences);
/// What attention() takes the softmax of: the scores of the positions that token `token` of a
/// sequence sees, in their order.
std::vector<double> attention_scores(const AttentionShape& shape, const AttentionSequence& sequence,
                                     int64_t token, int head);
void kv_write(const AttentionShape& shape, const float* k, const float* v, int64_t stride,
              int32_t first_position, int32_t count, std::byte* const* pages);
void merge_attention(float* out, float* lse, const float* other_out, const float* other_lse,
                     int64_t rows, int64_t cols);
}  // namespace reference

}  // namespace sluice::kernels
