#pragma once
// What tests of the engine on CUDA share: a backend, on a GPU or on the host's stand-in, where
// threads run in an order drawn from a seed, and policies that place things anywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/engine/cuda/cuda_backend.h"
#include "src/engine/cuda/device_areas.h"
#include "tests/engine/model_fixtures.h"
#ifdef SLUICE_CUDA_ON_HOST
#include "kernels/cuda/shim/host_driver.h"
#endif

namespace sluice::testing {

/// 0: the usual one.
inline void draw_order(uint32_t seed) {
#ifdef SLUICE_CUDA_ON_HOST
  cuda::host::set_seed(seed);
#else
  (void)seed;
#endif
}

inline policy::TierShares random_shares(Random& random) {
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  switch (pick(random, 0, 5)) {
    case 0: return {1, 0, 0};
    case 1: return {0, 1, 0};
    case 2: return {0, 0, 1};
    default: {
      const double device = uniform() * 0.7;
      const double host = (1 - device) * uniform();
      return {device, host, 1 - device - host};
    }
  }
}

inline policy::Policy random_policy(Random& random, bool attends_on_host) {
  policy::Policy policy;
  policy.weights = random_shares(random);
  policy.kv = random_shares(random);
  policy.activations = random_shares(random);
  policy.micro_batch_sequences = pick(random, 1, 5);
  policy.micro_batches = pick(random, 1, 4);
  policy.micro_batch_tokens = pick(random, 1, 40);
  policy.pass_tokens = std::max(pick(random, 20, 90), policy.block_sequences());
  policy.page_tokens = pick(random, 1, 20);
  policy.attention =
      attends_on_host ? policy::AttentionPlace::kHost : policy::AttentionPlace::kDevice;
  if (pick(random, 0, 1) == 0)
    policy.inplace_host_fraction =
        policy.weights.host * std::uniform_real_distribution<double>(0, 1)(random);
  return policy;
}

inline std::shared_ptr<CudaBackend> make_backend(int64_t slab_bytes = kSlabBytes) {
  auto backend = std::make_shared<CudaBackend>(0, int64_t{256} << 20);
  backend->cuda_device().set_slab_bytes(slab_bytes);
  return backend;
}

// Products as exact as they are to be had, the same KV on both sides.
inline EngineOptions exact_options_for(const std::vector<GenerationRequest>& requests) {
  EngineOptions options = options_for(requests);
  options.compute = ComputeChoice::kF32;
  options.kv_dtype = DType::kF16;
  return options;
}

// Products of 16-bit inputs, attention with 16-bit weights: relative error of the logits.
inline void expect_logits_of_the_cpu(const std::string& model,
                                     std::vector<GenerationRequest> requests, double allowed,
                                     const std::optional<policy::Policy>& policy = {},
                                     int64_t slab_bytes = kSlabBytes) {
  for (GenerationRequest& request : requests) request.score_prompt = true;
  EngineOptions options = exact_options_for(requests);
  auto expected = run_all(model, options, requests);
  options.policy = policy;
  options.backend = make_backend(slab_bytes);
  draw_order(5);
  auto actual = run_all(model, options, requests);
  draw_order(0);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(actual[i].logits.size(), expected[i].logits.size());
    ASSERT_FALSE(expected[i].logits.empty());
    double largest = 0, worst = 0;
    for (size_t j = 0; j < actual[i].logits.size(); ++j) {
      largest = std::max(largest, std::fabs(double{expected[i].logits[j]}));
      const double error = std::fabs(double{actual[i].logits[j]} - expected[i].logits[j]);
      if (!(error <= worst)) worst = error;  // NaN too, which is worse than any other
    }
    EXPECT_LE(worst / largest, allowed) << "prompt " << i;
  }
}

}  // namespace sluice::testing
