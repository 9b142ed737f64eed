#include "kernels/cuda/rotate_head.h"
#include "kernels/cuda/row_block.h"
#include "kernels/cuda/rows.h"

namespace sluice::cuda {

namespace {
constexpr int kThreads = 256;
// Columns that a block takes of a row where a row is several blocks': whole groups.
constexpr int64_t kSliceColumns = 4 * kThreads;

SLUICE_KERNEL(kMostRowThreads)
copy_rows_kernel(const float* x, RowsShape shape, RowCopies copies) {
  const int64_t row = block_x();
  const float* from = x + row * shape.stride;
  if (copies.narrow.data) {
    for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
      keep_rounded(copies.narrow, row, col, from[col]);
    clear_padding(copies.narrow, row, shape.cols);
  }
  if (copies.int8.codes)
    RowQuantiser(from, shape.cols, copies.int8, row, reinterpret_cast<float*>(shared_memory()))
        .run();
}

SLUICE_KERNEL(kMostRowThreads)
copy_scaled_rows_kernel(const float* x, RowsShape shape, Rows16 copy, float* scales) {
  const int64_t row = block_x();
  const float* from = x + row * shape.stride;
  float largest = 0;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    largest = larger_bits(largest, bits_to_float(float_to_bits(from[col]) & 0x7fffffffu));
  largest = block_larger_bits(largest, reinterpret_cast<float*>(shared_memory()));
  // Below 2^(exponent + 1): over 2^(exponent - 14) it is below 2^15.
  const int exponent = static_cast<int>(float_to_bits(largest) >> 23) - 127;
  const bool is_scaled = largest > 32768.0f && exponent < 128;
  const int power = is_scaled ? exponent - 14 : 0;
  const float inverse = bits_to_float(static_cast<uint32_t>(127 - power) << 23);
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    keep_rounded(copy, row, col, from[col] * inverse);
  clear_padding(copy, row, shape.cols);
  if (thread_index() == 0) scales[row] = bits_to_float(static_cast<uint32_t>(127 + power) << 23);
}

SLUICE_KERNEL(kMostRowThreads)
unscale_products_kernel(float* y, RowsShape shape, const float* scales, const float* bias) {
  const int64_t row = block_x();
  const float scale = scales[row];
  if (scale == 1.0f) return;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads()) {
    float& out = y[row * shape.stride + col];
    const float added = bias ? bias[col] : 0.0f;
    out = (out - added) * scale + added;
  }
}

SLUICE_DEVICE int64_t element_index() {
  return int64_t{block_x()} * block_threads() + thread_index();
}

SLUICE_KERNEL(kThreads) add_inplace_kernel(float* y, const float* x, int64_t n) {
  const int64_t i = element_index();
  if (i < n) y[i] += x[i];
}

SLUICE_KERNEL(kThreads) add_bias_kernel(float* y, const float* bias, RowsShape shape) {
  const int64_t row = block_x();
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    y[row * shape.stride + col] += bias[col];
}

SLUICE_DEVICE float silu(float x) { return x / (1.0f + exp_of(-x)); }

SLUICE_DEVICE float activated(Activation activation, float x) {
  constexpr float kRootHalf = 0.70710678118654752f;
  constexpr float kTanhScale = 0.79788456080286536f;  // sqrt(2 / pi)
  switch (activation) {
    case Activation::kRelu: return x > 0 ? x : 0.0f;
    case Activation::kReluSquared: return x > 0 ? x * x : 0.0f;
    case Activation::kGelu: return 0.5f * x * (1.0f + erf_of(x * kRootHalf));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + tanh_of(kTanhScale * (x + 0.044715f * x * x * x)));
    case Activation::kSigmoid: return 1.0f / (1.0f + exp_of(-x));
    case Activation::kSilu: break;
  }
  return silu(x);
}

