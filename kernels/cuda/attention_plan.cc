#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tiles.h"

namespace sluice::cuda {

namespace {
constexpr int64_t kLeastPositions = 256;  // of a split: less is not worth a merge

// Items begin at a block of turned keys.
int32_t position_unit(const kernels::AttentionShape& shape) {
  const bool has_blocks =
      shape.kv_dtype.is_quantised() && shape.page_tokens % KvFormat::kKeyBlock == 0;
  return has_blocks ? static_cast<int32_t>(KvFormat::kKeyBlock) : 1;
}

// The first position that the one at `position` sees.
int32_t oldest_seen(const kernels::AttentionShape& shape, int32_t position) {
  if (shape.is_chunked) return position - position % shape.sliding_window;
  return shape.sliding_window > 0 ? std::max(0, position - shape.sliding_window + 1) : 0;
}

std::vector<AttentionRun> cut_at_chunks(const kernels::AttentionShape& shape,
                                        std::span<const AttentionRun> runs) {
  std::vector<AttentionRun> out;
  out.reserve(runs.size());
  for (AttentionRun run : runs) {
    while (shape.is_chunked) {
      const int32_t count = shape.sliding_window - run.first_position % shape.sliding_window;
      if (run.count <= count) break;
      out.push_back({run.row_begin, run.first_page, run.first_position, count});
      run.row_begin += count;
      run.first_position += count;
      run.count -= count;
    }
    out.push_back(run);
  }
  return out;
}

// Blocks that a token's query heads take where keys are the values.
int64_t latent_tiles(const kernels::AttentionShape& shape) {
  return (shape.num_heads + kLatentRows - 1) / kLatentRows;
}

int64_t most_splits(const kernels::AttentionShape& shape, const Multiprocessors& processors) {
  if (!shape.has_values)
    return std::max<int64_t>(
        1, int64_t{attention_blocks(shape, processors)} * processors.count / latent_tiles(shape));
  const int64_t fit = int64_t{attention_blocks(shape, processors)} * processors.count;
  return std::max<int64_t>(1, fit / shape.num_kv_heads);
}

int64_t split_floats(const kernels::AttentionShape& shape) {
  if (!shape.has_values) return int64_t{shape.num_heads} * (shape.head_dim + 1);
  return int64_t{shape.num_kv_heads} * kFewRows * (shape.head_dim + 1);
}

// Every query head attends to the same rows: blocks have some of a run's packed rows each, and the
// context of single tokens is split besides.
AttentionPlan plan_latent(const kernels::AttentionShape& shape, std::span<const AttentionRun> runs,
                          const Multiprocessors& processors) {
  const int32_t group = shape.num_heads;
  const auto oldest = [&](int32_t position) { return oldest_seen(shape, position); };
  AttentionPlan plan;
  int64_t positions = 0;  // of single tokens
  for (size_t i = 0; i < runs.size(); ++i) {
    const AttentionRun& run = runs[i];
    if (run.count == 1) {
      positions += run.first_position + 1 - oldest(run.first_position);
      continue;
    }
    const int32_t rows = run.count * group;
    // The last tile attends the most: it goes first.
    for (int32_t first = (rows - 1) / kLatentRows * kLatentRows; first >= 0 && rows > 0;
         first -= kLatentRows)
      plan.items.push_back(
          {static_cast<int32_t>(i), first, oldest(run.first_position + first / group),
           run.first_position + (std::min(rows, first + kLatentRows) - 1) / group + 1, -1});
  }
  plan.tile_items = static_cast<int64_t>(plan.items.size());
  const int64_t splits = most_splits(shape, processors);
  const int64_t each = std::max(kLeastPositions, (positions + splits - 1) / splits);
  int32_t used = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].count != 1) continue;
    const int32_t begin = oldest(runs[i].first_position), end = runs[i].first_position + 1;
    const auto parts = static_cast<int32_t>((end - begin + each - 1) / each);
    if (parts > 1) plan.merges.push_back({static_cast<int32_t>(i), 1, used, parts});
    for (int32_t part = 0; part < parts; ++part) {
      const auto at = [&](int32_t k) {
        return begin + static_cast<int32_t>(int64_t{end - begin} * k / parts);
      };
      for (int32_t first = 0; first < group; first += kLatentRows)
        plan.items.push_back(
            {static_cast<int32_t>(i), first, at(part), at(part + 1), parts > 1 ? used : -1});
      if (parts > 1) ++used;
    }
  }
  plan.workspace_floats = used * split_floats(shape);
  return plan;
}

