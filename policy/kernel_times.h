#pragma once
// What a run's kernels took on the host's cores, by class: products by format of the weights, kind
// of input and size; attention by format of KV and kind of query. Held against a profile's rates
// it says which of them are wrong (src/profile/learn.h).
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "src/base/kv_format.h"
#include "src/base/mutex.h"
#include "src/base/weight_format.h"

namespace sluice::policy {

/// Products y[m, n] = x[m, k] W[n, k]^T of one size.
struct ProductTimes {
  WeightFormat weights;
  bool eight_bit_activations = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t calls = 0;
  double seconds = 0;  ///< of all calls
};

/// Calls whose sequences all have one query token (decode), or all more (prefill).
struct AttentionTimes {
  KvFormat kv_dtype = DType::kF32;
  bool is_prefill = false;
  double bytes = 0;  ///< of K and V, as decode reads them
  double flops = 0;  ///< over visible (query, key) pairs
  double seconds = 0;
};

struct KernelTimes {
  std::vector<ProductTimes> products;
  std::vector<AttentionTimes> attention;
};

/// Adds up calls. Bounded: sizes beyond the first kMostSizes are not kept. Thread safe.
class KernelTally {
 public:
  static constexpr size_t kMostSizes = 1024;

  /// One call; `calls` and `seconds` of `one` are what it adds.
  void add(const ProductTimes& one);
  void add(const AttentionTimes& one);
  KernelTimes times() const;

 private:
  using ProductKey = std::tuple<Encoding, DType, int32_t, bool, int64_t, int64_t, int64_t>;
  mutable Mutex mutex_;
  std::map<ProductKey, ProductTimes> products_ SLUICE_GUARDED_BY(mutex_);
  std::vector<AttentionTimes> attention_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::policy
