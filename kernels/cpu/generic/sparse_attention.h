#pragma once
// Attention to the positions with the highest scores alone: all keys are scored first, then the
// values of the kept positions are read, compacted chunk by chunk.
#include "kernels/cpu/generic/quantised_attention.h"

namespace sluice::kernels {
namespace {

// How many of n numbers (whole vectors) are `least` or larger.
inline int count_from(const int32_t* numbers, int n, int32_t least) {
  VecI below = {};
  for (int i = 0; i < n; i += kLanes) {
    VecI v;
    __builtin_memcpy(&v, numbers + i, sizeof v);
    below += v < least;  // -1 where it is
  }
  int count = n;
  for (int lane = 0; lane < kLanes; ++lane) count += below[lane];
  return count;
}

// The k-th largest of n floats (k from 1), found bit by bit; `numbers` has room for n and a vector.
inline float kth_largest(const float* values, int n, int k, int32_t* numbers) {
  const auto flip = [](int32_t bits) {
    return bits < 0 ? bits ^ 0x7fffffff : bits;
  };  // in the order of the floats, and back
  int32_t bits;
  for (int i = 0; i < n; ++i) {
    __builtin_memcpy(&bits, values + i, 4);
    numbers[i] = flip(bits);
  }
  const int whole = (n + kLanes - 1) / kLanes * kLanes;
  for (int i = n; i < whole; ++i) numbers[i] = INT32_MIN;  // less than any float
  int32_t least = count_from(numbers, whole, 0) >= k ? 0 : INT32_MIN;
  for (int bit = 30; bit >= 0; --bit)
    if (const int32_t higher = least | 1 << bit; count_from(numbers, whole, higher) >= k)
      least = higher;
  bits = flip(least);
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

// Of the scores that equal the threshold, all but the first `kept` less those above it become
// nothing.
inline void drop_excess(float* scores, int n, float threshold, int kept) {
  for (int t = 0; t < n; ++t) kept -= scores[t] > threshold;
  for (int t = 0; t < n; ++t)
    if (scores[t] == threshold && kept-- <= 0) scores[t] = -__builtin_inff();
}

// A row's scores to weights: 0 for all but the kept ones.
inline void keep_highest(const AttentionShape& shape, const AttentionTile& tile, int row, int first,
                         int last, int total) {
  float* scores = tile.all + int64_t{row} * tile.all_stride;
  for (int t = 0; t < first; ++t) scores[t] = 0;
  for (int t = last; t < total; ++t) scores[t] = 0;
  const int visible = last - first;
  if (visible <= 0) return;
  scores += first;
  const int kept = kept_positions(shape, visible);
  const float maximum = max_range(scores, visible);
  float threshold = -__builtin_inff();
  if (kept < visible) {
    threshold = kth_largest(scores, visible, kept, reinterpret_cast<int32_t*>(tile.order));
    int reach = 0;
    for (int t = 0; t < visible; ++t) reach += scores[t] >= threshold;
    if (reach > kept) drop_excess(scores, visible, threshold, kept);
  }
  VecF sums = {};
  int t = 0;
  for (; t + kLanes <= visible; t += kLanes) {
    const VecF score = load(scores + t);
    const VecF p = score >= splat(threshold) ? exp_vec(score - maximum) : VecF{};
    store(scores + t, p);
    sums += p;
  }
  float sum = sum_lanes(sums);
  for (; t < visible; ++t) {
    scores[t] = scores[t] >= threshold ? exp_one(scores[t] - maximum) : 0.0f;
    sum += scores[t];
  }
  tile.maxima[row] = maximum;
  tile.weights[row * kAttentionLanes] = sum;  // the only one
}

// The largest weight of any row for each position of a chunk, 0 where none keeps it.
inline void find_kept(const AttentionTile& tile, int first, int count,
                      float (&out)[kAttentionChunk]) {
  for (int t = 0; t < kAttentionChunk; t += kLanes) {
    VecF largest = {};
    for (int r = 0; r < tile.rows; ++r)
      largest = max_of(load(tile.all + int64_t{r} * tile.all_stride + first + t), largest);
    store(out + t, largest);
  }
  for (int t = count; t < kAttentionChunk; ++t) out[t] = 0;
}

// There is little to do to each chunk's values: so many chunks' come early.
constexpr int kKeptAhead = 4;

// Brings the values that a chunk keeps, and their scales, into the cache; its first position is
// `first` behind the item's.
[[gnu::always_inline]] inline void fetch_kept(const AttentionShape& shape,
                                              const AttentionSequence& sequence,
                                              const AttentionItem& item, int first,
                                              const AttentionTile& tile) {
  const int32_t begin = item.position_begin + first;
  const int32_t left = item.position_end - begin;
  if (left <= 0) return;
  const int count = left < kAttentionChunk ? left : static_cast<int>(kAttentionChunk);
  float largest[kAttentionChunk];
  find_kept(tile, first, count, largest);
  const HeadLayout layout = layout_of(shape);
  const int64_t value_head = places_of(layout, item.kv_head).value;
  const int together = shape.kv_dtype.is_quantised() ? static_cast<int>(KvFormat::kValueBlock) : 1;
  const bool first_level = tile.fetch->into_first_level;
  const auto fetch = [&](const char* from, int64_t bytes) __attribute__((always_inline)) {
    for (int64_t i = 0; i < bytes; i += FetchAhead::kLine) fetch_line_at(from + i, first_level);
  };
  const PagePlace place{begin / shape.page_tokens, begin % shape.page_tokens};
  over_pages(
      shape, sequence, place, count,
      [&](const char* page, int32_t in_page, int t, int length) __attribute__((always_inline)) {
        const char* const rows = page + value_head;
        fetch(rows + shape.page_tokens * layout.value_bytes, layout.scale_bytes);
        for (int i = 0; i < length; i += together) {
          float most = 0;
          for (int k = i; k < i + together && k < length; ++k) most += largest[t + k];
          if (most != 0)
            fetch(rows + (in_page + i) * layout.value_bytes, together * layout.value_bytes);
        }
      });
}

inline void clear_scores(const AttentionTile& tile, int begin) {
  for (int r = 0; r < tile.rows; ++r)
    for (int t = begin; t < kAttentionChunk; ++t) tile.scores[r * kAttentionChunk + t] = 0;
}

// Brings the positions of a chunk that any row keeps to its front; how many there are.
inline int compact(AttentionTile& tile, int first, int count) {
  float largest[kAttentionChunk];
  find_kept(tile, first, count, largest);
  int kept = 0;
  for (int t = 0; t < count; ++t) {
    if (largest[t] == 0) continue;
    for (int r = 0; r < tile.rows; ++r)
      tile.scores[r * kAttentionChunk + kept] = tile.all[int64_t{r} * tile.all_stride + first + t];
    tile.value_rows[kept++] = tile.value_rows[t];
  }
  clear_scores(tile, kept);
  return kept;
}

// The same of codes, four positions at a time.
inline int compact_quads(AttentionTile& tile, int first, int count) {
  float largest[kAttentionChunk];
  find_kept(tile, first, count, largest);
  int kept = 0;
  for (int quad = 0; quad * 4 < count; ++quad) {
    const int t = quad * 4;
    if (largest[t] + largest[t + 1] + largest[t + 2] + largest[t + 3] == 0) continue;
    const int to = kept * 4;
    for (int r = 0; r < tile.rows; ++r) {
      float* const scores = tile.scores + r * kAttentionChunk + to;
      __builtin_memcpy(scores, tile.all + int64_t{r} * tile.all_stride + first + t,
                       4 * sizeof(float));
      for (int i = count - t; i < 4; ++i) scores[i] = 0;  // past the context
    }
    const char* const scales =
        tile.now.value_scales[t / KvFormat::kKeyBlock] + t % KvFormat::kKeyBlock * kHalf;
    for (int kind = 0; kind < 2 * tile.groups; ++kind)
      __builtin_memcpy(tile.gathered_scales[1][kind / 2][kind % 2] + to * kHalf,
                       scales + kind * tile.now.scale_stride, 4 * kHalf);
    tile.now.values[kept++] = tile.now.values[quad];
  }
  clear_scores(tile, kept * 4);
  if (kept * 4 < kAttentionChunk) {
    for (int kind = 0; kind < 2 * tile.groups; ++kind)
      __builtin_memset(tile.gathered_scales[1][kind / 2][kind % 2] + kept * 4 * kHalf, 0,
                       static_cast<size_t>((kAttentionChunk - kept * 4) * kHalf));
  }
  use_gathered_scales(tile);
  return kept * 4;
}

// find(begin, count) sets the rows of a chunk, score(count) its scores, weigh(count) adds its
// weighted values.
template <typename Find, typename Score, typename Weigh>
void attend_highest(const AttentionShape& shape, const AttentionSequence& sequence,
                    const AttentionItem& item, AttentionTile& tile, const Find& find,
                    const Score& score, const Weigh& weigh) {
  const int total = item.position_end - item.position_begin;
  const auto over_chunks = [&](const auto& work) {
    for (int at = 0; at < total; at += static_cast<int>(kAttentionChunk)) {
      const int count =
          total - at < kAttentionChunk ? total - at : static_cast<int>(kAttentionChunk);
      find(item.position_begin + at, count);
      work(at, count);
    }
  };
  over_chunks([&](int at, int count) {
    score(count);
    for (int r = 0; r < tile.rows; ++r)
      for (int t = 0; t < count; ++t)
        tile.all[int64_t{r} * tile.all_stride + at + t] = tile.scores[r * kAttentionChunk + t];
  });
  const int group = shape.num_heads / shape.num_kv_heads;
  for (int r = 0; r < tile.rows; ++r) {
    const int32_t position = sequence.first_position + item.token_begin + r / group;
    adjust_scores(shape, item.kv_head * group + r % group, position, item.position_begin,
                  tile.all + int64_t{r} * tile.all_stride, total);
    const auto [first, last] = visible_range(shape, position, item.position_begin, total);
    keep_highest(shape, tile, r, first, last, total);
  }
  tile.has_scores = true;
  over_chunks([&](int at, int count) {
    const int kept =
        shape.kv_dtype.is_quantised() ? compact_quads(tile, at, count) : compact(tile, at, count);
    fetch_kept(shape, sequence, item, at + kKeptAhead * count, tile);
    if (kept > 0) weigh(kept);
  });
}

template <typename From>
void attend_highest_plain(const AttentionShape& shape, const AttentionSequence& sequence,
                          const AttentionItem& item, AttentionTile& tile) {
  const auto find = [&](int32_t begin, int count) {
    find_plain_rows(shape, sequence, item.kv_head, begin, count, tile);
  };
  if (tile.dim == shape.head_dim) {
    attend_highest(
        shape, sequence, item, tile, find, [&](int count) { score_rows<From>(tile, count); },
        [&](int count) { weigh_rows<From>(tile, count); });
    return;
  }
  const auto find_padded = [&](int32_t begin, int count) {
    find(begin, count);
    pad_rows<From>(shape, tile);
  };
  attend_highest(
      shape, sequence, item, tile, find_padded,
      [&](int count) { score_rows<FromF32>(tile, count); },
      [&](int count) { weigh_rows<FromF32>(tile, count); });
}

template <typename KeyCodes, typename ValueCodes>
void attend_highest_codes(const AttentionShape& shape, const AttentionSequence& sequence,
                          const AttentionItem& item, AttentionTile& tile) {
  attend_highest(
      shape, sequence, item, tile,
      [&](int32_t begin, int count) {
        find_codes(shape, sequence, item.kv_head, begin, count, tile);
      },
      [&](int count) { score_code_rows<KeyCodes>(tile, count); },
      [&](int count) { weigh_code_rows<ValueCodes>(tile, count); });
}

}  // namespace
}  // namespace sluice::kernels
