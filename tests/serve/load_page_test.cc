// The pictures of a load: from records, by way of summarise().
#include "src/serve/load_page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/serve/load.h"

namespace sluice::serve {
namespace {

LoadRecord record_of(double sent, double first, double end, int64_t tokens) {
  LoadRecord out;
  out.sent = sent;
  out.first_token = first;
  out.end = end;
  out.output_tokens = tokens;
  out.is_answered = true;
  out.status = 200;
  return out;
}

nlohmann::ordered_json rows() {
  auto out = nlohmann::ordered_json::array();
  for (const int users : {1, 8}) {
    nlohmann::ordered_json row = summarise({record_of(0, 0.25 * users, 1.5 * users, 6)});
    row["load"] = users;
    row["load_name"] = std::to_string(users) + " <users>";
    out.push_back(std::move(row));
  }
  return out;
}

TEST(LoadPage, ShowsLatencyAndThroughputOfEachLoad) {
  const std::string page = load_html(rows(), "callers at a time", "http://127.0.0.1:8000");
  for (const char* part :
       {"8 &lt;users&gt;", "<td>1500 / 1500</td>", "1.2e+04 / 1.2e+04",
        "whole answer, median, 1 &lt;users&gt;: 1500 ms",
        "first token, p99, 8 &lt;users&gt;: 2000 ms", ">callers at a time</text>",
        ">latency, ms</text>", ">output tokens/s</text>", "8 &lt;users&gt;: 0.5 tokens/s"})
    EXPECT_NE(page.find(part), std::string::npos) << part << "\n" << page;
}

TEST(LoadPage, OfALoadThatNobodyAnsweredIsWhole) {
  LoadRecord refused;
  refused.status = 429;
  refused.end = 0.1;
  nlohmann::ordered_json row = summarise({refused});
  row["load"] = 4;
  row["load_name"] = "4 users";
  const auto all = nlohmann::ordered_json::array({row});
  EXPECT_NE(load_html(all, "callers at a time", "u").find("<td>4 users</td><td>0</td><td>1</td>"),
            std::string::npos);
  EXPECT_TRUE(latency_svg(all, "callers at a time").starts_with("<svg "));
  EXPECT_NE(load_html(nlohmann::ordered_json::array(), "callers", "u").find("</html>"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::serve
