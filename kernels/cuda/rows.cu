#include "kernels/cuda/rows.h"
#include "kernels/cuda/vocabulary.h"

namespace sluice::cuda {

namespace {
constexpr int kThreads = 256;
constexpr int64_t kScratchBytes = kThreads / kWarp * static_cast<int64_t>(sizeof(float));

SLUICE_DEVICE void keep_rounded(const Rows16& copy, int64_t row, int64_t col, float value) {
  if (!copy.data) return;
  copy.data[row * copy.stride + col] =
      copy.type == DType::kBF16 ? float_to_bf16(value) : float_to_half(value);
}

SLUICE_DEVICE void clear_padding(const Rows16& copy, int64_t row, int64_t cols) {
  if (!copy.data) return;
  for (int64_t col = cols + thread_index(); col < copy.stride; col += block_threads())
    copy.data[row * copy.stride + col] = 0;
}

// A block a row: the sums, then the row again (from the cache).
SLUICE_KERNEL(kThreads)
rms_norm_kernel(const float* x, const float* gain, float eps, float* y, RowsShape shape,
                Rows16 copy) {
  auto* scratch = reinterpret_cast<float*>(shared_memory());
  const int64_t row = block_x();
  const float* from = x + row * shape.stride;
  float squares = 0;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    squares += from[col] * from[col];
  squares = block_sum(squares, scratch);
  const float scale = 1.0f / sqrt_of(squares / static_cast<float>(shape.cols) + eps);
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads()) {
    const float value = from[col] * scale * (gain ? gain[col] : 1.0f);
    if (y) y[row * shape.stride + col] = value;
    keep_rounded(copy, row, col, value);
  }
  clear_padding(copy, row, shape.cols);
}

SLUICE_KERNEL(kThreads)
layer_norm_kernel(const float* x, const float* gain, const float* bias, float eps, float* y,
                  RowsShape shape, Rows16 copy) {
  auto* scratch = reinterpret_cast<float*>(shared_memory());
  const int64_t row = block_x();
  const float* from = x + row * shape.stride;
  const auto cols = static_cast<float>(shape.cols);
  float sum = 0;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads()) sum += from[col];
  const float mean = block_sum(sum, scratch) / cols;
  float squares = 0;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    squares += (from[col] - mean) * (from[col] - mean);
  const float scale = 1.0f / sqrt_of(block_sum(squares, scratch) / cols + eps);
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads()) {
    const float value =
        (from[col] - mean) * scale * (gain ? gain[col] : 1.0f) + (bias ? bias[col] : 0.0f);
    if (y) y[row * shape.stride + col] = value;
    keep_rounded(copy, row, col, value);
  }
  clear_padding(copy, row, shape.cols);
}

SLUICE_KERNEL(kThreads) round_rows_kernel(const float* x, RowsShape shape, Rows16 copy) {
  const int64_t row = block_x();
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    keep_rounded(copy, row, col, x[row * shape.stride + col]);
  clear_padding(copy, row, shape.cols);
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

SLUICE_DEVICE float activated(RowActivation activation, float x) {
  constexpr float kRootHalf = 0.70710678118654752f;
  constexpr float kTanhScale = 0.79788456080286536f;  // sqrt(2 / pi)
  switch (activation) {
    case RowActivation::kRelu: return x > 0 ? x : 0.0f;
    case RowActivation::kGeluErf: return 0.5f * x * (1.0f + erf_of(x * kRootHalf));
    case RowActivation::kGeluTanh:
      return 0.5f * x * (1.0f + tanh_of(kTanhScale * (x + 0.044715f * x * x * x)));
    case RowActivation::kSilu: break;
  }
  return silu(x);
}

SLUICE_KERNEL(kThreads) activate_kernel(RowActivation activation, float* x, int64_t n) {
  const int64_t i = element_index();
  if (i < n) x[i] = activated(activation, x[i]);
}

SLUICE_KERNEL(kThreads)
silu_mul_kernel(const float* gate, const float* up, float* y, RowsShape shape) {
  const int64_t begin = int64_t{block_x()} * shape.stride;
  for (int64_t col = thread_index(); col < shape.cols; col += block_threads())
    y[begin + col] = silu(gate[begin + col]) * up[begin + col];
}

// A block a row, a thread a pair.
SLUICE_KERNEL(kThreads)
rope_kernel(float* x, RowsShape shape, int heads, int rotary_dim, const int32_t* positions,
            const float* inverse_frequencies, float factor) {
  const int64_t row = block_x();
  const int half = rotary_dim / 2;
  const int64_t head_dim = shape.cols / heads;
  const auto position = static_cast<float>(positions[row]);
  for (int i = thread_index(); i < heads * half; i += block_threads()) {
    const int pair = i % half;
    float sine, cosine;
    sin_cos_of(position * inverse_frequencies[pair], sine, cosine);
    sine *= factor;
    cosine *= factor;
    float* low = x + row * shape.stride + i / half * head_dim + pair;
    const float a = low[0];
    const float b = low[half];
    low[0] = a * cosine - b * sine;
    low[half] = b * cosine + a * sine;
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

Grid one_block_a_row(int64_t rows) { return {static_cast<int>(rows)}; }
Grid one_thread_each(int64_t n) { return {static_cast<int>((n + kThreads - 1) / kThreads)}; }
}  // namespace

void rms_norm(const float* x, const float* gain, float eps, float* y, const RowsShape& shape,
              const Rows16& copy, Stream stream) {
  if (shape.rows == 0) return;
  launch("rms_norm", rms_norm_kernel, one_block_a_row(shape.rows), kThreads, kScratchBytes, stream,
         x, gain, eps, y, shape, copy);
}

void layer_norm(const float* x, const float* gain, const float* bias, float eps, float* y,
                const RowsShape& shape, const Rows16& copy, Stream stream) {
  if (shape.rows == 0) return;
  launch("layer_norm", layer_norm_kernel, one_block_a_row(shape.rows), kThreads, kScratchBytes,
         stream, x, gain, bias, eps, y, shape, copy);
}

void round_rows(const float* x, const RowsShape& shape, const Rows16& copy, Stream stream) {
  if (shape.rows == 0) return;
  launch("round_rows", round_rows_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, x,
         shape, copy);
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

void activate(RowActivation activation, float* x, int64_t n, Stream stream) {
  if (n == 0) return;
  launch("activate", activate_kernel, one_thread_each(n), kThreads, 0, stream, activation, x, n);
}

void silu_mul(const float* gate, const float* up, float* y, const RowsShape& shape, Stream stream) {
  if (shape.rows == 0) return;
  launch("silu_mul", silu_mul_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, gate, up, y,
         shape);
}

void rope_inplace(float* x, const RowsShape& shape, int heads, int rotary_dim,
                  const int32_t* positions, const float* inverse_frequencies, float factor,
                  Stream stream) {
  if (shape.rows == 0 || rotary_dim == 0) return;
  launch("rope", rope_kernel, one_block_a_row(shape.rows), kThreads, 0, stream, x, shape, heads,
         rotary_dim, positions, inverse_frequencies, factor);
}

void gather_rows(const void* table, DType type, int64_t cols, const int32_t* ids, int32_t offset,
                 int64_t count, float* out, Stream stream) {
  if (count == 0) return;
  launch("gather_rows", gather_rows_kernel, one_block_a_row(count), kThreads, 0, stream, table,
         type, cols, ids, offset, out);
}

}  // namespace sluice::cuda
