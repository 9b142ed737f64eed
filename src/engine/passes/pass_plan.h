#pragma once
// One ragged pass: which tokens of which sequences are computed, cut into micro-batches by
// src/schedule/pass_cut.h, and which KV pages on disk each micro-batch reads and changes. No
// padding anywhere. Pure.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/engine/passes/sequence.h"
#include "src/schedule/pass_cut.h"

namespace sluice {

/// Where a chunk's attention runs when KV below the device is attended on the host.
enum class ChunkAttention : uint8_t {
  kDevice,  ///< its pages are where the device computes
  kFresh,   ///< a prompt from its first token: the device attends, its KV goes down
  kHost     ///< the host attends: queries go down, outputs come up
};

/// Whether the host attends; and whether keys and values live below the device.
constexpr bool is_host_attention(ChunkAttention where) { return where == ChunkAttention::kHost; }
constexpr bool is_lower_attention(ChunkAttention where) { return where != ChunkAttention::kDevice; }

/// A run of new tokens of one sequence.
struct Chunk {
  Sequence* sequence = nullptr;
  int32_t first_position = 0;
  int32_t count = 0;
  int32_t row_begin = 0;  ///< of its first token in the micro-batch
  /// By group of layers: index into MicroBatch::staged of its first page below.
  std::vector<int32_t> first_staged;
  ChunkAttention attention = ChunkAttention::kDevice;
};

/// A page below the compute tier that a micro-batch works on; its place in a staging slot of the
/// compute tier is its index.
struct StagedPage {
  PageTier tier = PageTier::kDisk;
  int32_t slot = 0;          ///< in its tier
  int32_t disk_index = -1;   ///< of those on disk: which one, its place in the host's staging slot
  bool has_history = false;  ///< holds tokens computed before: read it
  bool is_changed = false;   ///< gets new tokens: write it
  bool is_read = false;      ///< read it for layers that find it written by another
};

/// Those of a group of layers.
struct StagedPages {
  std::vector<StagedPage> pages;
  int32_t disk_pages = 0;  ///< of these
};

/// Rows that are computed together, [rows] those of all chunks one after another.
struct MicroBatch {
  std::vector<Chunk> chunks;
  std::vector<StagedPages> staged;    ///< by group
  std::vector<int32_t> token_ids;     ///< [rows]
  std::vector<int32_t> positions;     ///< [rows]
  std::vector<int32_t> needed_rows;   ///< rows whose logits somebody wants, rising
  std::vector<Chunk*> needed_chunks;  ///< [needed_rows] the chunk of each
  int64_t row_begin = 0;              ///< of its first row in the pass
  int64_t lower_rows = 0;             ///< of chunks that are kFresh or kHost
  int64_t host_rows = 0;              ///< of chunks that are kHost
  int64_t first_fresh_page = 0;       ///< of pages of the pass's kFresh chunks, those before it
  bool continues_previous = false;
  bool is_alone = false;  ///< the only one of its pass
  size_t pass_class = 0;  ///< of its pass

  int64_t rows() const noexcept { return static_cast<int64_t>(token_ids.size()); }
  bool stages_pages() const noexcept {
    return std::any_of(staged.begin(), staged.end(),
                       [](const StagedPages& group) { return !group.pages.empty(); });
  }
};

/// Calls `run(first_row, rows)` for each run of neighbouring rows whose chunks are `wanted`.
template <typename Wanted, typename Run>
void for_each_run(const MicroBatch& batch, const Wanted& wanted, const Run& run) {
  int64_t first = 0;
  int64_t end = 0;
  for (const Chunk& chunk : batch.chunks) {
    if (!wanted(chunk.attention)) continue;
    if (chunk.row_begin != end || end == first) {
      if (end > first) run(first, end - first);
      first = chunk.row_begin;
    }
    end = int64_t{chunk.row_begin} + chunk.count;
  }
  if (end > first) run(first, end - first);
}

struct PassPlan {
  std::vector<std::unique_ptr<MicroBatch>> micro_batches;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  size_t pass_class = 0;
};

/// Of which class a pass of these tokens is.
using PassChooser = std::function<size_t(const PassTokens& taken)>;

/// Plans one pass over the unfinished sequences. Every decoding sequence takes part; prefill takes
/// what pass_tokens leaves, in the order given. Empty only when no sequence has pending tokens.
PassPlan plan_pass(std::span<Sequence* const> sequences, const PassLimits& limits);
/// The same where classes of passes differ: cut by the limits of the class that `choose` says.
PassPlan plan_pass(std::span<Sequence* const> sequences, std::span<const PassLimits> by_class,
                   const PassChooser& choose);

}  // namespace sluice
