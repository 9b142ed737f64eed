#pragma once
// Checkpoints that other tools have packed, run as they lie, against the store that convert makes
// of them: the same bytes, so the same bits.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/engine/model_fixtures.h"

namespace sluice::app {

inline std::map<uint64_t, testing::Answer> run_path(
    const std::filesystem::path& path, EngineOptions options,
    const std::vector<GenerationRequest>& requests) {
  const auto engine = Engine::open(path, std::move(options));
  testing::ListSource source(requests);
  testing::CollectingSink sink;
  engine->generate(source, sink);
  return sink.answers;
}

/// On the CPU alone, and in three places beside an emulated device.
inline void expect_runs_as_its_store(const std::filesystem::path& path,
                                     const std::filesystem::path& store) {
  auto requests = testing::greedy_requests({{5, 6, 7, 8}, {9, 10, 11}}, 6);
  requests[1].score_prompt = true;  // its logits; the other one's tokens
  for (const double device : {-1.0, 1.0, 0.4, 0.0}) {
    EngineOptions options = testing::options_for(requests);
    if (device >= 0) {
      options.device = EmulatedSpec{int64_t{256} << 20, 0, 0, 0, 0};
      options.policy.emplace();
      options.policy->weights = {device, 1 - device, 0};
      options.policy->inplace_host_fraction = (1 - device) / 2;
    }
    const auto expected = run_path(store, options, requests);
    const auto actual = run_path(path, options, requests);
    for (const auto& [id, answer] : expected) {
      EXPECT_EQ(answer.tokens.size(), id == 0 ? 6u : 0u);
      EXPECT_EQ(answer.logits.empty(), id == 0);
      EXPECT_EQ(actual.at(id).tokens, answer.tokens) << "device " << device;
      EXPECT_EQ(actual.at(id).logits, answer.logits) << "device " << device;
    }
  }
}

}  // namespace sluice::app
