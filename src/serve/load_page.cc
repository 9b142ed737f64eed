#include "src/serve/load_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/app/chart.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

// A measure of all rows against their load. `measure`: {"e2e_ms", "p50"}, or one name.
app::ChartLine line_of(const ordered_json& rows, std::string name, const char* measure,
                       const char* share, const char* unit) {
  app::ChartLine out{std::move(name), {}};
  for (const ordered_json& row : rows) {
    const double value =
        share ? row.at(measure).at(share).get<double>() : row.at(measure).get<double>();
    out.points.push_back(
        {row.at("load").get<double>(), value,
         fmt::format("{}: {:.4g} {}", row.at("load_name").get<std::string>(), value, unit)});
  }
  return out;
}

app::Chart chart_of(const std::string& title, const std::string& load_name, std::string y_name,
                    std::vector<app::ChartLine> lines) {
  app::Chart out;
  out.title = title + " against load";
  out.x_name = load_name;
  out.y_name = std::move(y_name);
  out.lines = std::move(lines);
  return out;
}

app::Chart latency_chart(const ordered_json& rows, const std::string& load_name) {
  return chart_of("latency", load_name, "latency, ms",
                  {line_of(rows, "whole answer, median", "e2e_ms", "p50", "ms"),
                   line_of(rows, "whole answer, p99", "e2e_ms", "p99", "ms"),
                   line_of(rows, "first token, p99", "ttft_ms", "p99", "ms")});
}

std::string table_of(const ordered_json& rows) {
  std::string out =
      "<div class=\"scroll\" "
      "tabindex=\"0\"><table><tr><th>load</th><th>answered</th><th>429</th><th>failed</th>"
      "<th>requests/s</th><th>output tokens/s</th><th>first token, ms p50 / p99</th>"
      "<th>each token, ms p50 / p99</th><th>whole answer, ms p50 / p99</th></tr>\n";
  for (const ordered_json& row : rows) {
    const auto pair = [&](const char* measure) {
      return fmt::format("{:.4g} / {:.4g}", row[measure]["p50"].get<double>(),
                         row[measure]["p99"].get<double>());
    };
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.3g}</td><td>{:.4g}</td><td>{}</td>"
        "<td>{}</td><td>{}</td></tr>\n",
        app::escaped_html(row["load_name"].get<std::string>()), row["answered"].get<int64_t>(),
        row["refused_429"].get<int64_t>(), row["failed"].get<int64_t>(),
        row["requests_per_s"].get<double>(), row["output_tokens_per_s"].get<double>(),
        pair("ttft_ms"), pair("tpot_ms"), pair("e2e_ms"));
  }
  return out + "</table></div>\n";
}
}  // namespace

std::string latency_svg(const ordered_json& rows, const std::string& load_name) {
  return app::chart_svg_file(latency_chart(rows, load_name));
}

std::string load_html(const ordered_json& rows, const std::string& load_name,
                      const std::string& url) {
  const auto section = [](const char* name, const app::Chart& chart) {
    return fmt::format("<h2>{}</h2>\n{}", name, app::chart_svg(chart));
  };
  std::string out =
      fmt::format("<p class=\"note\">Measured by <code>sluice bench serve</code> at {}.</p>\n",
                  app::escaped_html(url));
  out += table_of(rows);
  out += section("How long answers take", latency_chart(rows, load_name));
  out += section("Tokens a second, of all callers",
                 chart_of("tokens a second", load_name, "output tokens/s",
                          {line_of(rows, "", "output_tokens_per_s", nullptr, "tokens/s")}));
  out += section("Between two tokens of an answer",
                 chart_of("time between tokens", load_name, "ms",
                          {line_of(rows, "median", "tpot_ms", "p50", "ms"),
                           line_of(rows, "p99", "tpot_ms", "p99", "ms")}));
  return app::html_page("A server under load", out);
}

}  // namespace sluice::serve
