#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/elementwise.h"

namespace sluice::kernels::reference {

namespace {
// Byte offset of K (0) or V (1) of one head at one place of a page.
int64_t row_offset(const AttentionShape& shape, int is_value, int head, int64_t in_page) {
  const int64_t row = (int64_t{is_value} * shape.num_kv_heads + head) * shape.page_tokens + in_page;
  return row * shape.head_dim * dtype_bytes(shape.kv_dtype);
}

std::vector<float> cached_row(const AttentionShape& shape, const AttentionSequence& sequence,
                              int is_value, int head, int64_t position) {
  std::vector<float> row(static_cast<size_t>(shape.head_dim));
  const std::byte* page = sequence.pages[position / shape.page_tokens];
  convert(shape.kv_dtype, page + row_offset(shape, is_value, head, position % shape.page_tokens),
          DType::kF32, row.data(), shape.head_dim);
  return row;
}

void attend_one(const AttentionShape& shape, const AttentionSequence& sequence, int64_t token,
                int head) {
  const int kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const int64_t position = sequence.first_position + token;
  const int64_t oldest =
      shape.sliding_window > 0 ? std::max<int64_t>(0, position - shape.sliding_window + 1) : 0;
  const float* q = sequence.q + token * sequence.q_stride + int64_t{head} * shape.head_dim;
  std::vector<double> scores;
  double maximum = -std::numeric_limits<double>::infinity();
  for (int64_t p = oldest; p <= position; ++p) {
    const std::vector<float> key = cached_row(shape, sequence, 0, kv_head, p);
    double score = 0;
    for (int d = 0; d < shape.head_dim; ++d) score += double{q[d]} * key[static_cast<size_t>(d)];
    scores.push_back(score * shape.scale);
    maximum = std::max(maximum, scores.back());
  }
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(shape.head_dim));
  for (int64_t p = oldest; p <= position; ++p) {
    const double weight = std::exp(scores[static_cast<size_t>(p - oldest)] - maximum);
    sum += weight;
    const std::vector<float> value = cached_row(shape, sequence, 1, kv_head, p);
    for (int d = 0; d < shape.head_dim; ++d)
      out[static_cast<size_t>(d)] += weight * value[static_cast<size_t>(d)];
  }
  float* to = sequence.out + token * sequence.out_stride + int64_t{head} * shape.head_dim;
  for (int d = 0; d < shape.head_dim; ++d)
    to[d] = static_cast<float>(out[static_cast<size_t>(d)] / sum);
  if (sequence.lse)
    sequence.lse[token * shape.num_heads + head] = static_cast<float>(maximum + std::log(sum));
}
}  // namespace

void attention(const AttentionShape& shape, std::span<const AttentionSequence> sequences) {
  for (const AttentionSequence& sequence : sequences)
    for (int64_t token = 0; token < sequence.count; ++token)
      for (int head = 0; head < shape.num_heads; ++head) attend_one(shape, sequence, token, head);
}

void kv_write(const AttentionShape& shape, const float* k, const float* v, int64_t stride,
              int32_t first_position, int32_t count, std::byte* const* pages) {
  for (int32_t i = 0; i < count; ++i)
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      const int64_t position = first_position + i;
      std::byte* page = pages[position / shape.page_tokens];
      const int64_t source = i * stride + int64_t{head} * shape.head_dim;
      convert(DType::kF32, k + source, shape.kv_dtype,
              page + row_offset(shape, 0, head, position % shape.page_tokens), shape.head_dim);
      convert(DType::kF32, v + source, shape.kv_dtype,
              page + row_offset(shape, 1, head, position % shape.page_tokens), shape.head_dim);
    }
}

void merge_attention(float* out, float* lse, const float* other_out, const float* other_lse,
                     int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row) {
    const double maximum = std::max(lse[row], other_lse[row]);
    if (maximum == -std::numeric_limits<double>::infinity()) continue;
    const double mine = std::exp(lse[row] - maximum);
    const double theirs = std::exp(other_lse[row] - maximum);
    for (int64_t i = row * cols; i < (row + 1) * cols; ++i)
      out[i] = static_cast<float>((mine * out[i] + theirs * other_out[i]) / (mine + theirs));
    lse[row] = static_cast<float>(maximum + std::log(mine + theirs));
  }
}

}  // namespace sluice::kernels::reference
