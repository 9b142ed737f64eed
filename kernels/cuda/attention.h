#pragma once
// Causal attention of ragged sequences over paged KV on the GPU: prompts and single tokens, plain
// 16-bit, int8 and int4 pages, as kernels/attention.h says (no sparsity, no f32 KV; no sinks where
// keys are the values). Rows of the query heads that share a KV head are packed, so that K and V
// are read once for all of them; K and V become 16 bits in shared memory, scores and sums are f32.
// The host plans which block does what (plan_attention: plain arrays), the kernels run it.
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/multiprocessors.h"
#include "kernels/cuda/types.h"
#include "src/base/rope_layout.h"

namespace sluice::cuda {

/// A run of new tokens of one sequence.
struct AttentionRun {
  int64_t row_begin = 0;       ///< of its first token in q and out
  int64_t first_page = 0;      ///< of its first position in the page table
  int32_t first_position = 0;  ///< of its first token
  int32_t count = 0;
};

/// Packed rows (token, query head of the group) of one run that one block computes, over positions
/// [begin, end).
struct AttentionItem {
  int32_t run = 0;  ///< -1: nothing to do
  int32_t first_row = 0;
  int32_t begin = 0;
  int32_t end = 0;
  int32_t split = -1;  ///< its place in the workspace; -1: it writes `out`
};

/// Splits that make up rows [0, rows) of a run and KV head; where keys are the values, the one row
/// of each query head.
struct AttentionMerge {
  int32_t run = 0;  ///< -1: nothing to do
  int32_t rows = 0;
  int32_t first_split = 0;
  int32_t splits = 0;
};

/// What the host decides of one launch.
struct AttentionPlan {
  /// As `items` and `merges` count them: those that were given, cut where chunks begin, so that
  /// what a block begins with is what each of its rows does.
  std::vector<AttentionRun> runs;
  std::vector<AttentionItem> items;  ///< whole tiles of rows first, then those of few rows
  int64_t tile_items = 0;            ///< of `items`, the former
  std::vector<AttentionMerge> merges;
  int64_t workspace_floats = 0;
};

/// True for what the kernels know: f16, bf16 (not on Turing), int8, int4; heads of at most 256, in
/// 16 bits of at most 512; one head of at most 576 columns whose keys are its values, in 16 bits.
/// Chunks of codes begin where blocks of turned keys do.
bool takes_attention(const kernels::AttentionShape& shape) noexcept;
/// Whether a block of them has the shared memory that it needs.
bool attention_fits(const kernels::AttentionShape& shape,
                    const Multiprocessors& processors) noexcept;
/// Contexts of few tokens are split until all `processors` have enough to do.
AttentionPlan plan_attention(const kernels::AttentionShape& shape,
                             std::span<const AttentionRun> runs, const Multiprocessors& processors);
/// Blocks of few rows that a multiprocessor is taken to hold.
int attention_blocks(const kernels::AttentionShape& shape, const Multiprocessors& processors);
/// Most workspace that any plan asks for.
int64_t attention_workspace_floats(const kernels::AttentionShape& shape,
                                   const Multiprocessors& processors) noexcept;
/// Most items of any plan for `rows` new tokens of at most as many runs.
int64_t attention_most_items(const kernels::AttentionShape& shape, int64_t rows,
                             const Multiprocessors& processors) noexcept;

/// All on the device: q [rows, num_heads * head_dim] f32, `out` alike, pages: addresses of pages.
struct AttentionArguments {
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  const AttentionRun* runs = nullptr;  ///< of the plan, copied to the device
  const std::byte* const* pages = nullptr;
  int64_t page_offset = 0;  ///< bytes added to every address: pages of a layer lie alike
  const AttentionItem* items = nullptr;    ///< likewise
  const AttentionMerge* merges = nullptr;  ///< likewise
  float* workspace = nullptr;
};
void attention(const kernels::AttentionShape& shape, const AttentionPlan& plan,
               const AttentionArguments& arguments, Stream stream);

/// Where a row's K and V go.
struct KvPlace {
  std::byte* page = nullptr;
  int32_t in_page = 0;
};
/// Rotary positions (kernels/rope.h), in place, of k before it is written and of q on the way;
/// rotary_dim 0: none.
struct Rotation {
  float* q = nullptr;  ///< [rows, num_heads * head_dim], row stride as k's
  const int32_t* positions = nullptr;
  const float* inverse_frequencies = nullptr;  ///< [rotary_dim / 2]
  int rotary_dim = 0;
  float factor = 1;
  RopeLayout layout = RopeLayout::kHalves;
};
/// k, v [rows, num_kv_heads * head_dim] f32 (row stride `stride`) into places [rows]; a row whose
/// page is null is rotated and goes nowhere. `page_offset` as AttentionArguments.
void kv_write(const kernels::AttentionShape& shape, float* k, const float* v, int64_t stride,
              const KvPlace* places, int64_t page_offset, int64_t rows, const Rotation& rotation,
              Stream stream);

}  // namespace sluice::cuda
