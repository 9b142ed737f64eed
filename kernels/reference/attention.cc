#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/elementwise.h"

namespace sluice::kernels::reference {

namespace {
// Where the f16 scale (0) or minimum (1) of a group of the row at `in_page` lies in its head.
int64_t scale_offset(const AttentionShape& shape, int is_value, int64_t group, int is_minimum,
                     int64_t in_page) {
  return shape.page_tokens * shape.rows_of(is_value).code_bytes(shape.head_dim) +
         ((group * 2 + is_minimum) * shape.page_tokens + in_page) * 2;
}

// Where the code of element d of a row of K (0) or V (1) lies in its head, and the shift of a 4-bit
// one.
struct CodePlace {
  int64_t byte;
  int shift;
};
CodePlace code_place(const AttentionShape& shape, int is_value, int64_t in_page, int d) {
  const KvRows rows = shape.rows_of(is_value);
  const bool is_int8 = rows.encoding == KvEncoding::kInt8;
  const int64_t byte = is_int8 ? d : d / 32 * 16 + d % 16;
  const int64_t code_bytes = rows.code_bytes(shape.head_dim);
  return {is_value ? value_code_offset(code_bytes, shape.page_tokens, in_page, byte)
                   : key_code_offset(code_bytes, shape.page_tokens, in_page, byte),
          is_int8 || d % 32 < 16 ? 0 : 4};
}

// Queries beside int4 keys, as whole numbers of up to 7 bits of the largest of their group.
std::vector<float> rounded_queries(const AttentionShape& shape, const float* q) {
  std::vector<float> out(q, q + shape.head_dim);
  if (shape.kv_dtype.key_encoding != KvEncoding::kInt4) return out;
  for (size_t begin = 0; begin < out.size(); begin += KvFormat::kGroup) {
    const size_t end = std::min(out.size(), begin + KvFormat::kGroup);
    float largest = 0;
    for (size_t d = begin; d < end; ++d) largest = std::max(largest, std::fabs(out[d]));
    if (!(largest > kLeastQuery)) continue;
    for (size_t d = begin; d < end; ++d)
      out[d] = std::nearbyint(out[d] * (kQueryLevels / largest)) * (largest / kQueryLevels);
  }
  return out;
}

float read_f16(const std::byte* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return f16_to_f32(bits);
}

std::vector<float> dequantised_row(const AttentionShape& shape, const std::byte* head, int is_value,
                                   int64_t in_page) {
  std::vector<float> row;
  for (int d = 0; d < shape.head_dim; ++d) {
    const CodePlace place = code_place(shape, is_value, in_page, d);
    int code = static_cast<int>(head[place.byte]) >> place.shift;
    if (shape.rows_of(is_value).encoding == KvEncoding::kInt4) code &= 15;
    const int64_t group = d / KvFormat::kGroup;
    row.push_back(read_f16(head + scale_offset(shape, is_value, group, 0, in_page)) *
                      static_cast<float>(code) +
                  read_f16(head + scale_offset(shape, is_value, group, 1, in_page)));
  }
  return row;
}

void quantise_row(const AttentionShape& shape, const float* from, std::byte* head, int is_value,
                  int64_t in_page) {
  const KvRows format = shape.rows_of(is_value);
  const int64_t elements = format.code_bytes(shape.head_dim) * (format.levels() == 15 ? 2 : 1);
  for (int d = 0; d < elements; ++d) head[code_place(shape, is_value, in_page, d).byte] = {};
  for (int64_t group = 0; group < format.groups(shape.head_dim); ++group) {
    const int64_t begin = group * KvFormat::kGroup;
    const int64_t end = std::min<int64_t>(begin + KvFormat::kGroup, shape.head_dim);
    const float low = *std::min_element(from + begin, from + end);
    const float high = *std::max_element(from + begin, from + end);
    const uint16_t minimum = f32_to_f16(std::clamp(low, -65504.0f, 65504.0f));
    const float base = f16_to_f32(minimum);
    const auto levels = static_cast<float>(format.levels());
    const uint16_t scale = f32_to_f16(std::clamp((high - base) / levels, 0x1p-14f, 65504.0f));
    for (auto d = static_cast<int>(begin); d < end; ++d) {
      const float code = std::clamp(
          std::floor((from[d] - base) * (1.0f / f16_to_f32(scale)) + 0.5f), 0.0f, levels);
      const CodePlace place = code_place(shape, is_value, in_page, d);
      head[place.byte] |= static_cast<std::byte>(static_cast<int>(code) << place.shift);
    }
    std::memcpy(head + scale_offset(shape, is_value, group, 0, in_page), &scale, 2);
    std::memcpy(head + scale_offset(shape, is_value, group, 1, in_page), &minimum, 2);
  }
}

std::vector<float> cached_row(const AttentionShape& shape, const AttentionSequence& sequence,
                              int is_value, int head, int64_t position) {
  const std::byte* from =
      sequence.pages[position / shape.page_tokens] + shape.head_offset(head, is_value);
  const int64_t in_page = position % shape.page_tokens;
  if (shape.kv_dtype.is_quantised()) return dequantised_row(shape, from, is_value, in_page);
  std::vector<float> row(static_cast<size_t>(shape.head_dim));
  convert(shape.kv_dtype.dtype, from + in_page * shape.rows_of(is_value).code_bytes(shape.head_dim),
          DType::kF32, row.data(), shape.head_dim);
  return row;
}

int64_t oldest_seen(const AttentionShape& shape, int64_t position) {
  if (shape.is_chunked) return position / shape.sliding_window * shape.sliding_window;
  return shape.sliding_window > 0 ? std::max<int64_t>(0, position - shape.sliding_window + 1) : 0;
}

void attend_one(const AttentionShape& shape, const AttentionSequence& sequence, int64_t token,
                int head) {
  const int kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const int64_t position = sequence.first_position + token;
  const int64_t oldest = oldest_seen(shape, position);
  std::vector<double> scores = attention_scores(shape, sequence, token, head);
  double maximum = *std::max_element(scores.begin(), scores.end());
  if (shape.sinks) maximum = std::max(maximum, double{shape.sinks[head]});
  if (shape.sparsity < 1) {
    const auto visible = static_cast<double>(scores.size());
    const auto kept = static_cast<size_t>(
        std::clamp(std::ceil(static_cast<double>(shape.sparsity) * visible), 1.0, visible));
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    for (size_t i = kept; i < order.size(); ++i)
      scores[order[i]] = -std::numeric_limits<double>::infinity();
  }
  double sum = shape.sinks ? std::exp(double{shape.sinks[head]} - maximum) : 0;
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

std::vector<double> attention_scores(const AttentionShape& shape, const AttentionSequence& sequence,
                                     int64_t token, int head) {
  const int64_t position = sequence.first_position + token;
  const std::vector<float> q = rounded_queries(
      shape, sequence.q + token * sequence.q_stride + int64_t{head} * shape.head_dim);
  std::vector<double> scores;
  for (int64_t p = oldest_seen(shape, position); p <= position; ++p) {
    const std::vector<float> key =
        cached_row(shape, sequence, 0, head / (shape.num_heads / shape.num_kv_heads), p);
    double score = 0;
    for (int d = 0; d < shape.head_dim; ++d)
      score += double{q[static_cast<size_t>(d)]} * key[static_cast<size_t>(d)];
    score *= shape.scale;
    if (shape.soft_cap > 0) score = shape.soft_cap * std::tanh(score / shape.soft_cap);
    if (shape.slopes && shape.rounds_slopes)
      score += double{shape.scale} *
               (double{bf16_to_f32(f32_to_bf16(shape.slopes[head] * static_cast<float>(p)))} -
                double{shape.slopes[head]} * static_cast<double>(position));
    else if (shape.slopes)
      score += double{shape.slopes[head]} * static_cast<double>(p - position);
    scores.push_back(score);
  }
  return scores;
}

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
      const int64_t in_page = position % shape.page_tokens;
      for (int is_value = 0; is_value < (shape.has_values ? 2 : 1); ++is_value) {
        const float* from = (is_value ? v : k) + source;
        std::byte* to = page + shape.head_offset(head, is_value);
        if (shape.kv_dtype.is_quantised())
          quantise_row(shape, from, to, is_value, in_page);
        else
          convert(DType::kF32, from, shape.kv_dtype.dtype,
                  to + in_page * shape.rows_of(is_value).code_bytes(shape.head_dim),
                  shape.head_dim);
      }
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
