#include "tools/load_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::tools {

namespace {
struct Arrival {
  double at;
  int64_t prompt, output;
};

// A trace's rows: arrived_at,num_prefill_tokens,num_decode_tokens, with a line of names first.
std::vector<Arrival> read_trace(const LoadShape& shape) {
  std::istringstream file(read_file(shape.trace, kMostTextBytes, Streams::kAllow));
  std::vector<Arrival> out;
  std::string line;
  for (int64_t number = 0;
       std::getline(file, line) && static_cast<int64_t>(out.size()) < shape.requests; ++number) {
    Arrival row{};
    char comma = 0;
    std::istringstream fields(line);
    if (fields >> row.at >> comma >> row.prompt >> comma >> row.output && row.at >= 0 &&
        row.prompt > 0 && row.output > 0)
      out.push_back(row);
    else if (number > 0 && !line.empty())
      throw Error(ErrorKind::kFile,
                  fmt::format("{} line {}: expected arrival,prompt tokens,new tokens", shape.trace,
                              number + 1),
                  "mend the line");
  }
  if (out.empty())
    throw Error(ErrorKind::kFile, shape.trace + ": holds no request", "check the file");
  return out;
}
}  // namespace

void LoadShape::add_to(CLI::App& parser, Arrivals arrivals) {
  const char* rows = "a file of seconds,prompt tokens,new tokens";
  if (arrivals == Arrivals::kTimed) {
    parser.add_option("--trace", trace, fmt::format("arrivals and lengths from {}", rows));
    parser.add_option("--trace-speed", trace_speed, "so many times faster than the trace")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
  } else {
    parser.add_option("--lengths-from", trace, fmt::format("lengths from {}", rows));
  }
  parser.add_option("--requests", requests, "for each load")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  parser.add_option("--pp,--prompt-len", prompt_tokens, "prompt tokens (mean)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  parser.add_option("--tg,--gen-len", new_tokens, "new tokens (mean)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  parser.add_option("--lengths", lengths, "fixed, or exponential about the means")
      ->capture_default_str()
      ->check(CLI::IsMember({"fixed", "exponential"}));
  parser.add_option("--max-prompt-len", longest_prompt, "longer prompts of a trace are cut")
      ->check(CLI::Range(1, 1 << 20));
  parser.add_option("--max-gen-len", longest_output, "longer outputs of a trace are cut")
      ->check(CLI::Range(1, 1 << 20));
  parser
      .add_option("--shared-prefix", shared_prefix,
                  "tokens that all prompts begin with, besides their own")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  parser.add_option("--vocab", vocab, "random prompts use ids from 3 up to this")
      ->capture_default_str()
      ->check(CLI::Range(8, 1 << 24));
  parser.add_option("--seed", seed, "of lengths, arrivals and prompts")->capture_default_str();
}

// Lengths: all equal, or spread as people's are (exponential, at least 4, at most four times the
// mean), or a trace's.
std::vector<serve::LoadRequest> LoadShape::make(double rate) const {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> unit(1);
  std::vector<Arrival> arrivals;
  if (!trace.empty()) {
    arrivals = read_trace(*this);
    for (Arrival& one : arrivals) one.at /= trace_speed;
  } else {
    double at = 0;
    const auto length = [&](int64_t mean) {
      if (lengths == "fixed") return mean;
      return std::clamp<int64_t>(std::llround(static_cast<double>(mean) * unit(random)), 4,
                                 4 * mean);
    };
    for (int64_t i = 0; i < requests; ++i) {
      const int64_t prompt = length(prompt_tokens), output = length(new_tokens);
      arrivals.push_back({at, prompt, output});
      if (rate > 0) at += unit(random) / rate;  // Poisson
    }
  }
  std::uniform_int_distribution<int32_t> token(3, static_cast<int32_t>(vocab - 1));
  std::vector<int32_t> shared(static_cast<size_t>(shared_prefix));
  for (int32_t& id : shared) id = token(random);
  std::vector<serve::LoadRequest> out;
  for (const Arrival& one : arrivals) {
    serve::LoadRequest& request = out.emplace_back();
    request.at_seconds = one.at;
    request.prompt = shared;
    const int64_t own = std::min(one.prompt, longest_prompt);
    for (int64_t i = 0; i < own; ++i) request.prompt.push_back(token(random));
    request.max_tokens = static_cast<int>(std::min(one.output, longest_output));
  }
  return out;
}

}  // namespace sluice::tools
