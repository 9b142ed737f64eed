#pragma once
// Load on a server of OpenAI's interface, and what it felt like: the client's side of a benchmark.
// Any server will do. Definitions are the field's (vLLM's bench serve):
//   TTFT   first token - sent            TPOT  (end - first token) / (output tokens - 1)
//   ITL    gaps between tokens           E2E   end - sent
//   output throughput = output tokens / (last end - first sent); QPS = answered / the same time
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <string>
#include <vector>

namespace sluice::serve {

/// The server that is asked.
struct LoadTarget {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string path = "/v1/completions";
  std::string model;    ///< empty: left out
  std::string api_key;  ///< empty: none
  double timeout_seconds = 600;
};

/// One request of a load.
struct LoadRequest {
  double at_seconds = 0;  ///< arrival, from the start; open loop only
  std::vector<int32_t> prompt;
  int max_tokens = 16;
};

/// What came of one request.
struct LoadRecord {
  bool is_answered = false;
  int status = 0;                             ///< of HTTP; 0: no answer at all
  std::string error;                          ///< empty when answered
  double sent = 0, first_token = 0, end = 0;  ///< seconds from the start
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  ///< as the server counts them, else chunks
  std::vector<double> gaps;   ///< seconds between chunks with text
};

/// "http://host:port/v1" into a target. Errors: kUser.
LoadTarget parse_target(const std::string& url);

/// Sends all `requests`, greedy and past the end-of-text token: `users` > 0 keeps so many under way
/// (closed loop); 0 sends each at its time (open loop). Stops sending when asked to.
std::vector<LoadRecord> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests,
                                 int users, std::stop_token stop,
                                 const std::function<void(int64_t done)>& progress = {});

/// The value below which `share` of `values` lie, by linear interpolation; 0 for none.
double percentile(std::vector<double> values, double share);
/// Counts, throughputs and p50/p90/p99 of TTFT, TPOT, ITL and E2E in milliseconds.
nlohmann::ordered_json summarise(const std::vector<LoadRecord>& records);

}  // namespace sluice::serve