// A block has kSliceColumns of a row: y = value(col) and the copies of it.
template <class Value>
SLUICE_DEVICE void write_slice(float* y, const RowsShape& shape, const RowCopies& copies,
                               const Value& value) {
  const int64_t row = block_x();
  const int64_t begin = block_y() * kSliceColumns;
  for (int64_t col = begin + thread_index(); col < begin + kSliceColumns; col += block_threads()) {
    const float out = col < shape.cols ? value(row * shape.stride + col) : 0.0f;
    if (col < shape.cols) y[row * shape.stride + col] = out;
    if (col < copies.narrow.stride) keep_rounded(copies.narrow, row, col, out);
  }
  if (!copies.int8.codes) return;
  block_sync();  // the quantiser reads what other threads wrote
  RowQuantiser(y + row * shape.stride, shape.cols, copies.int8, row, nullptr)
      .run_slice(begin / 4, kSliceColumns / 4);
}

SLUICE_KERNEL(kThreads)
activate_kernel(Activation activation, float* x, RowsShape shape, RowCopies copies) {
  write_slice(x, shape, copies, [&](int64_t i) { return activated(activation, x[i]); });
}

SLUICE_KERNEL(kThreads)
gated_kernel(Activation activation, const float* gate, const float* up, float* y, RowsShape shape,
             RowCopies copies) {
  write_slice(y, shape, copies, [&](int64_t i) { return activated(activation, gate[i]) * up[i]; });
}

SLUICE_KERNEL(kThreads)
clamped_gate_kernel(kernels::ClampedGateShape clamp, const float* gate, const float* up, float* y,
                    RowsShape shape) {
  const int64_t row = int64_t{block_x()} * shape.stride;
  write_slice(y, shape, {}, [&](int64_t i) {
    float g = gate[i];
    float u = up[i];
    if (clamp.biases) {
      g += clamp.biases[2 * (i - row)];
      u += clamp.biases[2 * (i - row) + 1];
    }
    g = g < clamp.limit ? g : clamp.limit;
    u = u < clamp.limit ? u : clamp.limit;
    u = u > -clamp.limit ? u : -clamp.limit;
    return (u + 1.0f) * g / (1.0f + exp_of(-clamp.alpha * g));
  });
}

SLUICE_KERNEL(kThreads)
scale_rows_kernel(float* x, RowsShape shape, float factor, RowPositions at) {
  constexpr float kLn2 = 0.69314718055994531f;
  const int64_t row = block_x();
  if (at.positions) {
    const int64_t periods = (at.positions[row] + at.shift) / at.period;
    factor = 1.0f + factor * kLn2 * log2_of(1.0f + static_cast<float>(periods));
  }
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    x[row * shape.stride + col] *= factor;
}

SLUICE_KERNEL(kThreads)
clamp_rows_kernel(float* x, float most, RowsShape shape) {
  float* const row = x + block_x() * shape.stride;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    row[col] = row[col] < -most ? -most : row[col] > most ? most : row[col];
}

SLUICE_KERNEL(kThreads)
scale_columns_kernel(float* x, const float* gains, RowsShape shape) {
  const int64_t row = block_x();
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    x[row * shape.stride + col] *= gains[col];
}

SLUICE_KERNEL(kThreads) soft_cap_kernel(float* x, float cap, int64_t n) {
  const int64_t i = element_index();
  if (i < n) x[i] = cap * tanh_of(x[i] / cap);
}

SLUICE_KERNEL(kThreads)
regroup_heads_kernel(const float* x, float* y, RowsShape shape, kernels::HeadGroups heads) {
  const int64_t row = block_x() * shape.stride;
  const int64_t of_group = heads.queries + 2;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads()) {
    const int64_t head = col / heads.head_dim;
    const int64_t group = head / of_group;
    const int64_t in_group = head % of_group;
    int64_t to = group * heads.queries + in_group;
    if (in_group >= heads.queries) to = heads.groups * in_group + group;
    y[row + to * heads.head_dim + col % heads.head_dim] = x[row + col];
  }
}

