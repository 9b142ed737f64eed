#include "src/app/node_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::app {

namespace {
constexpr double kSecondsOfHour = 3600;
constexpr double kSlowShare = 2.0 / 3;  // of the median: worth a look
}  // namespace

NodesTogether together(const std::vector<NodeRate>& nodes, int64_t rows) {
  SLUICE_ASSERT(!nodes.empty(), "callers name at least one node");
  NodesTogether out;
  std::vector<double> rates;
  double sum = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    rates.push_back(nodes[i].rows_per_second);
    sum += nodes[i].rows_per_second;
    if (nodes[i].rows_per_second < nodes[out.slowest].rows_per_second) out.slowest = i;
  }
  std::sort(rates.begin(), rates.end());
  const size_t half = rates.size() / 2;
  const double median = rates.size() % 2 ? rates[half] : (rates[half - 1] + rates[half]) / 2;
  out.rows_per_hour = sum * kSecondsOfHour;
  if (rows > 0) out.seconds = static_cast<double>(rows) / sum;
  out.slowness = median / rates.front();
  out.is_slow = rates.front() < kSlowShare * median;
  return out;
}

std::string nodes_text(const std::vector<NodeRate>& nodes, int64_t rows) {
  const NodesTogether all = together(nodes, rows);
  double tokens = 0;
  std::string out = fmt::format("  {:<44} {:>12} {:>12} {:>8}  {}\n", "node", "rows an hour",
                                "tokens/s", "share", "bottleneck");
  for (size_t i = 0; i < nodes.size(); ++i) {
    const double hourly = nodes[i].rows_per_second * kSecondsOfHour;
    tokens += nodes[i].tokens_per_second;
    out += fmt::format(
        "  {:<44} {:>12.4g} {:>12.4g} {:>7.1f}%  {}{}\n", nodes[i].name, hourly,
        nodes[i].tokens_per_second, 100 * hourly / all.rows_per_hour, nodes[i].bottleneck,
        all.is_slow && i == all.slowest
            ? fmt::format("  <- slow: the median is {:.1f} times as fast", all.slowness)
            : "");
  }
  out += fmt::format("  {:<44} {:>12.4g} {:>12.4g}\n", "all", all.rows_per_hour, tokens);
  if (rows > 0) out += fmt::format("  {} rows take {}\n", rows, format_seconds(all.seconds));
  return out;
}

nlohmann::ordered_json nodes_json(const std::vector<NodeRate>& nodes, int64_t rows) {
  const NodesTogether all = together(nodes, rows);
  auto list = nlohmann::ordered_json::array();
  for (const NodeRate& node : nodes)
    list.push_back({{"node", node.name},
                    {"rows_per_hour", node.rows_per_second * kSecondsOfHour},
                    {"tokens_per_s", node.tokens_per_second},
                    {"bottleneck", node.bottleneck}});
  nlohmann::ordered_json out{{"nodes", list},
                             {"rows_per_hour", all.rows_per_hour},
                             {"slowest", nodes[all.slowest].name},
                             {"slowness", all.slowness}};
  if (rows > 0) {
    out["rows"] = rows;
    out["seconds"] = all.seconds;
  }
  return out;
}

NodeRate measured_node(const std::string& name, const std::string& json) {
  const auto parsed = nlohmann::ordered_json::parse(json, nullptr, false);
  try {
    const auto& row = parsed.at("results").at(0);
    NodeRate out{name, row.at("requests_per_s"), row.at("output_tokens_per_s"), {}};
    double most = -1;
    for (const auto& [lane, stats] : row.at("stats").at("lanes").items())
      if (stats.at("busy_s").get<double>() > most) {
        most = stats.at("busy_s");
        out.bottleneck = lane;
      }
    if (out.rows_per_second > 0) return out;
  } catch (const nlohmann::json::exception&) {
    // is none
  }
  throw Error(ErrorKind::kFile, fmt::format("{} is no result of bench throughput", name),
              "write it on each node: sluice bench throughput MODEL --json > NODE.json");
}

}  // namespace sluice::app
