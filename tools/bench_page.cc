#include "tools/bench_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/app/chart.h"
#include "src/base/bytes.h"

namespace sluice::tools {

namespace {
using nlohmann::ordered_json;

double middle_of(const ordered_json& row, const char* field) {
  return row.at(field).at("median").get<double>();
}

app::Chart against_batch(const ordered_json& rows, const char* title, const char* y_name,
                         const char* field, double factor) {
  app::Chart out;
  out.title = std::string(title) + " against the batch";
  out.x_name = "sequences at a time";
  out.y_name = y_name;
  out.x_scale = app::ChartScale::kLogarithmic;
  app::ChartLine line;
  for (const ordered_json& row : rows) {
    const auto batch = row.at("batch").get<int64_t>();
    out.x_ticks.push_back({static_cast<double>(batch), std::to_string(batch)});
    if (!row.contains(field)) continue;
    const double value = factor * middle_of(row, field);
    const double least = factor * row[field]["min"].get<double>();
    const double most = factor * row[field]["max"].get<double>();
    line.points.push_back(
        {static_cast<double>(batch), value,
         fmt::format("batch {}: {:.4g} {} ({:.4g} to {:.4g})", batch, value, y_name, least, most)});
  }
  out.lines.push_back(std::move(line));
  return out;
}

std::string table_of(const ordered_json& rows) {
  std::string out =
      "<div class=\"scroll\" tabindex=\"0\"><table><tr><th>batch</th><th>prompt "
      "tokens/s</th><th>new "
      "tokens/s</th><th>seconds a decode pass</th><th>read in each pass</th><th>of the disk's "
      "limit</th></tr>\n";
  for (const ordered_json& row : rows)
    out += fmt::format(
        "<tr><td>{}</td><td>{:.4g}</td><td>{:.4g}</td><td>{:.3g}</td><td>{}</td><td>{}</td></tr>\n",
        row["batch"].get<int64_t>(), middle_of(row, "prefill_tokens_per_s"),
        middle_of(row, "decode_tokens_per_s"), middle_of(row, "decode_pass_s"),
        format_bytes(row["streamed_bytes_per_pass"].get<int64_t>()),
        row.contains("share_of_disk_limit")
            ? fmt::format("{:.1f} %", 100 * middle_of(row, "share_of_disk_limit"))
            : "-");
  return out + "</table></div>\n";
}
}  // namespace

std::string bench_html(const ordered_json& rows, const std::string& model,
                       const std::string& machine) {
  std::string out = fmt::format(
      "<p class=\"note\">Measured by <code>sluice bench</code> on {}: medians; prompts of {} "
      "tokens, "
      "{} new ones. Pointing at a circle shows the spread.</p>\n",
      app::escaped_html(machine), rows.front()["pp"].get<int64_t>(),
      rows.front()["tg"].get<int64_t>());
  out += table_of(rows);
  const auto section = [&](const char* name, const app::Chart& chart) {
    const std::string picture = app::chart_svg(chart);
    if (!picture.empty()) out += fmt::format("<h2>{}</h2>\n{}", name, picture);
  };
  section("New tokens a second, of all sequences together",
          against_batch(rows, "new tokens a second", "tokens/s", "decode_tokens_per_s", 1));
  section("Prompt tokens a second",
          against_batch(rows, "prompt tokens a second", "tokens/s", "prefill_tokens_per_s", 1));
  section("How much of what the disk can do a decode pass takes",
          against_batch(rows, "share of the disk's limit", "%", "share_of_disk_limit", 100));
  return app::html_page("Throughput of " + model, out);
}

}  // namespace sluice::tools
