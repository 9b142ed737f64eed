#pragma once
// What a recorded run (routing_trace.h) tells of its routers: how much tokens that follow each
// other have in common, how many experts a stretch of text touches, how evenly they are used. Pure;
// thread safe.
#include <array>
#include <cstdint>

#include "src/cache/routing_replay.h"
#include "src/cache/routing_trace.h"

namespace sluice {

/// All are means over layers with routers, tokens and sequences; -1 where the trace is too short.
/// Tokens follow each other where they are of one sequence, at positions that do.
struct RoutingFigures {
  static constexpr std::array<int64_t, 4> kLags = {1, 2, 8, 32};
  static constexpr std::array<int64_t, 4> kWindows = {4, 8, 16, 32};
  static constexpr std::array<int64_t, 3> kStretches = {8, 32, 128};
  static constexpr std::array<double, 4> kHottest = {0.05, 0.1, 0.25, 0.5};

  int64_t routed_layers = 0;
  int64_t tokens = 0;         ///< that count, of the layer that has most
  int64_t prompt_tokens = 0;  ///< likewise, whether they count or not
  int64_t decoded_tokens = 0;
  int64_t sequences = 0;
  int64_t passes = 0;
  double tokens_a_pass = 0;
  double experts_a_pass = 0;  ///< different ones, of a layer
  std::array<double, 4>
      overlap{};                 ///< share of a token's experts that the token so long before had
  std::array<double, 4> seen{};  ///< share that one of the so many tokens before had
  std::array<double, 3> distinct{};  ///< experts that so many tokens touch
  std::array<double, 3> uniform{};   ///< and would, were all equally likely
  std::array<double, 4> hottest{};   ///< share of choices on this share of the experts
  double entropy = 0;        ///< of the use of experts, 1 where all are used alike; mean of layers
  double least_entropy = 0;  ///< of a layer
  double most_entropy = 0;
};

/// Of the tokens that count.
RoutingFigures routing_figures(const RoutingTrace& trace, RoutedTokens tokens);

}  // namespace sluice
