#pragma once
// Attention to plain K and V: online softmax over chunks of positions, f32 throughout. Two ways:
// few rows (decode) take K and V from the pages as they lie, bound by their bytes; many rows
// (prefill) turn each chunk of K once and multiply in register tiles, bound by multiply-adds.
#include "kernels/cpu/generic/attention_tile.h"
#include "kernels/cpu/generic/linear.h"
#include "kernels/cpu/generic/rows.h"

namespace sluice::kernels {
namespace {

// Register tile of the many: rows x 2 vectors.
constexpr int kQueryTile = kTileRows;

// Where the K and V of positions [begin, begin + count) lie; past the end, the last one's.
inline void find_plain_rows(const AttentionShape& shape, const AttentionSequence& sequence,
                            int kv_head, int32_t begin, int count, AttentionTile& tile) {
  const HeadLayout layout = layout_of(shape);
  const HeadPlaces heads = places_of(layout, kv_head);
  const PagePlace place = place_of(shape, begin, begin + count, tile);
  over_pages(shape, sequence, place, count,
             [&](const char* page, int32_t in_page, int t, int length) {
               const char* const keys = page + heads.key + in_page * layout.key_bytes;
               const char* const values = page + heads.value + in_page * layout.value_bytes;
               for (int i = 0; i < length; ++i) {
                 tile.key_rows[t + i] = keys + i * layout.key_bytes;
                 tile.value_rows[t + i] = values + i * layout.value_bytes;
               }
             });
  for (int t = count; t < kAttentionChunk; ++t) {
    tile.key_rows[t] = tile.key_rows[count - 1];
    tile.value_rows[t] = tile.value_rows[count - 1];
  }
  plan_next(shape, sequence, layout, kv_head, tile);
}

template <typename From>
inline void widen_row(const char* row, int head_dim, int dim, float* to) {
  widen<From>(row, to, head_dim);
  for (int d = head_dim; d < dim; ++d) to[d] = 0;
}

// scores of R rows (first ..) x kLanes / R positions (t ..), each K element widened once.
template <typename From, int R>
inline void score_few(const AttentionTile& tile, int first, int t) {
  constexpr int kPositions = kLanes / R;
  VecF sums[kLanes] = {};
  const float* q = tile.q + first * tile.dim;
  for (int d = 0; d < tile.dim; d += kLanes) {
    tile.fetch->after(kLanes);
    VecF queries[R];
    for (int r = 0; r < R; ++r) queries[r] = load(q + r * tile.dim + d);
    for (int p = 0; p < kPositions; ++p) {
      const VecF key = From::vec(tile.key_rows[t + p] + d * From::kBytes);
      for (int r = 0; r < R; ++r) sums[r * kPositions + p] += queries[r] * key;
    }
  }
  tile.fetch->catch_up();
  float lanes[kLanes];
  store(lanes, sum_each(sums));
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < kPositions; ++p)
      tile.scores[(first + r) * kAttentionChunk + t + p] = lanes[r * kPositions + p];
}

template <typename From, int R>
inline void score_few_rows(const AttentionTile& tile, int first, int count) {
  for (int t = 0; t < count; t += kLanes / R) score_few<From, R>(tile, first, t);
}

// sums of R rows += scores x V, V vectors of head_dim at a time, each V element widened once.
template <typename From, int R, int V>
inline void weigh_few(const AttentionTile& tile, int first, int d, int count) {
  VecF sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      sums[r][v] = load(tile.sums + (first + r) * tile.dim + d + v * kLanes);
  for (int t = 0; t < count; ++t) {
    const char* row = tile.value_rows[t] + d * From::kBytes;
    tile.fetch->after(R * V);
    VecF weights[R];
    for (int r = 0; r < R; ++r) weights[r] = splat(tile.scores[(first + r) * kAttentionChunk + t]);
    for (int v = 0; v < V; ++v) {
      const VecF value = From::vec(row + v * kLanes * From::kBytes);
      for (int r = 0; r < R; ++r) sums[r][v] += weights[r] * value;
    }
  }
  tile.fetch->catch_up();
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      store(tile.sums + (first + r) * tile.dim + d + v * kLanes, sums[r][v]);
}

template <typename From, int R>
inline void weigh_few_rows(const AttentionTile& tile, int first, int count) {
  constexpr int kVectors = kLanes == 16 ? (R >= 4 ? 4 : 8) : (R >= 4 ? 2 : 4);
  int d = tile.value_begin;
  for (; d + kVectors * kLanes <= tile.dim; d += kVectors * kLanes)
    weigh_few<From, R, kVectors>(tile, first, d, count);
  for (; d < tile.dim; d += kLanes) weigh_few<From, R, 1>(tile, first, d, count);
}

// scores[r][t] = q[r] . keys[t] over a turned chunk, R rows x 2 vectors of positions at a time.
template <int R>
inline void score_many(const AttentionTile& tile, int first, int t) {
  VecF sums[R][2] = {};
  const float* q = tile.q + first * tile.dim;
  const float* keys = tile.keys + t;
  for (int d = 0; d < tile.dim; ++d) {
    const VecF low = load(keys + d * kAttentionChunk);
    const VecF high = load(keys + d * kAttentionChunk + kLanes);
    for (int r = 0; r < R; ++r) {
      const VecF v = splat(q[r * tile.dim + d]);
      sums[r][0] += v * low;
      sums[r][1] += v * high;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half)
      store(tile.scores + (first + r) * kAttentionChunk + t + half * kLanes, sums[r][half]);
}

// sums of R rows x V vectors += scores x values.
template <int R, int V>
inline void weigh_many(const AttentionTile& tile, int first, int d, int count) {
  VecF sums[R][V];
  float* at = tile.sums + first * tile.dim + d;
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < V; ++i) sums[r][i] = load(at + r * tile.dim + i * kLanes);
  const float* weights = tile.scores + first * kAttentionChunk;
  for (int t = 0; t < count; ++t) {
    VecF values[V];
    for (int i = 0; i < V; ++i) values[i] = load(tile.values + t * tile.dim + d + i * kLanes);
    for (int r = 0; r < R; ++r) {
      const VecF weight = splat(weights[r * kAttentionChunk + t]);
      for (int i = 0; i < V; ++i) sums[r][i] += weight * values[i];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < V; ++i) store(at + r * tile.dim + i * kLanes, sums[r][i]);
}

// Calls tile(Count<R>, first) over all rows, the largest R that fits first.
template <typename Tile>
inline void over_query_tiles(int rows, const Tile& tile) {
  int r = 0;
  for (; r + kQueryTile <= rows; r += kQueryTile) tile(Count<kQueryTile>{}, r);
  if constexpr (kQueryTile > 6)
    for (; r + 6 <= rows; r += 6) tile(Count<6>{}, r);
  if constexpr (kQueryTile > 3)
    for (; r + 3 <= rows; r += 3) tile(Count<3>{}, r);
  for (; r < rows; ++r) tile(Count<1>{}, r);
}

// Work of a row's weights.
constexpr int64_t kSoftenWork = 16 * (kAttentionChunk / kLanes);

// Scores of one row to weights e^(score - max), and everything before brought to the new maximum.
inline void soften_row(const AttentionTile& tile, int row, int visible_begin, int visible_end) {
  constexpr int kVectors = static_cast<int>(kAttentionChunk / kLanes);
  float* scores = tile.scores + row * kAttentionChunk;
  const float nothing = -__builtin_inff();
  if (visible_begin >= visible_end) {
    for (int t = 0; t < kAttentionChunk; ++t) scores[t] = 0;
    return;
  }
  for (int t = 0; t < visible_begin; ++t) scores[t] = nothing;
  for (int t = visible_end; t < kAttentionChunk; ++t) scores[t] = nothing;
  VecF largest = load(scores);
  for (int i = 1; i < kVectors; ++i) largest = max_of(load(scores + i * kLanes), largest);
  const float before = tile.maxima[row];
  const float now = max_lane(largest);
  float maximum = before;  // seldom another: what follows need not wait for it
  VecF sum = load(tile.weights + row * kAttentionLanes);
  if (now > before) {
    maximum = now;
    const float factor = exp_one(before - maximum);
    sum *= splat(factor);
    scale_range(tile.sums + row * tile.dim, factor, tile.dim);
    scale_range(tile.added + row * tile.added_stride, factor, tile.added_stride);
    tile.maxima[row] = maximum;
  }
  for (int i = 0; i < kVectors; ++i) {
    if (i % 2 == 0) tile.fetch->after(kSoftenWork / kVectors * 2);
    const VecF p = exp_vec(load(scores + i * kLanes) - maximum);
    store(scores + i * kLanes, p);
    sum += p;
  }
  store(tile.weights + row * kAttentionLanes, sum);
  tile.fetch->catch_up();
}

// Positions of [begin, begin + count) that a token at `position` attends to, from `begin` on.
struct VisibleRange {
  int first, last;
};
inline int32_t oldest_seen(const AttentionShape& shape, int32_t position) {
  if (shape.is_chunked) return position / shape.sliding_window * shape.sliding_window;
  return shape.sliding_window > 0 ? position - shape.sliding_window + 1 : 0;
}
inline VisibleRange visible_range(const AttentionShape& shape, int32_t position, int32_t begin,
                                  int count) {
  const int32_t oldest = oldest_seen(shape, position);
  int last = position + 1 - begin;
  last = last < 0 ? 0 : last > count ? count : last;
  int first = oldest - begin;
  first = first < 0 ? 0 : first > last ? last : first;
  return {first, last};
}

// What heads do to scaled scores of positions from `first` on, of a query at `position`
// (AttentionShape): near keys have small distances, so nothing is lost however long the context.
inline void adjust_scores(const AttentionShape& shape, int head, int32_t position, int32_t first,
                          float* scores, int count) {
  if (shape.soft_cap > 0) soft_cap_range(scores, shape.soft_cap, count);
  if (!shape.slopes) return;
  const float slope = shape.slopes[head];
  if (shape.rounds_slopes) {
    const float own = slope * static_cast<float>(position);
    for (int t = 0; t < count; ++t) {
      const float rounded = bf16_to_f32(f32_to_bf16(slope * static_cast<float>(first + t)));
      scores[t] += shape.scale * (rounded - own);
    }
    return;
  }
  for (int t = 0; t < count; ++t) scores[t] += slope * static_cast<float>(first + t - position);
}

inline void soften(const AttentionShape& shape, const AttentionSequence& sequence,
                   const AttentionItem& item, const AttentionTile& tile, int32_t begin, int count) {
  const int group = shape.num_heads / shape.num_kv_heads;
  int32_t position = sequence.first_position + item.token_begin;
  for (int r = 0; r < tile.rows; r += group, ++position) {
    const auto [first, last] = visible_range(shape, position, begin, count);
    for (int i = 0; i < group; ++i) {
      adjust_scores(shape, item.kv_head * group + i, position, begin,
                    tile.scores + (r + i) * kAttentionChunk, kAttentionChunk);
      soften_row(tile, r + i, first, last);
    }
  }
}

template <typename From>
inline void score_rows(const AttentionTile& tile, int count) {
  int r = 0;
  for (; r + 4 <= tile.rows; r += 4) score_few_rows<From, 4>(tile, r, count);
  for (; r + 2 <= tile.rows; r += 2) score_few_rows<From, 2>(tile, r, count);
  for (; r < tile.rows; ++r) score_few_rows<From, 1>(tile, r, count);
}

template <typename From>
inline void weigh_rows(const AttentionTile& tile, int count) {
  int r = 0;
  for (; r + 4 <= tile.rows; r += 4) weigh_few_rows<From, 4>(tile, r, count);
  for (; r + 2 <= tile.rows; r += 2) weigh_few_rows<From, 2>(tile, r, count);
  for (; r < tile.rows; ++r) weigh_few_rows<From, 1>(tile, r, count);
}

template <typename From>
void chunk_of_few(const AttentionShape& shape, const AttentionSequence& sequence,
                  const AttentionItem& item, const AttentionTile& tile, int32_t begin, int count) {
  score_rows<From>(tile, count);
  soften(shape, sequence, item, tile, begin, count);
  weigh_rows<From>(tile, count);
}

// All rows with tile.keys.
inline void score_many_rows(const AttentionTile& tile) {
  for (int t = 0; t < kAttentionChunk; t += 2 * kLanes)
    over_query_tiles(tile.rows,
                     [&](auto size, int r) { score_many<decltype(size)::kValue>(tile, r, t); });
}

// And with tile.values.
inline void weigh_many_rows(const AttentionTile& tile, int count) {
  int d = tile.value_begin;
  for (; d + 2 * kLanes <= tile.dim; d += 2 * kLanes)
    over_query_tiles(tile.rows, [&](auto size, int r) {
      weigh_many<decltype(size)::kValue, 2>(tile, r, d, count);
    });
  for (; d < tile.dim; d += kLanes)
    over_query_tiles(tile.rows, [&](auto size, int r) {
      weigh_many<decltype(size)::kValue, 1>(tile, r, d, count);
    });
}

template <typename From>
void chunk_of_many(const AttentionShape& shape, const AttentionSequence& sequence,
                   const AttentionItem& item, const AttentionTile& tile, int32_t begin, int count) {
  for (int t = 0; t < kAttentionChunk; t += kLanes)
    for (int d = 0; d < tile.dim; d += kLanes)
      turn<From>(tile.key_rows + t, d * From::kBytes, tile.keys + d * kAttentionChunk + t,
                 kAttentionChunk);
  score_many_rows(tile);
  soften(shape, sequence, item, tile, begin, count);
  for (int t = 0; t < count; ++t)
    widen<From>(tile.value_rows[t], tile.values + t * tile.dim, tile.dim);
  weigh_many_rows(tile, count);
}

// All chunks of an item whose head_dim is whole vectors.
template <typename From>
void attend_direct(const AttentionShape& shape, const AttentionSequence& sequence,
                   const AttentionItem& item, AttentionTile& tile) {
  for (int32_t begin = item.position_begin; begin < item.position_end; begin += kAttentionChunk) {
    const int32_t left = item.position_end - begin;
    const int count = left < kAttentionChunk ? left : static_cast<int>(kAttentionChunk);
    find_plain_rows(shape, sequence, item.kv_head, begin, count, tile);
    if (takes_many_rows(item, tile))
      chunk_of_many<From>(shape, sequence, item, tile, begin, count);
    else
      chunk_of_few<From>(shape, sequence, item, tile, begin, count);
  }
}

// A chunk's rows widened and padded with zeros to whole vectors.
template <typename From>
inline void pad_rows(const AttentionShape& shape, AttentionTile& tile) {
  for (int t = 0; t < kAttentionChunk; ++t) {
    float* key = tile.keys + t * tile.dim;
    float* value = tile.values + t * tile.dim;
    widen_row<From>(tile.key_rows[t], shape.head_dim, tile.dim, key);
    widen_row<From>(tile.value_rows[t], shape.head_dim, tile.dim, value);
    tile.key_rows[t] = reinterpret_cast<const char*>(key);
    tile.value_rows[t] = reinterpret_cast<const char*>(value);
  }
}

// The same where head_dim is not: each chunk is widened and padded with zeros first.
template <typename From>
void attend_padded(const AttentionShape& shape, const AttentionSequence& sequence,
                   const AttentionItem& item, AttentionTile& tile) {
  for (int32_t begin = item.position_begin; begin < item.position_end; begin += kAttentionChunk) {
    const int32_t left = item.position_end - begin;
    const int count = left < kAttentionChunk ? left : static_cast<int>(kAttentionChunk);
    find_plain_rows(shape, sequence, item.kv_head, begin, count, tile);
    pad_rows<From>(shape, tile);
    chunk_of_few<FromF32>(shape, sequence, item, tile, begin, count);
  }
}

}  // namespace
}  // namespace sluice::kernels
