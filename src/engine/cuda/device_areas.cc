#include "src/engine/cuda/device_areas.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/dense_linear.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/int8_linear.h"
#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/quantised_linear.h"
#include "kernels/k_layout.h"
#include "kernels/state_run.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/cuda/device_sampler.h"

namespace sluice {

namespace {
constexpr int64_t kMostConstants = 8;

template <size_t kCount>
int64_t total_of(const std::array<int64_t, kCount>& sizes) {
  int64_t total = 0;
  for (const int64_t size : sizes) total += round_up(size, kLine);
  return total;
}

template <size_t kCount>
std::array<std::span<std::byte>, kCount> split(const std::array<int64_t, kCount>& sizes,
                                               std::span<std::byte> memory) {
  SLUICE_ASSERT(total_of(sizes) <= static_cast<int64_t>(memory.size()), "the plan sizes it");
  std::array<std::span<std::byte>, kCount> out;
  int64_t used = 0;
  for (size_t i = 0; i < kCount; ++i) {
    out[i] = memory.subspan(static_cast<size_t>(used), static_cast<size_t>(sizes[i]));
    used += round_up(sizes[i], kLine);
  }
  return out;
}

template <class Take>
void for_each_matrix(const DeviceNeed& need, const Take& take) {
  for (const SublayerShape& sublayer : need.model->sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kMatrix) take(weight);
}

bool multiplies_int8(const DeviceNeed& need, const WeightShape& weight) {
  return need.activations == kernels::ActivationFormat::kInt8 &&
         cuda::takes_int8_rows(weight.quantised);
}

int64_t narrow_bytes(const DeviceNeed& need) {
  int64_t bytes = 0;
  for_each_matrix(need, [&](const WeightShape& weight) {
    bytes = std::max(bytes, need.tokens * narrow_stride(weight.cols) * 2);
  });
  return bytes + need.tokens * 4;
}

bool multiplies_fp8(const DeviceNeed& need, const WeightShape& weight) {
  return need.has_fp8 && need.activations == kernels::ActivationFormat::kFp8 &&
         kernels::takes_fp8_activations(weight.quantised);
}

int64_t code_bytes(const DeviceNeed& need) {
  int64_t bytes = 0;
  for_each_matrix(need, [&](const WeightShape& weight) {
    if (multiplies_int8(need, weight))
      bytes = std::max(bytes, cuda::int8_rows_bytes(weight.quantised, need.tokens, weight.cols));
    if (multiplies_fp8(need, weight))
      bytes = std::max(bytes, cuda::fp8_rows_bytes(weight.quantised, need.tokens, weight.cols));
  });
  return bytes;
}

// A slab of codes and their products.
int64_t dense_code_bytes(const DeviceNeed& need, const WeightShape& weight) {
  if (!cuda::is_dense_codes(weight.quantised, need.tokens, weight.cols)) return 0;
  return std::min(need.slab_bytes,
                  round_up(weight.expert_rows(), 16) *
                      dense_row_bytes(weight.quantised.padded_columns(weight.cols), need.tokens));
}

// Partial sums of any split product, or a slab of dequantised rows.
int64_t linear_bytes(const DeviceNeed& need) {
  int64_t bytes = 0;
  int64_t sums = 0;
  int64_t code_sums = 0;
  for (const SublayerShape& sublayer : need.model->sublayers)
    for (const WeightShape& weight : sublayer.weights) {
      if (!weight.quantised.is_quantised()) continue;
      if (multiplies_int8(need, weight)) {
        code_sums =
            std::max({code_sums, 4 * cuda::linear_int8_workspace_floats(need.multiprocessors),
                      dense_code_bytes(need, weight)});
        continue;
      }
      if (multiplies_fp8(need, weight))
        code_sums = std::max(code_sums, dense_code_bytes(need, weight));
      const int64_t few = std::min(need.tokens, cuda::kFewestDenseRows - 1);
      sums = 4 * cuda::linear_workspace_floats(few, need.multiprocessors);
      if (need.tokens >= cuda::kFewestDenseRows)
        bytes = std::max(
            bytes, std::min(need.slab_bytes, round_up(weight.expert_rows(), 64) * weight.cols * 2));
    }
  return std::max({bytes, sums, code_sums});
}

// Tasks that the host may run ahead by: a few layers, or 4 MiB of tables.
int64_t table_bytes(const DeviceNeed& need) {
  const int64_t one = task_table_bytes(need);
  return one * std::clamp<int64_t>(4 * kMiB / one, 2, 64);
}

int64_t logit_bytes(const DeviceNeed& need) {
  return logit_rows(need) * need.model->vocab_size * 4;
}

int64_t sampling_bytes(const DeviceNeed& need) {
  return DeviceSampler::area_bytes(need.model->vocab_size, logit_rows(need));
}

int64_t attention_bytes(const DeviceNeed& need) {
  int64_t most = 0;
  for (const kernels::AttentionShape& shape : need.attention)
    most = std::max(most, cuda::attention_workspace_floats(shape, need.multiprocessors) * 4);
  return most;
}

std::array<int64_t, 12> device_sizes(const DeviceNeed& need) {
  return {need.tokens * need.model->workspace_columns * 4,
          narrow_bytes(need),
          code_bytes(need),
          linear_bytes(need),
          cuda::split_counters(need.multiprocessors) * 4,
          cuda::DenseLinear::workspace_bytes(),
          attention_bytes(need),
          logit_bytes(need),
          table_bytes(need),
          sampling_bytes(need),
          kMostConstants * constant_bytes(need),
          cuda::low_rank_scratch_floats(need.tokens, need.adapter_rank) * 4};
}

std::array<int64_t, 5> staging_sizes(const DeviceNeed& need) {
  int64_t widest_table = 0;
  for (const SublayerShape& sublayer : need.model->sublayers)
    for (const WeightShape& weight : sublayer.weights)
      if (weight.kind == WeightKind::kTable) widest_table = std::max(widest_table, weight.cols);
  // First what wants memory aligned to 4096.
  return {WeightStore::gather_staging_bytes(*need.model), table_bytes(need),
          need.tokens * widest_table * 4, logit_bytes(need), sampling_bytes(need)};
}
}  // namespace

int64_t constant_bytes(const DeviceNeed& need) noexcept {
  int64_t most = std::max(need.model->head_dim, need.model->num_heads);
  for (const kernels::AttentionShape& shape : need.attention)
    most = std::max<int64_t>(most, shape.head_dim);
  return round_up(most * 4, kLine);
}

int64_t logit_rows(const DeviceNeed& need) noexcept { return std::min(kLogitRows, need.tokens); }

int64_t dense_row_bytes(int64_t columns, int64_t rows) noexcept { return columns + 4 * rows; }

DType narrow_type_of(const WeightFormat& format, DType plain_weights, bool has_bf16) noexcept {
  if (!format.is_quantised()) return format.dtype == DType::kBF16 ? DType::kBF16 : DType::kF16;
  return plain_weights == DType::kBF16 && has_bf16 ? DType::kBF16 : DType::kF16;
}

int64_t narrow_stride(int64_t cols) noexcept { return round_up(cols, kernels::kMostKColumns); }

int64_t most_pages(const kernels::AttentionShape& shape, int64_t rows) noexcept {
  const int64_t context = std::max(shape.sparse_positions, 1);
  return rows * ((context + shape.page_tokens - 1) / shape.page_tokens);
}

int64_t task_table_bytes(const DeviceNeed& need) {
  const int64_t rows = need.tokens;
  constexpr int64_t kPutsEach = 16;  // each begins on a line of its own
  int64_t bytes = rows * 3 * 4 + kPutsEach * kLine;
  // Runs of a recurrent state, for its convolution and its rule.
  if (need.model->fixed_state_bytes() > 0)
    bytes += 2 * rows * static_cast<int64_t>(sizeof(kernels::StateRun)) + 2 * kLine;
  // Which rows go to which expert, with their weights.
  if (need.model->num_experts > 1) bytes += rows * need.model->experts_per_token * 8 + 2 * kLine;
  // Which rows go through which adapter: of all, and of those that need logits.
  if (need.adapter_rank > 0)
    bytes += 2 * (rows * static_cast<int64_t>(sizeof(cuda::LowRankItem)) + kLine);
  for (const kernels::AttentionShape& shape : need.attention) {
    const int64_t pages = most_pages(shape, rows);
    const int64_t items = cuda::attention_most_items(shape, rows, need.multiprocessors);
    bytes += rows * static_cast<int64_t>(sizeof(cuda::KvPlace) + sizeof(cuda::AttentionRun) +
                                         sizeof(cuda::AttentionMerge)) +
             pages * 8 + items * static_cast<int64_t>(sizeof(cuda::AttentionItem)) +
             kPutsEach * kLine;
  }
  return bytes;
}

int64_t device_workspace_bytes(const DeviceNeed& need) { return total_of(device_sizes(need)); }

DeviceAreas split_device_workspace(const DeviceNeed& need, std::span<std::byte> workspace) {
  const auto parts = split(device_sizes(need), workspace);
  return {parts[0], parts[1], parts[2], parts[3], parts[4],  parts[5],
          parts[6], parts[7], parts[8], parts[9], parts[10], parts[11]};
}

int64_t host_staging_bytes(const DeviceNeed& need) {
  return round_up(total_of(staging_sizes(need)), 4096);
}

StagingAreas split_staging(const DeviceNeed& need, std::span<std::byte> staging) {
  const auto parts = split(staging_sizes(need), staging);
  return {parts[0], parts[1], parts[2], parts[3], parts[4]};
}

}  // namespace sluice
