#include "src/engine/cuda/batch_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/cuda/device_areas.h"

namespace sluice {

namespace {

// The next power of two, at most `most`; what is added has nothing to do.
template <class Entry>
void pad(std::vector<Entry>& entries, int64_t most) {
  Entry idle;
  idle.run = -1;
  const auto padded = static_cast<int64_t>(std::bit_ceil(entries.size()));
  if (!entries.empty())
    entries.resize(std::max(entries.size(), static_cast<size_t>(std::min(padded, most))), idle);
}
}  // namespace

void BatchTables::reset() noexcept {
  used_ = 0;
  forget();
}

void BatchTables::forget() noexcept {
  ids_ = positions_ = needed_ = nullptr;
  for (AdapterTable& table : adapters_) table = {};
}

const std::byte* BatchTables::put_bytes(std::span<const std::byte> bytes) {
  const auto count = static_cast<int64_t>(bytes.size());
  SLUICE_ASSERT(has_room(count), "the plan sizes the tables");
  std::byte* here = staging_.data() + used_;
  std::byte* there = device_.data() + used_;
  used_ += round_up(count, kLine);
  if (count == 0) return there;
  std::memcpy(here, bytes.data(), bytes.size());
  if (collected_ == kSendsAtOnce) cuda::copy_to_device(there, here, count, stream_);
  return there;
}

void BatchTables::send() {
  if (used_ > collected_)
    cuda::copy_to_device(device_.data() + collected_, staging_.data() + collected_,
                         std::min(used_, static_cast<int64_t>(device_.size())) - collected_,
                         stream_);
  collected_ = kSendsAtOnce;
}

const int32_t* BatchTables::once(const int32_t*& table, const std::vector<int32_t>& values) {
  if (!table) table = put(std::span<const int32_t>(values));
  return table;
}

AdapterTable BatchTables::adapters(RowsOf of, std::span<const AdapterRun> runs, int64_t rows) {
  AdapterTable& table = adapters_[static_cast<size_t>(of)];
  if (table.items) return table;
  std::vector<cuda::LowRankItem> items;
  const PlacedAdapter* adapter = nullptr;
  int taken = 0;  // rows of the last item
  for (const AdapterRun& run : runs)
    for (int64_t row = run.first; row < run.first + run.rows; ++row) {
      if (run.adapter != adapter || taken == cuda::kLowRankRows) {
        adapter = run.adapter;
        items.emplace_back().changes = adapter->table;
        taken = 0;
      }
      items.back().rows[taken++] = static_cast<int32_t>(row);
    }
  const auto padded = static_cast<int64_t>(std::bit_ceil(items.size()));
  items.resize(static_cast<size_t>(std::min(padded, rows)));
  table = {put(std::span<const cuda::LowRankItem>(items)), std::ssize(items)};
  return table;
}

AttentionTables BatchTables::attention(const kernels::AttentionShape& shape,
                                       std::span<const ChunkPages> chunks,
                                       std::span<std::byte* const> pages, int64_t rows,
                                       const cuda::Multiprocessors& processors,
                                       int64_t most_items) {
  const int64_t page_tokens = shape.page_tokens;
  std::vector<cuda::AttentionRun> runs;
  std::vector<cuda::KvPlace> places(static_cast<size_t>(rows));
  for (const ChunkPages& attended : chunks) {
    const Chunk& chunk = *attended.chunk;
    const auto first_page = static_cast<int64_t>(attended.first_page);
    runs.push_back({chunk.row_begin, first_page, chunk.first_position, chunk.count});
    for (int32_t i = 0; i < chunk.count; ++i) {
      const int64_t position = chunk.first_position + i;
      places[static_cast<size_t>(chunk.row_begin + i)] = {
          pages[static_cast<size_t>(first_page + position / page_tokens)],
          static_cast<int32_t>(position % page_tokens)};
    }
  }
  AttentionTables tables;
  if (runs.empty()) return tables;
  tables.plan = cuda::plan_attention(shape, runs, processors);
  if (most_items > 0) {
    pad(tables.plan.items, most_items);
    pad(tables.plan.merges, rows);
  }
  tables.places = put(std::span<const cuda::KvPlace>(places));
  tables.runs = put(std::span<const cuda::AttentionRun>(tables.plan.runs));
  tables.items = put(std::span<const cuda::AttentionItem>(tables.plan.items));
  tables.merges = put(std::span<const cuda::AttentionMerge>(tables.plan.merges));
  // Last: it alone grows from pass to pass.
  tables.pages = put(std::span<const std::byte* const>(pages.data(), pages.size()));
  return tables;
}

}  // namespace sluice
