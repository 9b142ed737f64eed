#include "src/serve/load.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/base/error.h"
#include "src/base/mutex.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

class Caller {
 public:
  Caller(const LoadTarget& target, Clock::time_point start)
      : target_(target), start_(start), client_(target.host, target.port) {
    const auto seconds = static_cast<time_t>(target.timeout_seconds);
    client_.set_read_timeout(seconds);
    client_.set_connection_timeout(seconds);
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
  }

  LoadRecord call(const LoadRequest& request) {
    record_ = {};
    pending_.clear();
    ordered_json body{{"prompt", request.prompt}, {"max_tokens", request.max_tokens},
                      {"temperature", 0},         {"ignore_eos", true},
                      {"stream", true},           {"stream_options", {{"include_usage", true}}}};
    if (!target_.model.empty()) body["model"] = target_.model;
    httplib::Request http;
    http.method = "POST";
    http.path = target_.path;
    http.body = body.dump();
    http.set_header("Content-Type", "application/json");
    if (!target_.api_key.empty()) http.set_header("Authorization", "Bearer " + target_.api_key);
    std::string refusal;
    http.response_handler = [&](const httplib::Response& response) {
      record_.status = response.status;
      return true;
    };
    http.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      if (record_.status != 200)
        refusal.append(data, size);
      else
        read(std::string_view(data, size));
      return true;
    };
    record_.sent = now();
    const auto result = client_.send(http);
    record_.end = now();
    record_.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    if (!result)
      record_.error = httplib::to_string(result.error());
    else if (record_.status != 200)
      record_.error = fmt::format("HTTP {}: {}", record_.status, refusal.substr(0, 200));
    else if (!is_ended_)
      record_.error = "the stream broke off";
    if (counted_ > 0) record_.output_tokens = counted_;
    record_.is_answered = record_.error.empty();
    return record_;
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void read(std::string_view piece) {
    pending_ += piece;
    size_t end;
    while ((end = pending_.find('\n')) != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      if (line.starts_with("data: ")) take(line.substr(6));
    }
  }

  void take(const std::string& data) {
    if (data == "[DONE]") {
      is_ended_ = true;
      return;
    }
    const ordered_json chunk = ordered_json::parse(data, nullptr, false);
    if (!chunk.is_object()) return;
    if (const auto usage = chunk.find("usage"); usage != chunk.end() && usage->is_object())
      counted_ = usage->value("completion_tokens", int64_t{0});
    const auto choices = chunk.find("choices");
    if (choices == chunk.end() || !choices->is_array() || choices->empty()) return;
    const ordered_json& choice = choices->front();
    const bool has_text = choice.contains("text") && choice["text"].is_string() &&
                          !choice["text"].get_ref<const std::string&>().empty();
    if (!has_text) return;
    const double at = now();
    if (record_.output_tokens++ == 0)
      record_.first_token = at;
    else
      record_.gaps.push_back(at - last_);
    last_ = at;
  }

  const LoadTarget& target_;
  Clock::time_point start_;
  httplib::Client client_;
  LoadRecord record_;
  std::string pending_;
  double last_ = 0;
  int64_t counted_ = 0;
  bool is_ended_ = false;
};

ordered_json spread(std::vector<double> seconds) {
  double sum = 0;
  for (double value : seconds) sum += value;
  const double mean = seconds.empty() ? 0 : sum / static_cast<double>(seconds.size());
  return {{"mean", 1e3 * mean},
          {"p50", 1e3 * percentile(seconds, 0.5)},
          {"p90", 1e3 * percentile(seconds, 0.9)},
          {"p99", 1e3 * percentile(seconds, 0.99)}};
}
}  // namespace

LoadTarget parse_target(const std::string& url) {
  const auto refuse = [&] {
    throw Error(ErrorKind::kUser, fmt::format("{}: not an address of a server", url),
                "write it as http://127.0.0.1:8000");
  };
  std::string rest = url;
  if (rest.starts_with("http://")) rest.erase(0, 7);
  if (rest.find("://") != std::string::npos) refuse();
  LoadTarget out;
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    std::string path = rest.substr(slash);
    while (path.ends_with('/')) path.pop_back();
    out.path = path.ends_with("/completions") ? path
               : path.ends_with("/v1")        ? path + "/completions"
                                              : path + "/v1/completions";
    rest.resize(slash);
  }
  const size_t colon = rest.rfind(':');
  out.host = rest.substr(0, colon);
  if (colon != std::string::npos) {
    const std::string port = rest.substr(colon + 1);
    if (port.empty() || port.size() > 5 ||
        port.find_first_not_of("0123456789") != std::string::npos)
      refuse();
    out.port = std::stoi(port);
  }
  if (out.host.empty() || out.port < 1 || out.port > 65535) refuse();
  return out;
}

std::vector<LoadRecord> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests,
                                 int users, std::stop_token stop,
                                 const std::function<void(int64_t done)>& progress) {
  const Clock::time_point start = Clock::now();
  std::vector<LoadRecord> records(requests.size());
  std::atomic<size_t> next = 0;
  Mutex mutex;
  int64_t done = 0;
  const auto call = [&](size_t i) {
    // A connection each, as separate callers have.
    records[i] = Caller(target, start).call(requests[i]);
    const MutexLock lock(mutex);
    ++done;
    if (progress) progress(done);
  };
  std::vector<std::jthread> threads;
  if (users > 0) {
    for (int user = 0; user < users; ++user)
      threads.emplace_back([&] {
        for (size_t i = next++; i < requests.size() && !stop.stop_requested(); i = next++) call(i);
      });
  } else {
    for (size_t i = 0; i < requests.size() && !stop.stop_requested(); ++i) {
      std::this_thread::sleep_until(start +
                                    std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(requests[i].at_seconds)));
      threads.emplace_back([&, i] { call(i); });
    }
  }
  threads.clear();
  return records;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

ordered_json summarise(const std::vector<LoadRecord>& records) {
  std::vector<double> first, per_token, gaps, whole;
  int64_t answered = 0, refused = 0, prompt = 0, output = 0;
  double begin = INFINITY, end = 0;
  for (const LoadRecord& record : records) {
    if (record.end == 0) continue;  // never sent
    begin = std::min(begin, record.sent);
    end = std::max(end, record.end);
    refused += record.status == 429;
    if (!record.is_answered) continue;
    ++answered;
    prompt += record.prompt_tokens;
    output += record.output_tokens;
    whole.push_back(record.end - record.sent);
    if (record.first_token == 0) continue;
    first.push_back(record.first_token - record.sent);
    gaps.insert(gaps.end(), record.gaps.begin(), record.gaps.end());
    if (record.output_tokens > 1)
      per_token.push_back((record.end - record.first_token) /
                          static_cast<double>(record.output_tokens - 1));
  }
  const double seconds = std::max(end - begin, 1e-9);
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / seconds; };
  return {{"requests", records.size()},
          {"answered", answered},
          {"refused_429", refused},
          {"failed", static_cast<int64_t>(records.size()) - answered - refused},
          {"seconds", seconds},
          {"requests_per_s", rate(answered)},
          {"output_tokens_per_s", rate(output)},
          {"total_tokens_per_s", rate(prompt + output)},
          {"prompt_tokens", prompt},
          {"output_tokens", output},
          {"ttft_ms", spread(std::move(first))},
          {"tpot_ms", spread(std::move(per_token))},
          {"itl_ms", spread(std::move(gaps))},
          {"e2e_ms", spread(std::move(whole))}};
}

}  // namespace sluice::serve