SLUICE_KERNEL(kThreads)
take_heads_kernel(const float* x, int64_t x_stride, float* y, RowsShape shape,
                  kernels::TakenHeads taken) {
  const float* from = x + block_x() * x_stride;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads()) {
    const int64_t head = col / taken.head_dim * taken.period + taken.first;
    y[block_x() * shape.stride + col] = from[head * taken.head_dim + col % taken.head_dim];
  }
}

// A block a row, a thread a pair.
SLUICE_KERNEL(kThreads)
rope_kernel(float* x, RowsShape shape, int heads, int rotary_dim, const int32_t* positions,
            const float* inverse_frequencies, float factor, RopeLayout layout) {
  const int64_t row = block_x();
  const int half = rotary_dim / 2;
  const int64_t head_dim = shape.cols / heads;
  const auto position = static_cast<float>(positions[row]);
  for (int i = thread_index(); i < heads * half; i += block_threads()) {
    const int pair = i % half;
    rotate_pair(x + row * shape.stride + i / half * head_dim, pair, half, layout, position,
                inverse_frequencies[pair], factor);
  }
}

SLUICE_KERNEL(kThreads)
gather_rows_kernel(const void* table, DType type, int64_t cols, const int32_t* ids, int32_t offset,
                   float* out) {
  const int64_t row = block_x();
  const int64_t from = (int64_t{ids[row]} + offset) * cols;
  for (int64_t col = thread_index(); col < cols; col += block_threads()) {
    float value;
    if (type == DType::kF32)
      value = static_cast<const float*>(table)[from + col];
    else if (type == DType::kF16)
      value = half_to_float(static_cast<const uint16_t*>(table)[from + col]);
    else
      value = bf16_to_float(static_cast<const uint16_t*>(table)[from + col]);
    out[row * cols + col] = value;
  }
}

SLUICE_KERNEL(kThreads)
add_weighted_rows_kernel(const float* x, RowsShape shape, const int32_t* ids, const float* weights,
                         int64_t weight_stride, float* y, int64_t y_stride) {
  const int64_t row = block_x();
  const float weight = weights[row * weight_stride];
  const float* added = x + row * shape.stride;
  float* to = y + (ids ? int64_t{ids[row]} : row) * y_stride;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    to[col] += weight * added[col];
}

Grid one_block_a_row(int64_t rows) { return {static_cast<int>(rows)}; }
Grid one_thread_each(int64_t n) { return {static_cast<int>((n + kThreads - 1) / kThreads)}; }

// Slices of the widest of a row and its copies.
Grid slices_of(const RowsShape& shape, const RowCopies& copies) {
  int64_t columns = shape.cols;
  if (copies.narrow.data && copies.narrow.stride > columns) columns = copies.narrow.stride;
  if (copies.int8.codes && copies.int8.columns > columns) columns = copies.int8.columns;
  return {static_cast<int>(shape.rows),
          static_cast<int>((columns + kSliceColumns - 1) / kSliceColumns)};
}
}  // namespace

void copy_rows_for_products(const float* x, const RowsShape& shape, const RowCopies& copies,
                            Stream stream) {
  if (shape.rows == 0) return;
  launch("copy_rows", copy_rows_kernel, one_block_a_row(shape.rows), row_threads(shape.cols),
         kRowScratchBytes, stream, x, shape, copies);
}

void copy_scaled_rows(const float* x, const RowsShape& shape, const Rows16& copy, float* scales,
                      Stream stream) {
  if (shape.rows == 0) return;
  launch("copy_scaled_rows", copy_scaled_rows_kernel, one_block_a_row(shape.rows),
         row_threads(shape.cols), kRowScratchBytes, stream, x, shape, copy, scales);
}

void unscale_products(float* y, const RowsShape& shape, const float* scales, const float* bias,
                      Stream stream) {
  if (shape.rows == 0) return;
  launch("unscale_products", unscale_products_kernel, one_block_a_row(shape.rows),
         row_threads(shape.cols), 0, stream, y, shape, scales, bias);
}

