#pragma once
// One set of inner loops per instruction set. Each cpu/variant_*.cc is compiled with its own flags
// and includes the primitives of its set (cpu/isa/) and the bodies (cpu/generic/ and what that set
// alone has); nothing else is compiled with such flags. Callers split work over threads and pick
// the set.
#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/tiles.h"
#include "kernels/quantise.h"
#include "kernels/sum_order.h"
#include "src/base/activation.h"
#include "src/base/block_type.h"
#include "src/base/code_words.h"
#include "src/base/recurrent_shape.h"

namespace sluice::kernels {

/// A piece of attention work: query rows [token_begin, token_end) x the heads of one KV head,
/// positions [position_begin, position_end) of the context.
struct AttentionItem {
  const AttentionSequence* sequence;
  int kv_head;
  int32_t token_begin, token_end;
  int32_t position_begin, position_end;
  float* out;  ///< null: into the sequence's out; else [rows, head_dim] partial results
  float* lse;  ///< with out: [rows]
  const AttentionItem* next;  ///< what the thread does after it, to be fetched early; may be null
  SumOrder order;             ///< by row: one way of adding up, however many query rows there are
};

/// A product with a quantised matrix; x is prepared (kernels/cpu/quantised_linear.cc).
struct QuantisedCall {
  WeightFormat format;
  SumOrder order;      ///< by row: sums of few rows are as many as those of many are
  const std::byte* w;  ///< panels
  int64_t n, k, m;
  /// What `format` says of k columns: asked for every few rows of x and of W.
  int64_t group_columns, groups, group_code_bytes, panel_bytes;
  int64_t sum_groups;  ///< sums of a row of x: of groups or, of K types, of their parts
  const float*
      x;  ///< of the f32 kernels, as arrange_f32_codes leaves it; row stride ld, like the others
  const uint16_t* bf16;  ///< of the bf16 kernels
  /// Of the int8 kernels, in the order of the codes; int16 where Variant::widens_int8 and they have
  /// 8 bits.
  const int8_t* int8;
  int64_t ld;  ///< values from a row to the next
  /// [m, sum_groups] sum of the f32, bf16 or dequantised int8 x over each; of int8 beside K types
  /// of its whole numbers, without minima as an int32 less the codes' zero times it.
  const float* sums;
  const float* scales;  ///< [m, groups] of int8
  /// Of quantised_panels_bf16: padded columns, as arrange_pairs leaves them; of
  /// quantised_panels_f32: as f32_arrange does.
  const std::byte* tiles;
  const float* bias;
  float* y;
  int64_t ldy;
};

/// Words of one group of a panel (kernels/word_panels.h).
struct WordPanelCall {
  CodeWords words;
  Encoding encoding;
  int64_t lines;  ///< that have columns; the others, up to all_lines, are zeros
  int64_t all_lines;
  const float* scales;  ///< [16]
  const float* zeros;
};

/// Tokens of one head of a recurrent rule (kernels/delta_rule.h), in the order of their rows.
struct RuleCall {
  int64_t key_width, value_width;
  bool is_delta;   ///< else the state space rule
  float q_factor;  ///< of the delta rule
  float skip;
  const float *q, *k, *v;  ///< of the first token; row stride `stride`
  int64_t stride;
  const float *kept, *learned;  ///< likewise
  int64_t kept_stride, learned_stride;
  float* out;  ///< likewise, of the head's first value
  int64_t out_stride;
  int64_t tokens;
  int64_t column, columns;  ///< of values, those that are computed
};

/// Columns of a panel that compensation rounds one after another (kernels/compensate.h).
struct CompensatedColumns {
  Encoding encoding;
  int64_t count;
  const float* values;     ///< [count][16] with what errors before these columns have added
  const float* originals;  ///< [count][16] as they were
  const float* triangle;   ///< [count, stride] of the factor
  int64_t stride;
  const float *scale, *zero;  ///< [16]; of a K type its part's d s and m n
  float* errors;              ///< [count][16]: originals less what codes stand for
  uint8_t* codes;             ///< [16][code_stride]
  int64_t code_stride;
  float* expected;  ///< [count][16] what is to be rounded, if nothing were rounded; null: codes
};

/// Up to here linear_rows_bf16 is ahead of linear_panels_bf16 (docs/perf-notes.md, bf16 products).
constexpr int64_t kBf16DotRows = 5;

/// The kernels compiled for one instruction set.
struct Variant {
  const char* name;
  int64_t tile_rows;  ///< rows of a tile of x, at most (kernels/cpu/tiles.h)
  int64_t tile_room;  ///< rows that it has memory for
  bool widens_int8;   ///< int8 x beside 8-bit codes is kept as int16
  /// Products of bf16 x know SumOrder::kByRow, and those with groups of up to so many columns (K
  /// types have none) are then the same bits in quantised_bf16 and quantised_panels_bf16; 0: do
  /// not.
  int64_t same_sum_columns;
  void (*rms_norm)(const float* x, const float* gain, float eps, float* y, int64_t rows,
                   int64_t cols);
  void (*layer_norm)(const float* x, const float* gain, const float* bias, float eps, float* y,
                     int64_t rows, int64_t cols);
  void (*add)(float* y, const float* x, int64_t n);
  /// y = activation(gate) * up; `up` may be null, for activation(gate) alone.
  void (*gate)(Activation activation, const float* gate, const float* up, float* y, int64_t n);
  void (*clamped_gate)(float limit, float alpha, const float* biases, const float* gate,
                       const float* up, float* y, int64_t n);  ///< `biases` may be null
  void (*soft_cap)(float* x, float cap, int64_t n);
  void (*scale)(float* x, float factor, int64_t n);
  /// y[c] = silu(bias[c] + sum over j < taps of weights[j * columns + c] inputs[j][c]); without
  /// bias null.
  void (*conv_silu_row)(const float* const* inputs, const float* weights, const float* bias,
                        int64_t taps, float* y, int64_t columns);
  /// `matrix` [key_width, value_width] of the head.
  void (*recurrent_rule)(const RuleCall& call, float* matrix);
  void (*softmax)(float* x, int64_t n);
  void (*to_f32)(DType from, const void* source, float* to, int64_t n);
  void (*from_f32)(DType to, const float* source, void* destination, int64_t n);
  /// y[i, row] for rows [row_begin, row_end) of w, i < m; f32 products. For small m: w is read
  /// once, as it lies.
  void (*linear_rows)(const void* w, DType dtype, int64_t row_begin, int64_t row_end, int64_t k,
                      const float* x, int64_t ld, int64_t m, const float* bias, float* y,
                      int64_t ldy, SumOrder order);
  /// y[j, c] += sum over i < count of x[j, i] w[i, c], for j < m and the k columns of w.
  void (*add_rows)(const void* w, DType dtype, int64_t count, int64_t k, const float* x, int64_t ld,
                   int64_t m, float* y, int64_t ldy);
  /// One tile of x [m, k] as linear_panels takes it: `tile_room` floats a column, one of each
  /// row.
  void (*f32_arrange)(const float* x, int64_t ld, int64_t m, int64_t k, int64_t tile, float* tiles);
  /// linear_rows for larger m, on arranged x: w is turned into panels on the stack (32 KiB).
  void (*linear_panels)(const void* w, DType dtype, int64_t row_begin, int64_t row_end, int64_t k,
                        const float* x, int64_t m, const float* bias, float* y, int64_t ldy);
  /// linear_rows on bf16 x and w, m up to kBf16DotRows; null where the CPU has no bf16 dot product.
  void (*linear_rows_bf16)(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                           const uint16_t* x, int64_t ld, int64_t m, const float* bias, float* y,
                           int64_t ldy, SumOrder order);
  /// One row of f32 x as quantised_f32 takes it, padded, and the sums of its groups; to may be x.
  void (*arrange_f32_codes)(const WeightFormat& format, const float* x, int64_t k, float* to,
                            float* sums);
  /// Rows [row_begin, row_end) of a quantised product, whole panels but for the last; f32 x.
  void (*quantised_f32)(const QuantisedCall& call, int64_t row_begin, int64_t row_end);
  /// The same for many rows, on QuantisedCall::tiles.
  void (*quantised_panels_f32)(const QuantisedCall& call, int64_t row_begin, int64_t row_end);
  /// quantised_f32 on bf16 x; null where the CPU has no bf16 dot product.
  void (*quantised_bf16)(const QuantisedCall& call, int64_t row_begin, int64_t row_end);
  /// quantised_f32 on int8 x; kInt4, kQ4_0, kInt8 and K types only.
  void (*quantised_int8)(const QuantisedCall& call, int64_t row_begin, int64_t row_end);
  /// quantised_bf16 for many rows, on QuantisedCall::tiles.
  void (*quantised_panels_bf16)(const QuantisedCall& call, int64_t row_begin, int64_t row_end);
  /// One row of x to int8 (or int16) in the order of the codes, with a scale and a sum a group.
  void (*quantise_activations)(const WeightFormat& format, const float* x, int64_t k, int8_t* to,
                               float* scales, float* sums);
  /// One row of x as fp8 activations, to f32 or to bf16: the other is null.
  void (*round_e4m3)(const float* x, int64_t k, float* f32, uint16_t* bf16);
  /// sums[group] of a row of k bf16 values, `columns` a group.
  void (*sum_groups)(const uint16_t* x, int64_t k, int64_t columns, float* sums);
  bool (*quantise_rows)(const WeightFormat& format, const QuantiseOptions& options,
                        const float* rows, int64_t ld, int64_t row_count, int64_t cols,
                        std::byte* panel);
  void (*compensate_columns)(const CompensatedColumns& call);
  /// kernels/block_panels.h, groups of 32 or K types.
  bool (*repack_blocks)(BlockType type, Encoding encoding, const std::byte* const* rows,
                        int64_t cols, std::byte* panel);
  bool (*repack_words)(const WordPanelCall& call, std::byte* group);
  /// block [count][16] = columns [begin, begin + count) of a panel; begin a multiple of 8, count
  /// too or up to the last column.
  void (*unpack_panel)(const WeightFormat& format, const std::byte* panel, int64_t cols,
                       int64_t begin, int64_t count, float* block);
  /// One tile of x [m, k] bf16 as linear_panels_bf16 and QuantisedCall::tiles have it.
  void (*arrange_pairs)(const uint16_t* x, int64_t ld, int64_t m, int64_t k, int64_t tile,
                        std::byte* tiles);
  /// linear_rows_bf16 for larger m, on arranged x: w is turned into slabs on the stack (64 KiB).
  void (*linear_panels_bf16)(const uint16_t* w, int64_t row_begin, int64_t row_end, int64_t k,
                             const std::byte* x, int64_t m, const float* bias, float* y,
                             int64_t ldy);
  void (*attend)(const AttentionShape& shape, const AttentionItem& item, float* scratch);
  /// One token's K or V of one head: a row of codes, and f16 scales and minima, those of group g at
  /// scales + g * stride and stride / 2 behind it.
  void (*kv_quantise)(const KvRows& format, const float* from, int head_dim, std::byte* codes,
                      std::byte* scales, int64_t stride);
};

extern const Variant kVariantGeneric;
#ifdef __x86_64__
extern const Variant kVariantAvx2;
extern const Variant kVariantAvx512;
extern const Variant kVariantAvx512Bf16;
#elif defined(__aarch64__)
extern const Variant kVariantNeon;
extern const Variant kVariantNeonBf16;
#endif

/// The set for active_isa().
const Variant& active_variant() noexcept;

/// Rows that a thread takes at a time in the linear layers: whole panels of every variant.
constexpr int64_t kLinearRun = 32;

/// Query rows of one attention item, at most (the heads of one token may be more): whole register
/// tiles of every variant.
constexpr int64_t kAttentionRows = 96;
constexpr int64_t kAttentionLanes = 16;  ///< head_dim is padded to this
constexpr int64_t kAttentionChunk = 64;  ///< positions at a time
/// Of codes: as many as attention on integers takes; with more, of plain f32 (generic/int_tile.h).
constexpr int64_t kCodeRows = 16;
/// With sparsity every row keeps the scores of its whole context: fewer rows at a time.
constexpr int64_t kSparseRows = 16;
/// Whether quantised pages are whole blocks of turned keys: pieces of a context then begin at one.
inline bool has_whole_blocks(const AttentionShape& shape) noexcept {
  return shape.page_tokens % KvFormat::kKeyBlock == 0;
}
inline int64_t attention_block_rows(const AttentionShape& shape) noexcept {
  return shape.sparsity < 1 ? kSparseRows : kAttentionRows;
}
/// Floats from one row's scores of its context to the next one's; 0 without sparsity.
inline int64_t sparse_stride(const AttentionShape& shape) noexcept {
  return shape.sparsity < 1
             ? (shape.sparse_positions + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk
             : 0;
}
/// Of so many visible positions: ceil(sparsity visible), at least one.
inline int kept_positions(const AttentionShape& shape, int visible) noexcept {
  const double wanted = static_cast<double>(shape.sparsity) * visible;
  int kept = static_cast<int>(wanted);
  if (kept < wanted) ++kept;
  return kept < 1 ? 1 : kept < visible ? kept : visible;
}
int64_t attention_most_rows(const AttentionShape& shape) noexcept;
/// Floats of scratch for one thread.
int64_t attention_thread_floats(const AttentionShape& shape) noexcept;

}  // namespace sluice::kernels
