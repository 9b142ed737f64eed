#pragma once
// What the kernels of one item share: its rows and sums, where its K and V lie, what to fetch for
// the next chunk.
#include "kernels/cpu/generic/fetch_ahead.h"
#include "kernels/cpu/generic/vector.h"

namespace sluice::kernels {
namespace {

constexpr int kMostKvGroups = static_cast<int>(KvFormat::kMostHeadDim / KvFormat::kGroup);
constexpr int kKeyBlocks = static_cast<int>(kAttentionChunk / KvFormat::kKeyBlock);
constexpr int kQuads = static_cast<int>(kAttentionChunk / KvFormat::kValueBlock);
constexpr int kQuadsOfBlock = kQuads / kKeyBlocks;
constexpr int64_t kHalf = 2;  // bytes of an f16

// Where the codes of a chunk lie: 16 positions of K each, four of V. And their scales, f16 of 16
// positions each: a group's minima scale_stride bytes behind its scales, and the next group's
// scales as much again.
struct CodeBlocks {
  const char* keys[kKeyBlocks];
  const char* values[kQuads];
  const char* key_scales[kKeyBlocks];
  const char* value_scales[kKeyBlocks];
  int64_t scale_stride;
};

struct PagePlace {
  int32_t page;
  int32_t in_page;
};

struct AttentionTile {
  float* q;        // [rows, dim] scaled
  float* sums;     // [rows, dim] weighted V
  float* scores;   // [rows, chunk]
  float* maxima;   // [rows]
  float* weights;  // [rows, kAttentionLanes] sums of e^(score - max), to be added up
  float* keys;     // [dim, chunk] turned, or [chunk, dim] where head_dim is not whole vectors
  float* values;   // [chunk, dim]
  int rows;
  int dim;                         // head_dim padded to kAttentionLanes
  int value_begin;                 // columns before it need no sums; whole vectors
  int32_t position_end;            // of the item
  const AttentionItem* next_item;  // or null
  int32_t next_begin;              // of the chunk after this one
  PagePlace next;
  FetchAhead* fetch;
  int64_t chunk_work;  // of a chunk, as FetchAhead counts it
  const char* key_rows[kAttentionChunk];
  const char* value_rows[kAttentionChunk];
  // Of sparse attention only.
  float* all;          // [rows, all_stride] scores of all positions, then weights
  float* order;        // [all_stride]
  int64_t all_stride;  // 0 without it
  bool has_scores;     // values are read here and there: nothing is fetched ahead
  // Of quantised KV only.
  CodeBlocks now;
  char* gathered;  // [K, V] codes of a chunk, where pages are not whole blocks
  float* q_sums;   // [rows, kMostKvGroups]
  float* added;    // [rows, added_stride] weights times minima of values, to be added up; of the
                   // kernels on integers
  int64_t added_stride;
  int groups;
  // Scales and minima of a chunk that is not whole blocks, zeros past its end: K, V.
  alignas(64) char gathered_scales[2][kMostKvGroups][2][kAttentionChunk * kHalf];
};

// From so many rows on it pays to turn the keys.
constexpr int kManyRows = 9;
inline bool takes_many_rows(const AttentionItem& item, const AttentionTile& tile) {
  return tile.rows >= kManyRows && item.order == SumOrder::kFastest;
}

// Calls run(page, position in it, first of the run, its length) for the pages of `count` positions
// from `place` on.
template <typename Run>
[[gnu::always_inline]] inline void over_pages(const AttentionShape& shape,
                                              const AttentionSequence& sequence, PagePlace place,
                                              int count, const Run& run) {
  auto [page, in_page] = place;
  for (int t = 0; t < count; ++page, in_page = 0) {
    const int length =
        count - t < shape.page_tokens - in_page ? count - t : shape.page_tokens - in_page;
    run(reinterpret_cast<const char*>(sequence.pages[page]), in_page, t, length);
    t += length;
  }
}

// Where `position` is; the chunk after it begins at `next`.
inline PagePlace place_of(const AttentionShape& shape, int32_t position, int32_t next,
                          AttentionTile& tile) {
  const PagePlace place = tile.next_begin == position ? tile.next
                                                      : PagePlace{position / shape.page_tokens,
                                                                  position % shape.page_tokens};
  tile.next_begin = next;
  tile.next = {next / shape.page_tokens, next % shape.page_tokens};
  return place;
}

// How the heads of a page lie: rows, and scales behind the rows.
struct HeadLayout {
  int64_t head_bytes;  // of K and V
  int64_t values_at;   // behind the head's begin; 0 where keys are the values too
  int64_t key_bytes;   // of a row
  int64_t value_bytes;
  int64_t scale_bytes;  // of K, and as many of V
  bool has_values;
};
inline HeadLayout layout_of(const AttentionShape& shape) {
  const KvRows keys = shape.kv_dtype.keys(), values = shape.kv_dtype.values();
  return {shape.head_bytes(),
          shape.head_offset(0, true),
          keys.code_bytes(shape.head_dim),
          values.code_bytes(shape.head_dim),
          shape.page_tokens * keys.groups(shape.head_dim) * 2 * kHalf,
          shape.has_values};
}
struct HeadPlaces {
  int64_t key, value;  // bytes of a page
};
inline HeadPlaces places_of(const HeadLayout& layout, int kv_head) {
  const int64_t key = kv_head * layout.head_bytes;
  return {key, key + layout.values_at};
}

// What lies in the pages of `count` positions of a head.
inline void plan_fetches(const AttentionShape& shape, const AttentionSequence& sequence,
                         const HeadLayout& layout, int kv_head, PagePlace place, int count,
                         const AttentionTile& tile) {
  FetchAhead& fetch = *tile.fetch;
  const HeadPlaces heads = places_of(layout, kv_head);
  const bool with_values = tile.all_stride == 0 && layout.has_values;
  over_pages(shape, sequence, place, count,
             [&](const char* page, int32_t in_page, int, int length) {
               const auto add = [&](int64_t head, int64_t row_bytes) {
                 fetch.add(page + head + in_page * row_bytes, length * row_bytes);
                 if (layout.scale_bytes > 0)
                   fetch.add(page + head + shape.page_tokens * row_bytes, layout.scale_bytes);
               };
               add(heads.key, layout.key_bytes);
               if (with_values) add(heads.value, layout.value_bytes);
             });
  fetch.spread(tile.chunk_work);
}

// Of the next chunk, or of the next item's first.
inline void plan_next(const AttentionShape& shape, const AttentionSequence& sequence,
                      const HeadLayout& layout, int kv_head, const AttentionTile& tile) {
  tile.fetch->clear();
  if (tile.has_scores || tile.rows >= kManyRows) return;
  const auto most = [](int32_t left) {
    return left < kAttentionChunk ? left : static_cast<int>(kAttentionChunk);
  };
  if (const int32_t left = tile.position_end - tile.next_begin; left > 0)
    return plan_fetches(shape, sequence, layout, kv_head, tile.next, most(left), tile);
  if (const AttentionItem* const next = tile.next_item)
    plan_fetches(
        shape, *next->sequence, layout, next->kv_head,
        {next->position_begin / shape.page_tokens, next->position_begin % shape.page_tokens},
        most(next->position_end - next->position_begin), tile);
}

inline AttentionTile make_tile(const AttentionShape& shape, int rows, float* scratch) {
  AttentionTile tile;
  tile.rows = rows;
  tile.dim =
      static_cast<int>((shape.head_dim + kAttentionLanes - 1) / kAttentionLanes * kAttentionLanes);
  tile.value_begin = static_cast<int>(shape.value_begin / kAttentionLanes * kAttentionLanes);
  const auto take = [&](int64_t floats) {
    float* area = scratch;
    scratch += floats;
    return area;
  };
  tile.q = take(int64_t{rows} * tile.dim);
  tile.sums = take(int64_t{rows} * tile.dim);
  tile.keys = take(kAttentionChunk * tile.dim);
  tile.values = take(kAttentionChunk * tile.dim);
  tile.scores = take(int64_t{rows} * kAttentionChunk);
  tile.maxima = take(rows);
  tile.weights = take(rows * kAttentionLanes);
  tile.all_stride = sparse_stride(shape);
  tile.all = take(rows * tile.all_stride);
  tile.order = take(tile.all_stride);
  if (shape.kv_dtype.is_quantised()) {
    tile.q_sums = take(int64_t{rows} * kMostKvGroups);
    tile.gathered =
        reinterpret_cast<char*>(take(kAttentionChunk *
                                     (shape.kv_dtype.keys().code_bytes(shape.head_dim) +
                                      shape.kv_dtype.values().code_bytes(shape.head_dim)) /
                                     4));
  }
  return tile;
}

inline void put_rows(const AttentionShape& shape, const AttentionSequence& sequence,
                     const AttentionItem& item, const AttentionTile& tile) {
  const int group = shape.num_heads / shape.num_kv_heads;
  for (int r = 0; r < tile.rows; ++r) {
    const int token = item.token_begin + r / group;
    const int64_t head = int64_t{item.kv_head} * group + r % group;
    float* out = item.out ? item.out + int64_t{r} * shape.head_dim
                          : sequence.out + token * sequence.out_stride + head * shape.head_dim;
    const float weight = sum_lanes(load(tile.weights + r * kAttentionLanes));
    float factor =
        weight == 0 ? 0.0f : 1.0f / weight;  // nothing seen: a split that the window leaves out
    float lse = weight == 0 ? -__builtin_inff() : tile.maxima[r] + __builtin_logf(weight);
    float of_sink = 1;  // by row a factor of its own, as where the splits of a context are merged
    if (shape.sinks && !item.out) of_sink = add_sink(shape.sinks[head], lse);
    if (item.order == SumOrder::kFastest) {
      factor *= of_sink;
      of_sink = 1;
    }
    for (int d = 0; d < shape.head_dim; ++d)
      out[d] = tile.sums[r * tile.dim + d] * factor * of_sink;
    if (item.lse)
      item.lse[r] = lse;
    else if (sequence.lse)
      sequence.lse[token * shape.num_heads + head] = lse;
  }
}

}  // namespace
}  // namespace sluice::kernels
