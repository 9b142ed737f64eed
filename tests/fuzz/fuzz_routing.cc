// Recorded runs of routers: arbitrary text. Refused as a file error, or all that it says is within
// its bounds, its figures can be told and caches replayed.
#include "src/base/error.h"
#include "src/cache/routing_figures.h"
#include "src/cache/routing_replay.h"
#include "src/cache/routing_trace.h"
#include "tests/fuzz/fuzzing.h"

namespace {
using sluice::RoutingTrace;

void check_layer(const RoutingTrace& trace, const RoutingTrace::Layer& layer) {
  size_t next = 0;
  int64_t pass = 0;
  for (const RoutingTrace::Token& token : layer.tokens) {
    sluice::fuzz::require(token.first == next && token.chosen > 0 && token.pass >= pass);
    next += static_cast<size_t>(token.chosen);
    pass = token.pass;
  }
  sluice::fuzz::require(next == layer.experts.size());
  for (const int32_t expert : layer.experts)
    sluice::fuzz::require(expert >= 0 && expert < trace.experts);
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const RoutingTrace trace =
        sluice::parse_routing_trace(sluice::fuzz::text_of(data, size), "trace");
    sluice::fuzz::accepted();
    for (const RoutingTrace::Layer& layer : trace.layers) check_layer(trace, layer);
    sluice::routing_figures(trace, sluice::RoutedTokens::kAll);
    sluice::ReplayOptions options;
    options.tokens = sluice::RoutedTokens::kAll;
    options.slots = 3;
    const int64_t most = sluice::replay_best(trace, options).all.found;
    sluice::fuzz::require(sluice::replay_cache(trace, options, 0).all.found <= most);
    sluice::fuzz::require(sluice::replay_cache(trace, options, 0.9).all.found <= most);
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