void add_inplace(float* y, const float* x, int64_t n, Stream stream) {
  if (n == 0) return;
  launch("add_inplace", add_inplace_kernel, one_thread_each(n), kThreads, 0, stream, y, x, n);
}

void add_bias(float* y, const float* bias, const RowsShape& shape, Stream stream) {
  if (shape.rows == 0) return;
  launch("add_bias", add_bias_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, y, bias,
         shape);
}

void activate(Activation activation, float* x, const RowsShape& shape, const RowCopies& copies,
              Stream stream) {
  if (shape.rows == 0) return;
  launch("activate", activate_kernel, slices_of(shape, copies), kThreads, 0, stream, activation, x,
         shape, copies);
}

void gated(Activation activation, const float* gate, const float* up, float* y,
           const RowsShape& shape, const RowCopies& copies, Stream stream) {
  if (shape.rows == 0) return;
  launch("gated", gated_kernel, slices_of(shape, copies), kThreads, 0, stream, activation, gate, up,
         y, shape, copies);
}

void clamped_gate(const kernels::ClampedGateShape& clamp, const float* gate, const float* up,
                  float* y, const RowsShape& shape, Stream stream) {
  if (shape.rows == 0) return;
  launch("clamped_gate", clamped_gate_kernel, slices_of(shape, {}), kThreads, 0, stream, clamp,
         gate, up, y, shape);
}

void scale_rows(float* x, const RowsShape& shape, float factor, const RowPositions& at,
                Stream stream) {
  if (shape.rows == 0) return;
  launch("scale_rows", scale_rows_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, x,
         shape, factor, at);
}

void clamp_rows(float* x, float most, const RowsShape& shape, Stream stream) {
  if (shape.rows == 0) return;
  launch("clamp_rows", clamp_rows_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, x, most,
         shape);
}

void scale_columns(float* x, const float* gains, const RowsShape& shape, Stream stream) {
  if (shape.rows == 0) return;
  launch("scale_columns", scale_columns_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, x,
         gains, shape);
}

void soft_cap(float* x, float cap, int64_t n, Stream stream) {
  if (n == 0) return;
  launch("soft_cap", soft_cap_kernel, one_thread_each(n), kThreads, 0, stream, x, cap, n);
}

void regroup_heads(const float* x, float* y, const RowsShape& shape,
                   const kernels::HeadGroups& heads, Stream stream) {
  if (shape.rows == 0) return;
  launch("regroup_heads", regroup_heads_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, x,
         y, shape, heads);
}

void take_heads(const float* x, int64_t x_stride, float* y, const RowsShape& shape,
                const kernels::TakenHeads& taken, Stream stream) {
  if (shape.rows == 0) return;
  launch("take_heads", take_heads_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, x,
         x_stride, y, shape, taken);
}

bool can_quantise_slices(const Int8Rows& rows) noexcept {
  return rows.group_columns <= RowQuantiser::kWarpColumns;
}

void rope_inplace(float* x, const RowsShape& shape, int heads, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor,
                  RopeLayout layout, Stream stream) {
  if (shape.rows == 0 || rotary_dim == 0) return;
  launch("rope", rope_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, x, shape, heads,
         rotary_dim, positions, inverse_frequencies, factor, layout);
}

void gather_rows(const void* table, DType type, int64_t cols, const int32_t* ids, int32_t offset,
                 int64_t count, float* out, Stream stream) {
  if (count == 0) return;
  launch("gather_rows", gather_rows_kernel, one_block_a_row(count), kThreads, 0, stream, table,
         type, cols, ids, offset, out);
}

void add_weighted_rows(const float* x, const RowsShape& shape, const int32_t* ids,
                       const float* weights, int64_t weight_stride, float* y, int64_t y_stride,
                       Stream stream) {
  if (shape.rows == 0) return;
  launch("add_weighted_rows", add_weighted_rows_kernel, one_block_a_row(shape.rows), kThreads, 0,
         stream, x, shape, ids, weights, weight_stride, y, y_stride);
}

}  // namespace sluice::cuda
