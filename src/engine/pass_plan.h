#pragma once
// One ragged pass: which tokens of which sequences are computed, cut into micro-batches, and which
// KV pages on disk each micro-batch reads and changes. Decoding sequences advance one token; a
// prompt goes in whole where the limits allow, else in chunks over micro-batches and passes. No
// padding anywhere. Pure.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/engine/sequence.h"

namespace sluice {

/// A run of new tokens of one sequence.
struct Chunk {
  Sequence* sequence = nullptr;
  int32_t first_position = 0;
  int32_t count = 0;
  int32_t row_begin = 0;     ///< of its first token in the micro-batch
  int32_t first_staged = 0;  ///< index into MicroBatch::staged of its first page on disk
};

/// A page on disk that a micro-batch works on in a staging slot; its place there is its index.
struct StagedPage {
  int32_t disk_slot = 0;
  bool has_history = false;  ///< holds tokens computed before: read it
  bool is_changed = false;   ///< gets new tokens: write it
};

struct MicroBatch {
  std::vector<Chunk> chunks;
  std::vector<StagedPage> staged;
  std::vector<int32_t> token_ids;     ///< [rows]
  std::vector<int32_t> positions;     ///< [rows]
  std::vector<int32_t> needed_rows;   ///< rows whose logits somebody wants, rising
  std::vector<Chunk*> needed_chunks;  ///< [needed_rows] the chunk of each
  int64_t row_begin = 0;              ///< of its first row in the pass
  bool continues_previous = false;

  int64_t rows() const noexcept { return static_cast<int64_t>(token_ids.size()); }
};

struct PassLimits {
  int64_t micro_batch_sequences = 1;
  int64_t micro_batch_tokens = 1;
  int64_t pass_tokens = 1;
  int64_t page_tokens = 1;
};

struct PassPlan {
  std::vector<std::unique_ptr<MicroBatch>> micro_batches;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
};

/// Plans one pass over the unfinished sequences. Every decoding sequence takes part; prefill takes
/// what pass_tokens leaves, in the order given. Empty only when no sequence has pending tokens.
PassPlan plan_pass(std::span<Sequence* const> sequences, const PassLimits& limits);

}  // namespace sluice
