#include "src/engine/runners/kernel_watch.h"

#include <algorithm>

#include "kernels/linear.h"

namespace sluice {

KernelWatch::KernelWatch(policy::KernelTally* tally, const kernels::QuantisedOptions& compute)
    : tally_(tally), compute_(compute) {
  if (compute.outlier_threshold > 0) tally_ = nullptr;
}

void KernelWatch::keep_product(const WeightFormat& weights, int64_t m, int64_t n, int64_t k,
                               double seconds) {
  if (!tally_) return;
  const bool may_be_bf16 = weights.is_quantised() || weights.dtype == DType::kBF16;
  const bool is_bf16 = compute_.compute == kernels::Compute::kBF16;
  if (may_be_bf16 && is_bf16 != kernels::bf16_compute_supported()) return;
  const bool is_eight_bit =
      weights.is_quantised() &&
      kernels::options_for(weights, compute_).activations != kernels::ActivationFormat::k16Bit;
  tally_->add(policy::ProductTimes{weights, is_eight_bit, m, n, k, 1, seconds});
}

void KernelWatch::keep_attention(const kernels::AttentionShape& shape,
                                 std::span<const kernels::AttentionSequence> sequences,
                                 double seconds) {
  if (!tally_ || sequences.empty() || shape.sparsity < 1 || shape.sliding_window > 0) return;
  const bool is_prefill = sequences.front().count > 1;
  double pairs = 0;
  double positions = 0;
  for (const kernels::AttentionSequence& sequence : sequences) {
    if ((sequence.count > 1) != is_prefill) return;
    const double count = sequence.count;
    pairs += count * (sequence.first_position + (count + 1) / 2);
    positions += sequence.first_position + count;
  }
  const double token_bytes = static_cast<double>(shape.page_bytes()) / shape.page_tokens;
  tally_->add(policy::AttentionTimes{shape.kv_dtype, is_prefill, positions * token_bytes,
                                     4 * pairs * shape.num_heads * shape.head_dim, seconds});
}

}  // namespace sluice
