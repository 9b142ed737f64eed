#include "kernels/elementwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/variant.h"
#include "src/base/team.h"

namespace sluice::kernels {

namespace {
constexpr int64_t kBlock = 1 << 14;  // elements a thread takes at a time: 64 KiB of f32, within L2

// Calls work(begin, count) over [0, n) in blocks, on several threads when there are several blocks.
template <typename Work>
void in_blocks(int64_t n, const Work& work) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  deal_each(blocks, 2,
            [&](int64_t block) { work(block * kBlock, std::min(kBlock, n - block * kBlock)); });
}

// Rows of so many columns that a thread takes at a time, at least.
int64_t least_rows(int64_t cols) noexcept { return 2 * kBlock / std::max<int64_t>(cols, 1); }
}  // namespace

void add_inplace(float* y, const float* x, int64_t n) noexcept {
  const Variant& variant = active_variant();
  in_blocks(n, [&](int64_t begin, int64_t count) { variant.add(y + begin, x + begin, count); });
}

void activate(Activation activation, float* x, int64_t n) noexcept {
  const Variant& variant = active_variant();
  in_blocks(n, [&](int64_t begin, int64_t count) {
    variant.gate(activation, x + begin, nullptr, x + begin, count);
  });
}

void gated(Activation activation, const float* gate, int64_t gate_stride, const float* up,
           int64_t up_stride, float* y, int64_t y_stride, int64_t rows, int64_t cols) noexcept {
  const Variant& variant = active_variant();
  deal_each(rows, least_rows(cols), [&](int64_t row) {
    variant.gate(activation, gate + row * gate_stride, up + row * up_stride, y + row * y_stride,
                 cols);
  });
}

void clamped_gate(const ClampedGateShape& shape, const float* gate, int64_t gate_stride,
                  const float* up, int64_t up_stride, float* y, int64_t y_stride, int64_t rows,
                  int64_t cols) noexcept {
  const Variant& variant = active_variant();
  deal_each(rows, least_rows(cols), [&](int64_t row) {
    variant.clamped_gate(shape.limit, shape.alpha, shape.biases, gate + row * gate_stride,
                         up + row * up_stride, y + row * y_stride, cols);
  });
}

void soft_cap(float* x, float cap, int64_t n) noexcept {
  const Variant& variant = active_variant();
  in_blocks(n, [&](int64_t begin, int64_t count) { variant.soft_cap(x + begin, cap, count); });
}

void scale_inplace(float* x, float factor, int64_t n) noexcept {
  const Variant& variant = active_variant();
  in_blocks(n, [&](int64_t begin, int64_t count) { variant.scale(x + begin, factor, count); });
}

void clamp_rows(float* x, int64_t stride, float most, int64_t rows, int64_t cols) noexcept {
  deal_each(rows, least_rows(cols), [&](int64_t row) {
    float* const at = x + row * stride;
    for (int64_t i = 0; i < cols; ++i) at[i] = std::clamp(at[i], -most, most);
  });
}

void scale_columns(float* x, const float* gains, int64_t rows, int64_t cols) noexcept {
  deal_each(rows, least_rows(cols), [&](int64_t row) {
    for (int64_t i = 0; i < cols; ++i) x[row * cols + i] *= gains[i];
  });
}

void scale_by_position(float* x, int64_t stride, const int32_t* positions, int64_t period,
                       float factor, int64_t rows, int64_t cols) noexcept {
  const Variant& variant = active_variant();
  deal_each(rows, least_rows(cols), [&](int64_t row) {
    variant.scale(x + row * stride, position_scale(positions[row], period, factor), cols);
  });
}

void regroup_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                   const HeadGroups& heads) noexcept {
  const int64_t group_cols = (heads.queries + 2) * heads.head_dim;
  deal_each(rows, least_rows(heads.groups * group_cols), [&](int64_t row) {
    const float* from = x + row * x_stride;
    float* q = y + row * y_stride;
    float* k = q + heads.groups * heads.queries * heads.head_dim;
    float* v = k + heads.groups * heads.head_dim;
    for (int64_t group = 0; group < heads.groups; ++group, from += group_cols) {
      const int64_t q_cols = heads.queries * heads.head_dim;
      std::copy_n(from, q_cols, q + group * q_cols);
      std::copy_n(from + q_cols, heads.head_dim, k + group * heads.head_dim);
      std::copy_n(from + q_cols + heads.head_dim, heads.head_dim, v + group * heads.head_dim);
    }
  });
}

void take_heads(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                const TakenHeads& taken) noexcept {
  deal_each(rows, least_rows(taken.heads * taken.head_dim), [&](int64_t row) {
    for (int64_t head = 0; head < taken.heads; ++head)
      std::copy_n(x + row * x_stride + (head * taken.period + taken.first) * taken.head_dim,
                  taken.head_dim, y + row * y_stride + head * taken.head_dim);
  });
}

void convert(DType from, const void* source, DType to, void* destination, int64_t n) noexcept {
  const int64_t from_bytes = dtype_bytes(from);
  const int64_t to_bytes = dtype_bytes(to);
  const auto* in = static_cast<const std::byte*>(source);
  auto* out = static_cast<std::byte*>(destination);
  const Variant& variant = active_variant();
  in_blocks(n, [&](int64_t begin, int64_t count) {
    const std::byte* piece = in + begin * from_bytes;
    std::byte* result = out + begin * to_bytes;
    if (from == to) {
      std::memcpy(result, piece, static_cast<size_t>(count * from_bytes));
    } else if (to == DType::kF32) {
      variant.to_f32(from, piece, reinterpret_cast<float*>(result), count);
    } else if (from == DType::kF32) {
      variant.from_f32(to, reinterpret_cast<const float*>(piece), result, count);
    } else {  // f16 <-> bf16 by way of f32, a little at a time
      float wide[256];
      for (int64_t i = 0; i < count; i += 256) {
        const int64_t few = std::min<int64_t>(256, count - i);
        variant.to_f32(from, piece + i * from_bytes, wide, few);
        variant.from_f32(to, wide, result + i * to_bytes, few);
      }
    }
  });
}

void gather_rows(const void* table, DType dtype, int64_t cols, const int32_t* ids, int64_t count,
                 float* out) noexcept {
  const Variant& variant = active_variant();
  const auto* rows = static_cast<const std::byte*>(table);
  const int64_t row_bytes = cols * dtype_bytes(dtype);
  deal_each(count, least_rows(cols), [&](int64_t i) {
    variant.to_f32(dtype, rows + ids[i] * row_bytes, out + i * cols, cols);
  });
}

}  // namespace sluice::kernels
