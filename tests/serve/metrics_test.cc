#include "src/serve/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

namespace sluice::serve {
namespace {

std::string line_of(const std::string& text, const std::string& start) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(start)) return line;
  return "no line " + start;
}

TEST(Metrics, HistogramsAccumulateByBound) {
  Histogram histogram({1, 2});
  for (double value : {0.5, 1.0, 1.5, 9.0}) histogram.observe(value);
  std::string text;
  histogram.write("h", "m=\"x\"", text);
  EXPECT_EQ(text,
            "h_bucket{m=\"x\",le=\"1\"} 2\nh_bucket{m=\"x\",le=\"2\"} "
            "3\nh_bucket{m=\"x\",le=\"+Inf\"} 4\n"
            "h_sum{m=\"x\"} 12\nh_count{m=\"x\"} 4\n");
}

TEST(Metrics, CountsWhatHappened) {
  Metrics metrics("a \"model\"");
  metrics.started(7);
  for (int token = 0; token < 11; ++token) metrics.generated(token == 0 ? -1 : 0.25);
  metrics.finished({0.5, 1.0, 3.0, 7, 11, "stop"});
  metrics.finished({-1, -1, 2.0, 5, 0, "abort"});  // never started: no prompt was computed
  metrics.rejected();
  PassReport report;
  report.pass = 4;
  report.kv_pages = 10;
  report.kv_pages_used = 5;
  report.prefix_hit_tokens = 64;
  report.restored_pages = 9;
  report.lanes[Lane::kDiskRead] = {4096, 1.5};
  metrics.passed(report);
  PassReport larger;
  larger.pass_class = 1;
  larger.from_tokens = 48;
  larger.prefill_tokens = 300;
  larger.decode_tokens = 2;
  larger.seconds = 0.5;
  metrics.passed(larger, {0.75, 1.5});
  metrics.passed(larger);
  metrics.passed(report);
  const std::string text = metrics.text(3, 2);
  const std::string model = "{model_name=\"a \\\"model\\\"\"} ";
  EXPECT_EQ(line_of(text, "vllm:num_requests_running"), "vllm:num_requests_running" + model + "3");
  EXPECT_EQ(line_of(text, "vllm:num_requests_waiting"), "vllm:num_requests_waiting" + model + "2");
  EXPECT_EQ(line_of(text, "vllm:kv_cache_usage_perc"), "vllm:kv_cache_usage_perc" + model + "0.5");
  EXPECT_EQ(line_of(text, "sluice:kv_pages{"), "sluice:kv_pages" + model + "10");
  EXPECT_EQ(line_of(text, "sluice:kv_pages_used"), "sluice:kv_pages_used" + model + "5");
  // Who ran has been taken back since the last pass.
  const std::string idle = metrics.text(0, 2);
  EXPECT_EQ(line_of(idle, "sluice:kv_pages_used"), "sluice:kv_pages_used" + model + "0");
  EXPECT_EQ(line_of(idle, "vllm:kv_cache_usage_perc"), "vllm:kv_cache_usage_perc" + model + "0");
  EXPECT_EQ(line_of(text, "vllm:prompt_tokens_total"), "vllm:prompt_tokens_total" + model + "7");
  EXPECT_EQ(line_of(text, "vllm:generation_tokens_total"),
            "vllm:generation_tokens_total" + model + "11");
  EXPECT_EQ(line_of(text, "vllm:inter_token_latency_seconds_count"),
            "vllm:inter_token_latency_seconds_count" + model + "10");
  EXPECT_EQ(line_of(text, "vllm:prefix_cache_hits_total"),
            "vllm:prefix_cache_hits_total" + model + "64");
  EXPECT_EQ(line_of(text, "sluice:kv_pages_restored_total"),
            "sluice:kv_pages_restored_total" + model + "9");
  const std::string disk = R"(lane=")" + lane_name(named_lanes(), Lane::kDiskRead) + R"("} )";
  EXPECT_NE(text.find(disk + "4096"), std::string::npos) << text;
  EXPECT_NE(text.find(disk + "1.5"), std::string::npos);
  const std::string second = R"({model_name="a \"model\"",pass_class="1",from_tokens="48"} )";
  for (const char* line :
       {"passes_total", "seconds_total", "prompt_tokens_total", "decode_tokens_total",
        "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count"}) {
    const std::string name = std::string("sluice:pass_class_") + line;
    const size_t at = text.find(name + second);
    ASSERT_NE(at, std::string::npos) << name;
    const std::string value = text.substr(at + name.size() + second.size(), 4);
    const std::map<std::string, std::string> expected{{"passes_total", "2\n"},
                                                      {"seconds_total", "1\n"},
                                                      {"prompt_tokens_total", "600\n"},
                                                      {"decode_tokens_total", "4\n"},
                                                      {"time_to_first_token_seconds_sum", "2.25"},
                                                      {"time_to_first_token_seconds_count", "2\n"}};
    EXPECT_TRUE(value.starts_with(expected.at(line))) << name << " " << value;
  }
  EXPECT_EQ(line_of(text, "sluice:requests_rejected_total"),
            "sluice:requests_rejected_total" + model + "1");
  EXPECT_EQ(line_of(text, "vllm:time_to_first_token_seconds_sum"),
            "vllm:time_to_first_token_seconds_sum" + model + "1");
  EXPECT_EQ(line_of(text, "vllm:request_queue_time_seconds_count"),
            "vllm:request_queue_time_seconds_count" + model + "1");
  EXPECT_NE(text.find("finished_reason=\"abort\"} 1"), std::string::npos);
  EXPECT_DOUBLE_EQ(metrics.recent_seconds(), 2.5);
}

// Prometheus' own client ends counters in _total, so vLLM's do. Times have buckets up to an hour.
TEST(Metrics, NamesAndBucketsAreThoseOfDashboards) {
  const std::string text = Metrics("m").text(0, 0);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("# TYPE ") && line.ends_with(" counter")) {
      EXPECT_TRUE(line.ends_with("_total counter")) << line;
    }
  for (const char* name : {"time_to_first_token_seconds", "inter_token_latency_seconds",
                           "e2e_request_latency_seconds", "request_queue_time_seconds",
                           "request_prefill_time_seconds", "request_decode_time_seconds"})
    EXPECT_NE(text.find(std::string("vllm:") + name + "_bucket{model_name=\"m\",le=\"3600\"} 0"),
              std::string::npos)
        << name;
}

}  // namespace
}  // namespace sluice::serve