AttentionPlan plan_heads(const kernels::AttentionShape& shape, std::span<const AttentionRun> runs,
                         const Multiprocessors& processors) {
  const int32_t group = shape.num_heads / shape.num_kv_heads;
  const int32_t tile_rows = tile_of(shape.head_dim);
  const int32_t unit = position_unit(shape);
  const auto oldest = [&](int32_t position) { return oldest_seen(shape, position) / unit * unit; };
  AttentionPlan plan;
  int64_t few_positions = 0;  // that runs of few rows attend
  for (size_t i = 0; i < runs.size(); ++i) {
    const AttentionRun& run = runs[i];
    const int32_t rows = run.count * group;
    if (rows <= kFewRows) {
      few_positions += run.first_position + run.count - oldest(run.first_position);
      continue;
    }
    // The last tile attends the most: it goes first.
    for (int32_t first = (rows - 1) / tile_rows * tile_rows; first >= 0; first -= tile_rows) {
      const int32_t last_token = (std::min(rows, first + tile_rows) - 1) / group;
      plan.items.push_back({static_cast<int32_t>(i), first,
                            oldest(run.first_position + first / group),
                            run.first_position + last_token + 1, -1});
    }
  }
  plan.tile_items = static_cast<int64_t>(plan.items.size());
  const int64_t splits = most_splits(shape, processors);
  const int64_t each = std::max(kLeastPositions, (few_positions + splits - 1) / splits);
  int32_t used = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const AttentionRun& run = runs[i];
    const int32_t rows = run.count * group;
    if (rows > kFewRows || rows == 0) continue;
    const int32_t begin = oldest(run.first_position);
    const int32_t end = run.first_position + run.count;
    const auto parts = static_cast<int32_t>((end - begin + each - 1) / each);
    if (parts > 1) plan.merges.push_back({static_cast<int32_t>(i), rows, used, parts});
    const auto at = [&](int32_t part) {
      if (part == parts) return end;
      return begin + static_cast<int32_t>(int64_t{end - begin} * part / parts) / unit * unit;
    };
    for (int32_t part = 0; part < parts; ++part)
      plan.items.push_back(
          {static_cast<int32_t>(i), 0, at(part), at(part + 1), parts > 1 ? used++ : -1});
  }
  plan.workspace_floats = used * split_floats(shape);
  return plan;
}
}  // namespace

int attention_blocks(const kernels::AttentionShape& shape, const Multiprocessors& processors) {
  if (!shape.has_values)
    return blocks_that_fit(processors, kMostLatentBlocks,
                           latent_shared_bytes(padded_latent_dim(shape.head_dim)));
  const int most = shape.head_dim > kMostKeptDim
                       ? kMostWideBlocks
                       : most_attention_blocks(padded_head_dim(shape.head_dim));
  return blocks_that_fit(processors, most, few_rows_shared_bytes(shape));
}

bool takes_attention(const kernels::AttentionShape& shape) noexcept {
  if (!shape.has_values)
    return shape.num_kv_heads == 1 && shape.head_dim <= kMostLatentDim && shape.sparsity >= 1 &&
           (shape.kv_dtype == KvFormat(DType::kF16) || shape.kv_dtype == KvFormat(DType::kBF16));
  if (shape.sparsity < 1) return false;
  if (shape.kv_dtype.is_quantised())
    return shape.head_dim <= kMostKeptDim &&
           !(shape.is_chunked && shape.sliding_window % position_unit(shape) != 0);
  return shape.head_dim <= kWideDim &&
         (shape.kv_dtype.dtype == DType::kF16 || shape.kv_dtype.dtype == DType::kBF16);
}

bool attention_fits(const kernels::AttentionShape& shape,
                    const Multiprocessors& processors) noexcept {
  const int64_t bytes = shape.has_values ? few_rows_shared_bytes(shape)
                                         : latent_shared_bytes(padded_latent_dim(shape.head_dim));
  return bytes <= processors.shared_bytes - processors.beside;
}

int64_t attention_workspace_floats(const kernels::AttentionShape& shape,
                                   const Multiprocessors& processors) noexcept {
  // Parts are rounded up, but only runs longer than a part are cut: at most twice as many.
  return 2 * most_splits(shape, processors) * split_floats(shape);
}

int64_t attention_most_items(const kernels::AttentionShape& shape, int64_t rows,
                             const Multiprocessors& processors) noexcept {
  if (!shape.has_values)
    return rows * (latent_tiles(shape) + 1) +
           2 * most_splits(shape, processors) * latent_tiles(shape);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  return rows * group / kFewRows + rows + 2 * most_splits(shape, processors);
}

AttentionPlan plan_attention(const kernels::AttentionShape& shape,
                             std::span<const AttentionRun> runs,
                             const Multiprocessors& processors) {
  std::vector<AttentionRun> cut = cut_at_chunks(shape, runs);
  AttentionPlan plan =
      shape.has_values ? plan_heads(shape, cut, processors) : plan_latent(shape, cut, processors);
  plan.runs = std::move(cut);
  return plan;
}

}  // namespace sluice::cuda
