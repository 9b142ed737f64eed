#include "kernels/cuda/attention.h"
#include "kernels/cuda/kv_kind.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/rotate_head.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
constexpr int kWriteThreads = 128;

template <KvKind kKind>
SLUICE_DEVICE void write_quantised(const kernels::AttentionShape& shape, const float* from,
                                   bool is_value, std::byte* head, int in_page) {
  constexpr bool kIsInt8 = kKind == KvKind::kInt8;
  constexpr float kLevels = kIsInt8 ? 255.0f : 15.0f;
  constexpr int kGroup = static_cast<int>(KvFormat::kGroup);
  const int head_dim = shape.head_dim;
  const int code_bytes = code_bytes_of<kKind>(head_dim);
  auto* scales =
      reinterpret_cast<uint16_t*>(head + static_cast<int64_t>(shape.page_tokens) * code_bytes);
  const auto put = [&](int byte, int code) {
    head[code_offset(is_value, code_bytes, shape.page_tokens, in_page, byte)] =
        static_cast<std::byte>(code);
  };
  for (int begin = 0; begin < head_dim; begin += kGroup) {
    // Two elements a lane, kWarp apart: those that a 4-bit byte holds are 16 apart.
    float value[2];
    float low = 3e38f, high = -3e38f;
    for (int i = 0; i < 2; ++i) {
      const int d = begin + i * kWarp + lane_index();
      value[i] = d < head_dim ? from[d] : 0.0f;
      if (d >= head_dim) continue;
      low = value[i] < low ? value[i] : low;
      high = value[i] > high ? value[i] : high;
    }
    low = -warp_max(-low);
    high = warp_max(high);
    const auto clamp = [](float x, float least, float most) {
      return x < least ? least : x > most ? most : x;
    };
    const uint16_t minimum = float_to_half(clamp(low, -65504.0f, 65504.0f));
    const float base = half_to_float(minimum);
    const uint16_t scale = float_to_half(clamp((high - base) / kLevels, 0x1p-14f, 65504.0f));
    const float inverse = 1.0f / half_to_float(scale);
    int code[2];
    for (int i = 0; i < 2; ++i)
      code[i] =
          static_cast<int>(clamp(floor_of((value[i] - base) * inverse + 0.5f), 0.0f, kLevels));
    for (int i = 0; i < 2; ++i) {
      const int d = begin + i * kWarp + lane_index();
      if (kIsInt8) {
        if (d < head_dim) put(d, code[i]);
        continue;
      }
      const int upper = shuffle(code[i], lane_index() % 16 + 16);
      const int block = begin + i * kWarp;
      if (lane_index() < 16 && block < head_dim)
        put(block / 2 + lane_index(),
            (d < head_dim ? code[i] : 0) | (d + 16 < head_dim ? upper << 4 : 0));
    }
    if (lane_index() == 0) {
      scales[int64_t{begin} / kGroup * 2 * shape.page_tokens + in_page] = scale;
      scales[(int64_t{begin} / kGroup * 2 + 1) * shape.page_tokens + in_page] = minimum;
    }
  }
}

SLUICE_DEVICE void rotate_head(float* head, const Rotation& rotation, float position) {
  const int half = rotation.rotary_dim / 2;
  for (int pair = lane_index(); pair < half; pair += kWarp)
    rotate_pair(head, pair, half, rotation.layout, position, rotation.inverse_frequencies[pair],
                rotation.factor);
}

// A warp has a head of K or V of a row, or one of Q that is rotated; a block has several of a row.
template <KvKind kKind>
SLUICE_KERNEL(kWriteThreads)
kv_write_kernel(kernels::AttentionShape shape, int64_t key_bytes, int64_t value_bytes, float* k,
                const float* v, int64_t stride, const KvPlace* places, int64_t page_offset,
                Rotation rotation) {
  const int64_t row = block_x();
  const KvPlace place = places[row];
  const bool rotates = rotation.rotary_dim > 0;
  const float position = rotates ? static_cast<float>(rotation.positions[row]) : 0.0f;
  const int parts = shape.has_values ? 2 : 1;  // of a KV head
  const int kv_heads = parts * shape.num_kv_heads;
  const int heads = kv_heads + (rotates ? shape.num_heads : 0);
  const int i = block_y() * (kWriteThreads / kWarp) + warp_index();
  if (i >= heads) return;
  if (i >= kv_heads)
    return rotate_head(rotation.q + row * stride + int64_t{i - kv_heads} * shape.head_dim, rotation,
                       position);
  const int64_t at = row * stride + int64_t{i / parts} * shape.head_dim;
  const bool is_key = i % parts == 0;
  if (is_key && rotates) {
    rotate_head(k + at, rotation, position);
    warp_sync();  // a lane writes what others rotated
  }
  if (!place.page) return;
  const float* from = is_key ? k + at : v + at;
  std::byte* head =
      place.page + page_offset + i / parts * (key_bytes + value_bytes) + (is_key ? 0 : key_bytes);
  if constexpr (kKind != KvKind::kF16 && kKind != KvKind::kBF16) {
    if (is_key)
      write_quantised<kKeysOf<kKind>>(shape, from, false, head, place.in_page);
    else
      write_quantised<kValuesOf<kKind>>(shape, from, true, head, place.in_page);
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(head) + int64_t{place.in_page} * shape.head_dim;
  for (int d = lane_index(); d < shape.head_dim; d += kWarp)
    to[d] = kKind == KvKind::kBF16 ? float_to_bf16(from[d]) : float_to_half(from[d]);
}
}  // namespace

void kv_write(const kernels::AttentionShape& shape, float* k, const float* v, int64_t stride,
              const KvPlace* places, int64_t page_offset, int64_t rows, const Rotation& rotation,
              Stream stream) {
  if (rows == 0) return;
  const int64_t key_bytes = shape.page_tokens * shape.kv_dtype.keys().row_bytes(shape.head_dim);
  const int64_t value_bytes = shape.head_bytes() - key_bytes;  // of a head in a page
  const int heads = shape.page_heads() + (rotation.rotary_dim > 0 ? shape.num_heads : 0);
  constexpr int kHeads = kWriteThreads / kWarp;  // of a block
  const auto run = [&](auto kernel) {
    launch("kv_write", kernel, {static_cast<int>(rows), (heads + kHeads - 1) / kHeads},
           kWriteThreads, 0, stream, shape, key_bytes, value_bytes, k, v, stride, places,
           page_offset, rotation);
  };
  switch (kind_of(shape.kv_dtype)) {
    case KvKind::kF16: return run(kv_write_kernel<KvKind::kF16>);
    case KvKind::kBF16: return run(kv_write_kernel<KvKind::kBF16>);
    case KvKind::kInt8: return run(kv_write_kernel<KvKind::kInt8>);
    case KvKind::kInt4: return run(kv_write_kernel<KvKind::kInt4>);
    case KvKind::kInt8Int4: return run(kv_write_kernel<KvKind::kInt8Int4>);
  }
}

}  // namespace sluice::cuda
