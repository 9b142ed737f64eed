#pragma once
// Several machines on one job: rows an hour for the whole, how long it takes, which machine is slow
// and why. For rates that were planned and for such that were measured. Pure.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice::app {

/// What one machine does.
struct NodeRate {
  std::string name;
  double rows_per_second = 0;
  double tokens_per_second = 0;
  std::string bottleneck;  ///< its busiest lane
};

/// Of a list of nodes, for `rows` rows dealt as nodes ask (0: nothing about time).
struct NodesTogether {
  double rows_per_hour = 0;
  double seconds = 0;    ///< for the rows; 0: none asked for
  size_t slowest = 0;    ///< index
  double slowness = 1;   ///< the median rate over the slowest's
  bool is_slow = false;  ///< it has less than 2/3 of the median
};
/// `nodes`: at least one, each faster than 0.
NodesTogether together(const std::vector<NodeRate>& nodes, int64_t rows);

/// A table with a line for the whole.
std::string nodes_text(const std::vector<NodeRate>& nodes, int64_t rows);
nlohmann::ordered_json nodes_json(const std::vector<NodeRate>& nodes, int64_t rows);

/// What `bench throughput --json` wrote on a node. Errors: kFile where it is no such thing.
NodeRate measured_node(const std::string& name, const std::string& json);

}  // namespace sluice::app
