#pragma once
// Attention to K and V in 8 or 4 bits, turned as src/base/kv_format.h says: a 32-bit lane holds
// four elements of one position of K, or one element of four positions of V. Few rows: codes are
// widened in registers, a group's scale is applied to the sum over it (K) or to the weights (V),
// minima to sums of the queries or weights. Many rows: each chunk is widened into the cache first.
#include "kernels/cpu/generic/plain_attention.h"

namespace sluice::kernels {
namespace {

// Which elements the bytes of a row of codes hold, kHalves of each, and a byte of every lane as
// f32.
struct Codes8 {
  static constexpr int kHalves = 1;
  static int64_t bytes(int dim) { return dim; }
  static int element(int byte, int) { return byte; }
  static VecF at(VecU words, int byte, int) {
    return __builtin_convertvector((VecI)(words >> (8 * byte) & 255u), VecF);
  }
};
struct Codes4 {
  static constexpr int kHalves = 2;
  static int64_t bytes(int dim) { return (dim + 31) / 32 * 16; }
  static int element(int byte, int half) { return byte / 16 * 32 + half * 16 + byte % 16; }
  static VecF at(VecU words, int byte, int half) { return nibbles(words >> (8 * byte + 4 * half)); }
};
inline VecU load_words(const char* p) {
  VecU words;
  __builtin_memcpy(&words, p, sizeof words);
  return words;
}

// Scales and minima of a group at kLanes positions from t on.
struct GroupScales {
  VecF scale, minimum;
};
inline GroupScales group_scales(const AttentionTile& tile, const char* const (&blocks)[kKeyBlocks],
                                int group, int t) {
  constexpr int kBlock = static_cast<int>(KvFormat::kKeyBlock);
  const char* at = blocks[t / kBlock] + t % kBlock * kHalf + 2 * group * tile.now.scale_stride;
  return {load_f16(at), load_f16(at + tile.now.scale_stride)};
}

// Where in a page the codes of a head begin, and its scales.
struct HeadCodes {
  int64_t key, value;
  int64_t key_scales, value_scales;
  int64_t key_bytes, value_bytes;  // of a row
};

// Blocks of positions [begin, begin + count), 16 positions of keys and four of values each; past
// the end, the last ones.
inline void find_blocks(const AttentionShape& shape, const AttentionSequence& sequence,
                        const HeadCodes& head, PagePlace place, int count, CodeBlocks& to) {
  auto [page, in_page] = place;
  for (int block = 0; block < kKeyBlocks; ++block) {
    const char* at = reinterpret_cast<const char*>(sequence.pages[page]);
    to.keys[block] = at + head.key + in_page * head.key_bytes;
    for (int quad = 0; quad < kQuadsOfBlock; ++quad)
      to.values[block * kQuadsOfBlock + quad] =
          at + head.value + (in_page + quad * KvFormat::kValueBlock) * head.value_bytes;
    to.key_scales[block] = at + head.key_scales + in_page * kHalf;
    to.value_scales[block] = at + head.value_scales + in_page * kHalf;
    if ((block + 1) * KvFormat::kKeyBlock >= count) {
      for (int rest = block + 1; rest < kKeyBlocks; ++rest) {
        to.keys[rest] = to.keys[block];
        for (int quad = 0; quad < kQuadsOfBlock; ++quad)
          to.values[rest * kQuadsOfBlock + quad] = to.values[block * kQuadsOfBlock + quad];
      }
      return;
    }
    in_page += static_cast<int32_t>(KvFormat::kKeyBlock);
    if (in_page == shape.page_tokens) ++page, in_page = 0;
  }
}

inline void use_gathered_scales(AttentionTile& tile) {
  for (int block = 0; block < kKeyBlocks; ++block) {
    tile.now.key_scales[block] =
        tile.gathered_scales[0][0][0] + block * KvFormat::kKeyBlock * kHalf;
    tile.now.value_scales[block] =
        tile.gathered_scales[1][0][0] + block * KvFormat::kKeyBlock * kHalf;
  }
  tile.now.scale_stride = sizeof tile.gathered_scales[0][0][0];
}

// Of chunks that end inside a block, or pages that do: zeros past the end.
inline void gather_scales(const AttentionShape& shape, const AttentionSequence& sequence,
                          const HeadCodes& head, PagePlace place, int count, AttentionTile& tile) {
  __builtin_memset(tile.gathered_scales, 0, sizeof tile.gathered_scales);
  const int64_t kind_bytes = shape.page_tokens * kHalf;
  over_pages(shape, sequence, place, count,
             [&](const char* page, int32_t in_page, int t, int length) {
               for (int kind = 0; kind < 2 * tile.groups; ++kind) {
                 const char* from = page + in_page * kHalf + kind * kind_bytes;
                 const auto bytes = static_cast<size_t>(length * kHalf);
                 __builtin_memcpy(tile.gathered_scales[0][kind / 2][kind % 2] + t * kHalf,
                                  from + head.key_scales, bytes);
                 __builtin_memcpy(tile.gathered_scales[1][kind / 2][kind % 2] + t * kHalf,
                                  from + head.value_scales, bytes);
               }
             });
  use_gathered_scales(tile);
}

// Of pages that are not whole blocks: the codes are gathered as if they were.
inline void gather_blocks(const AttentionShape& shape, const AttentionSequence& sequence,
                          const HeadCodes& head, int32_t begin, int count, AttentionTile& tile) {
  const int64_t key_bytes = head.key_bytes, value_bytes = head.value_bytes;
  char* const keys = tile.gathered;
  char* const values = keys + kAttentionChunk * key_bytes;
  for (int t = 0; t < count; ++t) {
    const char* page =
        reinterpret_cast<const char*>(sequence.pages[(begin + t) / shape.page_tokens]);
    const int64_t in_page = (begin + t) % shape.page_tokens;
    for (int64_t byte = 0; byte < key_bytes; ++byte)
      keys[key_code_offset(key_bytes, kAttentionChunk, t, byte)] =
          page[head.key + key_code_offset(key_bytes, shape.page_tokens, in_page, byte)];
    for (int64_t byte = 0; byte < value_bytes; ++byte)
      values[value_code_offset(value_bytes, kAttentionChunk, t, byte)] =
          page[head.value + value_code_offset(value_bytes, shape.page_tokens, in_page, byte)];
  }
  for (int block = 0; block < kKeyBlocks; ++block)
    tile.now.keys[block] = keys + block * KvFormat::kKeyBlock * key_bytes;
  for (int quad = 0; quad < kQuads; ++quad)
    tile.now.values[quad] = values + quad * KvFormat::kValueBlock * value_bytes;
}

// Where the codes of positions [begin, begin + count) lie, and their scales.
inline void find_codes(const AttentionShape& shape, const AttentionSequence& sequence, int kv_head,
                       int32_t begin, int count, AttentionTile& tile) {
  const HeadLayout layout = layout_of(shape);
  const HeadPlaces places = places_of(layout, kv_head);
  const HeadCodes head{places.key,
                       places.value,
                       places.key + shape.page_tokens * layout.key_bytes,
                       places.value + shape.page_tokens * layout.value_bytes,
                       layout.key_bytes,
                       layout.value_bytes};
  const PagePlace place = place_of(shape, begin, begin + count, tile);
  tile.groups = static_cast<int>(shape.kv_dtype.keys().groups(shape.head_dim));
  tile.now.scale_stride = shape.page_tokens * kHalf;
  if (has_whole_blocks(shape))
    find_blocks(shape, sequence, head, place, count, tile.now);
  else
    gather_blocks(shape, sequence, head, begin, count, tile);
  if (count < kAttentionChunk || !has_whole_blocks(shape))
    gather_scales(shape, sequence, head, place, count, tile);
  plan_next(shape, sequence, layout, kv_head, tile);
}

// Sums of the queries over each group: what a key's minimum is multiplied with.
inline void sum_queries(const AttentionTile& tile) {
  for (int r = 0; r < tile.rows; ++r)
    for (int begin = 0; begin < tile.dim; begin += static_cast<int>(KvFormat::kGroup)) {
      VecF sum = {};
      for (int d = begin; d < begin + KvFormat::kGroup && d < tile.dim; d += kLanes)
        sum += load(tile.q + r * tile.dim + d);
      tile.q_sums[r * kMostKvGroups + begin / KvFormat::kGroup] = sum_lanes(sum);
    }
}

// Queries beside int4 keys as kernels/attention.h defines them; `dim` with zeros behind head_dim.
inline void round_queries(float* q, int dim) {
  for (int begin = 0; begin < dim; begin += static_cast<int>(KvFormat::kGroup)) {
    const int end =
        begin + KvFormat::kGroup < dim ? begin + static_cast<int>(KvFormat::kGroup) : dim;
    VecF largest = {};
    for (int d = begin; d < end; d += kLanes)
      largest = max_of(max_of(largest, load(q + d)), -load(q + d));
    const float most = max_lane(largest);
    if (!(most > kLeastQuery)) continue;
    const VecF inverse = splat(kQueryLevels / most), step = splat(most / kQueryLevels);
    for (int d = begin; d < end; d += kLanes) store(q + d, nearest(load(q + d) * inverse) * step);
  }
}

// Scores of R rows x V vectors of positions.
template <typename Codes, int R, int V>
inline void score_few_codes(const AttentionTile& tile, int first, int t) {
  constexpr int kBlock = static_cast<int>(KvFormat::kKeyBlock);
  const int code_bytes = static_cast<int>(Codes::bytes(tile.dim));
  const int group_bytes = static_cast<int>(KvFormat::kGroup) / Codes::kHalves;
  const float* q = tile.q + first * tile.dim;
  const char* keys[V];
  for (int v = 0; v < V; ++v) {
    const int at = t + v * kLanes;
    keys[v] = tile.now.keys[at / kBlock] + at % kBlock * 4;
  }
  VecF totals[R][V] = {};
  for (int g = 0; g < tile.groups; ++g) {
    VecF sums[R][V] = {};
    const int end = (g + 1) * group_bytes < code_bytes ? (g + 1) * group_bytes : code_bytes;
    for (int byte = g * group_bytes; byte < end; byte += 4) {
      tile.fetch->after(R * V * 4 * Codes::kHalves);
      VecU words[V];
      for (int v = 0; v < V; ++v) words[v] = load_words(keys[v] + byte * kBlock);
      for (int half = 0; half < Codes::kHalves; ++half) {
        const int element = Codes::element(byte, half);
        if (element >= tile.dim) break;
        for (int i = 0; i < 4; ++i)
          for (int v = 0; v < V; ++v) {
            const VecF key = Codes::at(words[v], i, half);
            for (int r = 0; r < R; ++r) sums[r][v] += splat(q[r * tile.dim + element + i]) * key;
          }
      }
    }
    GroupScales scales[V];
    for (int v = 0; v < V; ++v)
      scales[v] = group_scales(tile, tile.now.key_scales, g, t + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const VecF q_sum = splat(tile.q_sums[(first + r) * kMostKvGroups + g]);
      for (int v = 0; v < V; ++v)
        totals[r][v] += sums[r][v] * scales[v].scale + q_sum * scales[v].minimum;
    }
  }
  tile.fetch->catch_up();
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      store(tile.scores + (first + r) * kAttentionChunk + t + v * kLanes, totals[r][v]);
}

template <typename Codes, int R>
inline void score_codes(const AttentionTile& tile, int first, int count) {
  constexpr int kVectors = R == 4 ? 2 : 4;
  for (int t = 0; t < count; t += kVectors * kLanes)
    score_few_codes<Codes, R, kVectors>(tile, first, t);
}

// sums of R rows += weights x V, V vectors of bytes from `byte` on, within one group.
template <typename Codes, int R, int V>
inline void weigh_few_codes(const AttentionTile& tile, int first, int byte, int count,
                            const float (&weights)[R][kAttentionChunk], const float (&added)[R]) {
  VecF sums[R][V][Codes::kHalves] = {};
  for (int quad = 0; quad * 4 < count; ++quad) {
    tile.fetch->after(R * V * 4 * Codes::kHalves);
    VecU words[V];
    for (int v = 0; v < V; ++v)
      words[v] = load_words(tile.now.values[quad] + (byte + v * kLanes) * 4);
    for (int i = 0; i < 4; ++i) {
      VecF factors[R];
      for (int r = 0; r < R; ++r) factors[r] = splat(weights[r][quad * 4 + i]);
      for (int v = 0; v < V; ++v)
        for (int half = 0; half < Codes::kHalves; ++half) {
          const VecF value = Codes::at(words[v], i, half);
          for (int r = 0; r < R; ++r) sums[r][v][half] += factors[r] * value;
        }
    }
  }
  tile.fetch->catch_up();
  for (int v = 0; v < V; ++v)
    for (int half = 0; half < Codes::kHalves; ++half) {
      const int element = Codes::element(byte + v * kLanes, half);
      if (element >= tile.dim) continue;
      for (int r = 0; r < R; ++r) {
        float* to = tile.sums + (first + r) * tile.dim + element;
        store(to, load(to) + sums[r][v][half] + splat(added[r]));
      }
    }
}

template <typename Codes, int R>
inline void weigh_codes(const AttentionTile& tile, int first, int count) {
  constexpr int kVectors = (R == 4 ? 2 : 4) / Codes::kHalves;
  const int code_bytes = static_cast<int>(Codes::bytes(tile.dim));
  const int group_bytes = static_cast<int>(KvFormat::kGroup) / Codes::kHalves;
  for (int g = 0; g < tile.groups; ++g) {
    float weights[R][kAttentionChunk];
    float added[R];
    for (int r = 0; r < R; ++r) {
      VecF sum = {};
      for (int t = 0; t < kAttentionChunk; t += kLanes) {
        const VecF p = load(tile.scores + (first + r) * kAttentionChunk + t);
        const auto [scale, minimum] = group_scales(tile, tile.now.value_scales, g, t);
        store(weights[r] + t, p * scale);
        sum += p * minimum;
      }
      added[r] = sum_lanes(sum);
    }
    const int end = (g + 1) * group_bytes < code_bytes ? (g + 1) * group_bytes : code_bytes;
    int byte = g * group_bytes;
    for (; byte + kVectors * kLanes <= end; byte += kVectors * kLanes)
      weigh_few_codes<Codes, R, kVectors>(tile, first, byte, count, weights, added);
    for (; byte < end; byte += kLanes)
      weigh_few_codes<Codes, R, 1>(tile, first, byte, count, weights, added);
  }
}

template <typename Codes>
inline void score_code_rows(const AttentionTile& tile, int count) {
  int r = 0;
  for (; r + 4 <= tile.rows; r += 4) score_codes<Codes, 4>(tile, r, count);
  for (; r + 2 <= tile.rows; r += 2) score_codes<Codes, 2>(tile, r, count);
  for (; r < tile.rows; ++r) score_codes<Codes, 1>(tile, r, count);
}

template <typename Codes>
inline void weigh_code_rows(const AttentionTile& tile, int count) {
  int r = 0;
  for (; r + 4 <= tile.rows; r += 4) weigh_codes<Codes, 4>(tile, r, count);
  for (; r + 2 <= tile.rows; r += 2) weigh_codes<Codes, 2>(tile, r, count);
  for (; r < tile.rows; ++r) weigh_codes<Codes, 1>(tile, r, count);
}

// A chunk's codes as f32: tile.keys [dim, chunk].
template <typename Codes>
inline void widen_keys(const AttentionTile& tile) {
  constexpr int kBlock = static_cast<int>(KvFormat::kKeyBlock);
  for (int t = 0; t < kAttentionChunk; t += kLanes)
    for (int byte = 0; byte < Codes::bytes(tile.dim); byte += 4) {
      const VecU words = load_words(tile.now.keys[t / kBlock] + t % kBlock * 4 + byte * kBlock);
      for (int half = 0; half < Codes::kHalves; ++half) {
        const int element = Codes::element(byte, half);
        if (element >= tile.dim) break;
        const int g = element / static_cast<int>(KvFormat::kGroup);
        const auto [scale, minimum] = group_scales(tile, tile.now.key_scales, g, t);
        for (int i = 0; i < 4; ++i)
          store(tile.keys + (element + i) * kAttentionChunk + t,
                Codes::at(words, i, half) * scale + minimum);
      }
    }
}

// And tile.values [chunk, dim].
template <typename Codes>
inline void widen_values(const AttentionTile& tile, int count) {
  float scales[kMostKvGroups][kAttentionChunk], minima[kMostKvGroups][kAttentionChunk];
  for (int g = 0; g < tile.groups; ++g)
    for (int t = 0; t < kAttentionChunk; t += kLanes) {
      const auto [scale, minimum] = group_scales(tile, tile.now.value_scales, g, t);
      store(scales[g] + t, scale);
      store(minima[g] + t, minimum);
    }
  for (int quad = 0; quad * 4 < count; ++quad)
    for (int byte = 0; byte < Codes::bytes(tile.dim); byte += kLanes) {
      const VecU words = load_words(tile.now.values[quad] + byte * 4);
      for (int half = 0; half < Codes::kHalves; ++half) {
        const int element = Codes::element(byte, half);
        if (element >= tile.dim) break;
        const int g = element / static_cast<int>(KvFormat::kGroup);
        for (int i = 0; i < 4; ++i) {
          const int t = quad * 4 + i;
          store(tile.values + t * tile.dim + element,
                Codes::at(words, i, half) * splat(scales[g][t]) + splat(minima[g][t]));
        }
      }
    }
}

template <typename KeyCodes, typename ValueCodes>
void attend_codes(const AttentionShape& shape, const AttentionSequence& sequence,
                  const AttentionItem& item, AttentionTile& tile) {
  for (int32_t begin = item.position_begin; begin < item.position_end; begin += kAttentionChunk) {
    const int32_t left = item.position_end - begin;
    const int count = left < kAttentionChunk ? left : static_cast<int>(kAttentionChunk);
    find_codes(shape, sequence, item.kv_head, begin, count, tile);
    if (takes_many_rows(item, tile)) {
      widen_keys<KeyCodes>(tile);
      score_many_rows(tile);
      soften(shape, sequence, item, tile, begin, count);
      widen_values<ValueCodes>(tile, count);
      weigh_many_rows(tile, count);
    } else {
      score_code_rows<KeyCodes>(tile, count);
      soften(shape, sequence, item, tile, begin, count);
      weigh_code_rows<ValueCodes>(tile, count);
    }
  }
}

// One token's K or V of one head: a row of codes; scales and minima of group g at scales + g *
// stride and stride / 2 behind it.
void kv_quantise(const KvRows& format, const float* from, int head_dim, std::byte* codes,
                 std::byte* scales, int64_t stride) {
  const float levels = static_cast<float>(format.levels());
  uint8_t quantised[KvFormat::kMostHeadDim + 32] = {};
  for (int begin = 0, g = 0; begin < head_dim; begin += static_cast<int>(KvFormat::kGroup), ++g) {
    const int end =
        begin + KvFormat::kGroup < head_dim ? begin + static_cast<int>(KvFormat::kGroup) : head_dim;
    float low = from[begin], high = from[begin];
    for (int d = begin; d < end; ++d) {
      low = from[d] < low ? from[d] : low;
      high = from[d] > high ? from[d] : high;
    }
    // Codes are of the scale and minimum as stored. A scale is never zero, and never infinite.
    const uint16_t minimum = f32_to_f16(low < -65504.0f  ? -65504.0f
                                        : low > 65504.0f ? 65504.0f
                                                         : low);
    const float base = f16_to_f32(minimum);
    float wanted = (high - base) / levels;
    wanted = wanted < 0x1p-14f ? 0x1p-14f : wanted > 65504.0f ? 65504.0f : wanted;
    const uint16_t scale = f32_to_f16(wanted);
    const float inverse = 1.0f / f16_to_f32(scale);
    for (int d = begin; d < end; ++d) {
      const float code = (from[d] - base) * inverse + 0.5f;
      quantised[d] = static_cast<uint8_t>(code < 0               ? 0.0f
                                          : code > levels + 0.5f ? levels + 0.5f
                                                                 : code);
    }
    __builtin_memcpy(scales + g * stride, &scale, 2);
    __builtin_memcpy(scales + g * stride + stride / 2, &minimum, 2);
  }
  if (format.encoding == KvEncoding::kInt8) {
    __builtin_memcpy(codes, quantised, static_cast<size_t>(format.code_bytes(head_dim)));
    return;
  }
  for (int block = 0; block < (head_dim + 31) / 32; ++block)
    for (int i = 0; i < 16; ++i)
      codes[block * 16 + i] =
          static_cast<std::byte>(quantised[block * 32 + i] | quantised[block * 32 + 16 + i] << 4);
}

}  // namespace
}  // namespace sluice::kernels
