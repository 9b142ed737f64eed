#include "policy/kernel_times.h"

#include <algorithm>

namespace sluice::policy {

void KernelTally::add(const ProductTimes& one) {
  const ProductKey key{one.weights.encoding,
                       one.weights.dtype,
                       one.weights.group,
                       one.eight_bit_activations,
                       one.m,
                       one.n,
                       one.k};
  const MutexLock lock(mutex_);
  auto found = products_.find(key);
  if (found == products_.end()) {
    if (products_.size() >= kMostSizes) return;
    found = products_.emplace(key, one).first;
    return;
  }
  found->second.calls += one.calls;
  found->second.seconds += one.seconds;
}

void KernelTally::add(const AttentionTimes& one) {
  const MutexLock lock(mutex_);
  const auto found =
      std::find_if(attention_.begin(), attention_.end(), [&](const AttentionTimes& other) {
        return other.kv_dtype == one.kv_dtype && other.is_prefill == one.is_prefill;
      });
  if (found == attention_.end()) {
    attention_.push_back(one);
    return;
  }
  found->bytes += one.bytes;
  found->flops += one.flops;
  found->seconds += one.seconds;
}

KernelTimes KernelTally::times() const {
  const MutexLock lock(mutex_);
  KernelTimes out{{}, attention_};
  for (const auto& [key, times] : products_) out.products.push_back(times);
  return out;
}

}  // namespace sluice::policy
