#pragma once
// What the host plans for a micro-batch (token ids, positions, page tables, attention items), sent
// to the device through pinned staging. Tables that all layers share are sent once. Both memories
// are used round and round: reset() when what was queued has run. One thread.
#include <span>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/low_rank.h"
#include "src/engine/runners/operator_runner.h"

namespace sluice {

/// One micro-batch's attention, on the device.
struct AttentionTables {
  cuda::AttentionPlan plan;
  const cuda::KvPlace* places = nullptr;
  const cuda::AttentionRun* runs = nullptr;
  const cuda::AttentionItem* items = nullptr;
  const cuda::AttentionMerge* merges = nullptr;
  const std::byte* const* pages = nullptr;
};

/// Which rows go through which adapter, on the device.
struct AdapterTable {
  const cuda::LowRankItem* items = nullptr;
  int64_t count = 0;
};

/// Rows of a micro-batch: all, or those that need logits, counted among themselves.
enum class RowsOf : uint8_t { kAll, kNeeded };

class BatchTables {
 public:
  BatchTables(std::span<std::byte> device, std::span<std::byte> staging, cuda::Stream stream)
      : device_(device), staging_(staging), stream_(stream) {}

  bool has_room(int64_t bytes) const noexcept {
    return used_ + bytes <= static_cast<int64_t>(device_.size());
  }
  bool is_empty() const noexcept { return used_ == 0; }
  void reset() noexcept;
  /// Another micro-batch: the shared tables are no longer its.
  void forget() noexcept;

  /// Of the micro-batch, sent when they are first asked for.
  const int32_t* ids(const MicroBatch& batch) { return once(ids_, batch.token_ids); }
  const int32_t* positions(const MicroBatch& batch) { return once(positions_, batch.positions); }
  const int32_t* needed(const MicroBatch& batch) { return once(needed_, batch.needed_rows); }

  /// Attention of `chunks`, whose pages' addresses begin in `pages` where they say; `rows`: of the
  /// micro-batch. With `most_items`: items and merges are padded to few sizes, so that other passes
  /// of as many rows have as many.
  AttentionTables attention(const kernels::AttentionShape& shape,
                            std::span<const ChunkPages> chunks, std::span<std::byte* const> pages,
                            int64_t rows, const cuda::Multiprocessors& processors,
                            int64_t most_items = 0);

  /// `runs` are those `rows` rows' of the micro-batch, not none: each adapter's together, sent when
  /// they are first asked for, padded to few sizes.
  AdapterTable adapters(RowsOf of, std::span<const AdapterRun> runs, int64_t rows);

  /// Sends `values`: an address on the device, good until reset().
  template <class T>
  const T* put(std::span<const T> values) {
    return reinterpret_cast<const T*>(put_bytes(std::as_bytes(values)));
  }

  /// Until send(), what is put stays in the staging and then goes as one copy.
  void collect() noexcept { collected_ = used_; }
  void send();

 private:
  const std::byte* put_bytes(std::span<const std::byte> bytes);
  const int32_t* once(const int32_t*& table, const std::vector<int32_t>& values);

  static constexpr int64_t kSendsAtOnce = -1;

  std::span<std::byte> device_;
  std::span<std::byte> staging_;
  cuda::Stream stream_;
  int64_t used_ = 0;                  // bytes that queued work may read
  int64_t collected_ = kSendsAtOnce;  // where what is being collected begins
  const int32_t* ids_ = nullptr;      // null until asked for
  const int32_t* positions_ = nullptr;
  const int32_t* needed_ = nullptr;
  AdapterTable adapters_[2];  // by RowsOf
};

}  // namespace sluice
