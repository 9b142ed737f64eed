// sluice bench serve: load on a running server, of ours or another's, and what it felt like.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/serve/load.h"
#include "src/serve/load_page.h"
#include "tools/command.h"
#include "tools/load_shape.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct BenchServeFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string model, api_key, svg, html;
  std::vector<double> rates;
  std::vector<int> users;
  LoadShape shape;
  bool json = false;
};

void run(const BenchServeFlags& flags, std::stop_token stop) {
  serve::LoadTarget target = serve::parse_target(flags.url);
  target.model = flags.model;
  target.api_key = flags.api_key;
  struct Load {
    std::string name;
    double value;
    int users;
  };
  std::vector<Load> loads;
  for (double rate : flags.rates) loads.push_back({fmt::format("{:g}/s", rate), rate, 0});
  for (int users : flags.users)
    loads.push_back({fmt::format("{} users", users), static_cast<double>(users), users});
  if (!flags.shape.trace.empty() && flags.users.empty())
    loads = {{"trace", flags.shape.trace_speed, 0}};
  if (loads.empty()) loads = {{"8 users", 8, 8}};
  if (!flags.json)
    std::printf(
        "| load | answered | 429 | failed | req/s | output tok/s | TTFT ms p50/p99 | TPOT ms "
        "p50/p99 | E2E ms p50/p99 |\n"
        "|---|---|---|---|---|---|---|---|---|\n");
  auto rows = nlohmann::ordered_json::array();
  std::string first_error;
  for (const Load& load : loads) {
    const auto requests = flags.shape.make(load.users > 0 ? 0 : load.value);
    Progress progress(load.name);
    const auto records = serve::run_load(target, requests, load.users, stop, [&](int64_t done) {
      const auto all = static_cast<int64_t>(requests.size());
      progress.update(done, all, fmt::format("{}/{} requests", done, all), "");
    });
    if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped");
    nlohmann::ordered_json row = serve::summarise(records);
    row["load"] = load.value;
    row["load_name"] = load.name;
    for (const auto& record : records)
      if (first_error.empty() && record.status != 429) first_error = record.error;
    const auto ms = [&](const char* measure, const char* share) {
      return row[measure][share].get<double>();
    };
    if (!flags.json) {
      std::printf(
          "| %s | %lld | %lld | %lld | %.3g | %.4g | %.4g / %.4g | %.4g / %.4g | %.4g / %.4g |\n",
          load.name.c_str(), static_cast<long long>(row["answered"].get<int64_t>()),
          static_cast<long long>(row["refused_429"].get<int64_t>()),
          static_cast<long long>(row["failed"].get<int64_t>()), row["requests_per_s"].get<double>(),
          row["output_tokens_per_s"].get<double>(), ms("ttft_ms", "p50"), ms("ttft_ms", "p99"),
          ms("tpot_ms", "p50"), ms("tpot_ms", "p99"), ms("e2e_ms", "p50"), ms("e2e_ms", "p99"));
      std::fflush(stdout);
    }
    rows.push_back(std::move(row));
  }
  if (flags.json) print_json({{"url", flags.url}, {"seed", flags.shape.seed}, {"results", rows}});
  const std::string load_name = !flags.rates.empty() ? "requests a second" : "callers at a time";
  if (!flags.svg.empty()) write_file(flags.svg, serve::latency_svg(rows, load_name));
  if (!flags.html.empty()) write_file(flags.html, serve::load_html(rows, load_name, flags.url));
  if (!first_error.empty())
    throw Error(ErrorKind::kResource, "some requests failed; the first: " + first_error,
                "check that a server listens at --url and takes prompts of token ids");
}
}  // namespace

Command add_bench_serve(CLI::App& program) {
  auto flags = std::make_shared<BenchServeFlags>();
  CLI::App* parser = program.add_subcommand(
      "bench-serve", "load on a server: latency and throughput (also: bench serve)");
  parser->add_option("--url", flags->url, "the server, of sluice or any with OpenAI's interface")
      ->capture_default_str();
  parser->add_option("--model", flags->model, "name of the model, where the server asks for one");
  parser->add_option("--api-key", flags->api_key, "sent as a bearer token");
  parser
      ->add_option("--rate", flags->rates,
                   "open loop: requests a second, arriving as a Poisson process (1,2,4 sweeps)")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  parser
      ->add_option("--users", flags->users,
                   "closed loop: so many callers, each with one request at a time (1,8,32 sweeps)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  flags->shape.add_to(*parser, LoadShape::Arrivals::kTimed);
  parser->add_option("--svg", flags->svg, "a plot of latency against load");
  parser->add_option("--html", flags->html,
                     "a page: latency and throughput against load, and the table");
  parser->add_flag("--json", flags->json, "one JSON object");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
