#pragma once
// What a load asks for, alike in all benchmarks of whole requests: how many, how long, what they
// share, when they arrive.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "src/serve/load.h"

namespace sluice::tools {

struct LoadShape {
  int64_t requests = 100;
  int64_t prompt_tokens = 128, new_tokens = 64, shared_prefix = 0, vocab = 1000;
  int64_t longest_prompt = 1 << 20, longest_output = 1 << 20;
  std::string trace;
  double trace_speed = 1;
  std::string lengths = "fixed";
  uint64_t seed = 1;

  enum class Arrivals {
    kTimed,
    kAtOnce  ///< a trace gives its lengths only
  };
  void add_to(CLI::App& parser, Arrivals arrivals);
  /// `rate` requests a second, as a Poisson process; 0: all at once. A trace has its own arrivals.
  /// Errors: kFile (trace).
  std::vector<serve::LoadRequest> make(double rate) const;
};

}  // namespace sluice::tools
