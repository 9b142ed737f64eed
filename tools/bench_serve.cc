// sluice bench serve: load on a running server, of ours or another's, and what it felt like.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "src/base/error.h"
#include "src/serve/load.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct BenchServeFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string model, api_key, trace, svg;
  std::vector<double> rates;
  std::vector<int> users;
  int64_t requests = 100;
  int64_t prompt_tokens = 128, new_tokens = 64, shared_prefix = 0, vocab = 1000;
  int64_t longest_prompt = 1 << 20, longest_output = 1 << 20;
  double trace_speed = 1;
  std::string lengths = "fixed";
  uint64_t seed = 1;
  bool json = false;
};

struct Arrival {
  double at;
  int64_t prompt, output;
};

// A trace's rows: arrived_at,num_prefill_tokens,num_decode_tokens, with a line of names first.
std::vector<Arrival> read_trace(const BenchServeFlags& flags) {
  std::ifstream file(flags.trace);
  if (!file) throw Error(ErrorKind::kFile, flags.trace + ": can't be read", "check --trace");
  std::vector<Arrival> out;
  std::string line;
  for (int64_t number = 0;
       std::getline(file, line) && static_cast<int64_t>(out.size()) < flags.requests; ++number) {
    Arrival row{};
    char comma = 0;
    std::istringstream fields(line);
    if (fields >> row.at >> comma >> row.prompt >> comma >> row.output && row.at >= 0 &&
        row.prompt > 0 && row.output > 0)
      out.push_back(row);
    else if (number > 0 && !line.empty())
      throw Error(ErrorKind::kFile,
                  fmt::format("{} line {}: expected arrival,prompt tokens,new tokens", flags.trace,
                              number + 1),
                  "mend the line");
  }
  if (out.empty())
    throw Error(ErrorKind::kFile, flags.trace + ": holds no request", "check --trace");
  return out;
}

// Lengths: all equal, or spread as people's are (exponential, at least 4, at most four times the
// mean), or a trace's.
std::vector<serve::LoadRequest> make_requests(const BenchServeFlags& flags, double rate) {
  std::mt19937_64 random(flags.seed);
  std::exponential_distribution<double> unit(1);
  std::vector<Arrival> arrivals;
  if (!flags.trace.empty()) {
    arrivals = read_trace(flags);
    for (Arrival& one : arrivals) one.at /= flags.trace_speed;
  } else {
    double at = 0;
    const auto length = [&](int64_t mean) {
      if (flags.lengths == "fixed") return mean;
      return std::clamp<int64_t>(std::llround(static_cast<double>(mean) * unit(random)), 4,
                                 4 * mean);
    };
    for (int64_t i = 0; i < flags.requests; ++i) {
      const int64_t prompt = length(flags.prompt_tokens), output = length(flags.new_tokens);
      arrivals.push_back({at, prompt, output});
      if (rate > 0) at += unit(random) / rate;  // Poisson
    }
  }
  std::uniform_int_distribution<int32_t> token(3, static_cast<int32_t>(flags.vocab - 1));
  std::vector<int32_t> shared(static_cast<size_t>(flags.shared_prefix));
  for (int32_t& id : shared) id = token(random);
  std::vector<serve::LoadRequest> out;
  for (const Arrival& one : arrivals) {
    serve::LoadRequest& request = out.emplace_back();
    request.at_seconds = one.at;
    request.prompt = shared;
    const int64_t own = std::min(one.prompt, flags.longest_prompt);
    for (int64_t i = 0; i < own; ++i) request.prompt.push_back(token(random));
    request.max_tokens = static_cast<int>(std::min(one.output, flags.longest_output));
  }
  return out;
}

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
  if (!flags.trace.empty() && flags.users.empty()) loads = {{"trace", flags.trace_speed, 0}};
  if (loads.empty()) loads = {{"8 users", 8, 8}};
  if (!flags.json)
    std::printf(
        "| load | answered | 429 | failed | req/s | output tok/s | TTFT ms p50/p99 | TPOT ms "
        "p50/p99 | E2E ms p50/p99 |\n"
        "|---|---|---|---|---|---|---|---|---|\n");
  auto rows = nlohmann::ordered_json::array();
  std::string first_error;
  for (const Load& load : loads) {
    const auto requests = make_requests(flags, load.users > 0 ? 0 : load.value);
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
  if (flags.json) print_json({{"url", flags.url}, {"seed", flags.seed}, {"results", rows}});
  if (!flags.svg.empty()) {
    std::ofstream file(flags.svg);
    file << serve::latency_svg(rows, flags.rates.empty() ? "users" : "requests per second");
    if (!file.flush())
      throw Error(ErrorKind::kFile, flags.svg + ": can't be written",
                  "check the path and free space");
  }
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
  parser->add_option("--trace", flags->trace,
                     "arrivals and lengths from a file: seconds,prompt tokens,new tokens");
  parser->add_option("--trace-speed", flags->trace_speed, "so many times faster than the trace")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  parser->add_option("--requests", flags->requests, "for each load")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  parser->add_option("--pp,--prompt-len", flags->prompt_tokens, "prompt tokens (mean)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  parser->add_option("--tg,--gen-len", flags->new_tokens, "new tokens (mean)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  parser->add_option("--lengths", flags->lengths, "fixed, or exponential about the means")
      ->capture_default_str()
      ->check(CLI::IsMember({"fixed", "exponential"}));
  parser->add_option("--max-prompt-len", flags->longest_prompt, "longer prompts of a trace are cut")
      ->check(CLI::Range(1, 1 << 20));
  parser->add_option("--max-gen-len", flags->longest_output, "longer outputs of a trace are cut")
      ->check(CLI::Range(1, 1 << 20));
  parser
      ->add_option("--shared-prefix", flags->shared_prefix,
                   "tokens that all prompts begin with, besides their own")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  parser->add_option("--vocab", flags->vocab, "random prompts use ids from 3 up to this")
      ->capture_default_str()
      ->check(CLI::Range(8, 1 << 24));
  parser->add_option("--seed", flags->seed, "of lengths, arrivals and prompts")
      ->capture_default_str();
  parser->add_option("--svg", flags->svg, "a plot of latency against load");
  parser->add_flag("--json", flags->json, "one JSON object");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
