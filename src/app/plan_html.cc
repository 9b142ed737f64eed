#include "src/app/plan_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "policy/simulator.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice::app {

namespace {
using policy::SearchRequest;
using policy::SearchResult;

constexpr const char* kStyle =
    R"(body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;
color:#1d2733;background:#fff}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
pre{background:#f3f5f8;padding:1em;overflow-x:auto;font-size:13px}svg{width:100%;height:auto;background:#fafbfc}
text{font:12px system-ui,sans-serif;fill:#1d2733}.faint{fill:#6b7785}.axis{stroke:#9aa5b1;stroke-width:1}
p.note{color:#6b7785;font-size:13px})";

constexpr const char* kColours[] = {"#2f6fb0", "#e08a2e", "#4a9d63", "#b5495b", "#7a5ba6",
                                    "#3d8f98", "#8a7f3d", "#a0522d", "#5f6b7a", "#c0679a"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

std::string text_at(double x, double y, std::string_view text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, escaped(text));
}

std::string box(double x, double y, double width, double height, const char* colour,
                const std::string& title) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}"
      "</title></rect>\n",
      x, y, std::max(width, 0.3), height, colour, escaped(title));
}

// Each tier as a bar as long as its budget, filled by its uses.
std::string occupancy(const SearchRequest& request, const policy::Plan& plan) {
  struct Tier {
    std::string name;
    const std::vector<policy::PlanLine>* lines;
    int64_t budget;
  };
  std::vector<Tier> tiers;
  if (plan.has_device) tiers.push_back({"device", &plan.device, request.input.device_budget_bytes});
  tiers.push_back(
      {plan.has_device ? "host" : "memory", &plan.memory, request.input.memory_budget_bytes});
  std::vector<policy::PlanLine> disk = plan.disk;
  if (plan.streamed_weight_bytes > 0)
    disk.push_back({"streamed weights", plan.streamed_weight_bytes});
  int64_t on_disk = 0;
  for (const policy::PlanLine& line : disk) on_disk += line.bytes;
  if (on_disk > 0)
    tiers.push_back({"disk", &disk, std::max(request.input.disk_budget_bytes, on_disk)});
  std::string out = fmt::format("<svg viewBox=\"0 0 900 {}\">\n", 20 + 95 * tiers.size());
  double y = 25;
  for (const Tier& tier : tiers) {
    const double scale = 780.0 / static_cast<double>(std::max<int64_t>(tier.budget, 1));
    out += text_at(0, y + 18, tier.name);
    out +=
        fmt::format("<rect x=\"100\" y=\"{}\" width=\"780\" height=\"28\" fill=\"#e6eaef\"/>\n", y);
    double x = 100;
    double legend = 100;
    size_t colour = 0;
    double legend_y = y + 46;
    for (const policy::PlanLine& line : *tier.lines) {
      if (line.bytes <= 0) continue;
      const char* fill = kColours[colour++ % std::size(kColours)];
      const double width = static_cast<double>(line.bytes) * scale;
      const std::string label = line.what + " " + format_bytes(line.bytes);
      out += box(x, y, width, 28, fill, label);
      x += width;
      const double need = 22 + 7.0 * static_cast<double>(label.size());
      if (legend + need > 890) legend = 100, legend_y += 17;
      out +=
          box(legend, legend_y - 10, 11, 11, fill, label) + text_at(legend + 15, legend_y, label);
      legend += need;
    }
    out += text_at(885, y - 5, format_bytes(tier.budget), "text-anchor=\"end\" class=\"faint\"");
    y += 95;
  }
  return out + "</svg>\n";
}

// The lanes over a few layers in the middle of the last simulated pass.
std::string timeline(const SearchRequest& request, const SearchResult& result) {
  const policy::Plan& plan = result.best.plan;
  const ModelShape& model = *request.input.model;
  const auto block = policy::block_passes(model, plan, request.job, 1, 2);
  const auto simulation = policy::simulate(model, plan, *request.profile, request.input.kv_dtype,
                                           policy::schedule_shape(model, plan), block.passes, true);
  const auto last = static_cast<int64_t>(block.passes.size()) - 1;
  const auto sublayers = static_cast<int32_t>(model.sublayers.size());
  const int32_t first = sublayers / 2;
  const int32_t end = std::min(first + 6, sublayers);
  double from = 1e300;
  double to = 0;
  for (const auto& task : simulation.tasks)
    if (task.task.pass == last && task.task.lane == Lane::kDeviceCompute &&
        task.task.sublayer >= first && task.task.sublayer < end) {
      from = std::min(from, task.start_seconds);
      to = std::max(to, task.end_seconds);
    }
  if (to <= from) return {};
  const double scale = 780 / (to - from);
  std::string out = "<svg viewBox=\"0 0 900 235\">\n";
  int row = 0;
  for (const LaneSpec& lane : named_lanes()) out += text_at(0, 30 + 32 * row++, lane.name);
  int64_t drawn = 0;
  constexpr int64_t kMost = 4000;
  for (const auto& task : simulation.tasks) {
    if (task.end_seconds <= from || task.start_seconds >= to || ++drawn > kMost) continue;
    const double x = std::max(task.start_seconds, from);
    const double width = (std::min(task.end_seconds, to) - x) * scale;
    if (width <= 0) continue;
    out += box(115 + (x - from) * scale, 15.0 + 32 * static_cast<int>(task.task.lane), width, 22,
               kColours[static_cast<size_t>(task.task.sublayer) % std::size(kColours)],
               fmt::format("{} sublayer {} micro-batch {}: {}", task_kind_name(task.task.kind),
                           task.task.sublayer, task.task.micro_batch,
                           format_seconds(task.end_seconds - task.start_seconds)));
  }
  out += text_at(115, 228, "0", "class=\"faint\"") +
         text_at(885, 228, format_seconds(to - from), "text-anchor=\"end\" class=\"faint\"");
  return out + "</svg>\n";
}

struct Point {
  double x, y;
  std::string label;
};

std::string curve(const std::vector<Point>& points, const char* x_name, const char* y_name,
                  double marked) {
  if (points.size() < 2) return "<p class=\"note\">Too few sizes fit for a curve.</p>\n";
  double most = 0;
  for (const Point& point : points) most = std::max(most, point.y);
  const double low = std::log(points.front().x);
  const double span = std::max(std::log(points.back().x) - low, 1e-9);
  const auto px = [&](double x) { return 70 + 800 * (std::log(x) - low) / span; };
  const auto py = [&](double y) { return 220 - 190 * y / std::max(most, 1e-12); };
  std::string out =
      "<svg viewBox=\"0 0 900 275\">\n<path class=\"axis\" fill=\"none\" d=\"M70 20V220H880\"/>\n";
  std::string path;
  for (const Point& point : points)
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(point.x), py(point.y));
  out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>\n", path,
                     kColours[0]);
  for (const Point& point : points) {
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>{}</title></circle>\n",
        px(point.x), py(point.y), point.x == marked ? kColours[1] : kColours[0],
        escaped(fmt::format("{}: {:.4g}", point.label, point.y)));
    out += text_at(px(point.x), 238, point.label, "text-anchor=\"middle\" class=\"faint\"");
  }
  out += text_at(60, 32, fmt::format("{:.3g}", most), "text-anchor=\"end\" class=\"faint\"");
  out += text_at(475, 266, x_name, "text-anchor=\"middle\"") + text_at(0, 14, y_name);
  return out + "</svg>\n";
}

double rate_of(const SearchRequest& request) {
  try {
    return job_tokens_per_second(policy::search_policy(request).best, request.job);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return -1;  // does not fit
  }
}

std::string memory_curve(const SearchRequest& request) {
  std::vector<Point> points;
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    SearchRequest one = request;
    one.simulated_candidates = 2;
    one.input.memory_budget_bytes =
        static_cast<int64_t>(static_cast<double>(request.input.memory_budget_bytes) * factor);
    const double rate = rate_of(one);
    if (rate > 0) points.push_back({factor, rate, format_bytes(one.input.memory_budget_bytes)});
  }
  return curve(points, "host memory", "tokens/s", 1.0);
}

std::string batch_curve(const SearchRequest& request) {
  std::vector<Point> points;
  for (int64_t sequences : {1, 4, 16, 64, 256, 1024}) {
    SearchRequest one = request;
    one.simulated_candidates = 2;
    one.job.sequences = sequences;
    const int64_t before = std::max<int64_t>(one.input.workload.sequences, 1);
    one.input.workload.total_tokens = one.input.workload.total_tokens / before * sequences;
    one.input.workload.sequences = sequences;
    const double rate = rate_of(one);
    if (rate > 0)
      points.push_back({static_cast<double>(sequences), rate, std::to_string(sequences)});
  }
  return curve(points, "sequences of the job", "tokens/s",
               static_cast<double>(request.job.sequences));
}

// Operations a second against operations for each byte of weights read: rows of a product.
std::string roofline(const SearchRequest& request, const SearchResult& result) {
  const policy::Processor& processor =
      request.profile->device ? *request.profile->device : request.profile->host;
  double peak = 0;
  for (const policy::MatmulRate& rate : processor.matmul) peak = std::max(peak, rate.flops.value);
  const ModelShape& model = *request.input.model;
  const auto element = static_cast<double>(model.weight_bytes()) /
                       static_cast<double>(std::max<int64_t>(model.num_parameters(), 1));
  const auto roof = [&](double rows) {
    return std::min(peak, processor.memory_read.value * 2 * rows / element);
  };
  const auto px = [](double rows) { return 70 + 800 * std::log2(rows) / 12; };
  const double low = std::log10(roof(1));
  const double span = std::max(std::log10(peak) - low, 1e-9);
  const auto py = [&](double flops) {
    return std::clamp(220 - 180 * (std::log10(flops) - low) / span, 20.0, 230.0);
  };
  std::string out =
      "<svg viewBox=\"0 0 900 275\">\n<path class=\"axis\" fill=\"none\" d=\"M70 20V230H880\"/>\n";
  std::string path;
  for (int i = 0; i <= 48; ++i) {
    const double rows = std::pow(2.0, i / 4.0);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(rows), py(roof(rows)));
  }
  out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>\n", path,
                     kColours[2]);
  for (int i = 0; i <= 12; ++i)
    out += text_at(px(std::pow(2.0, i)), 246, std::to_string(1 << i),
                   "text-anchor=\"middle\" class=\"faint\"");
  const int64_t decode =
      std::min(result.best.policy.micro_batch_sequences, result.best.policy.micro_batch_tokens);
  const int64_t prefill =
      std::min(result.best.policy.micro_batch_tokens, result.best.plan.pass_tokens);
  for (const auto& [rows, name, colour] :
       {std::tuple{decode, "decode", kColours[1]}, std::tuple{prefill, "prefill", kColours[0]}}) {
    constexpr int64_t kSide = 4096;
    const double flops =
        2.0 * static_cast<double>(rows * kSide * kSide) /
        policy::matmul_seconds(processor, *parse_weight_format(model.weights_name()),
                               request.input.eight_bit_activations, rows, kSide, kSide);
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n",
                       px(static_cast<double>(rows)), py(flops), colour);
    out += text_at(px(static_cast<double>(rows)) + 8, py(flops) + 16,
                   fmt::format("{} ({} rows): {:.3g} TFLOP/s", name, rows, flops / 1e12));
  }
  out += text_at(475, 268, "rows of a product (both axes logarithmic)", "text-anchor=\"middle\"") +
         text_at(0, 14, fmt::format("up to {:.3g} TFLOP/s", peak / 1e12));
  return out + "</svg>\n";
}

// For a reader who was sent the page and knows neither the program nor the machine.
std::string what_it_is(const PlanSubject& subject, const policy::Profile& profile) {
  const std::string machine = profile.description.empty() ? subject.hardware : profile.description;
  return fmt::format(
      "<p>What <code>sluice plan</code> expects of this model on this machine, by simulating the "
      "schedule that would run: <b>nothing here was run</b>. The machine: {}</p>\n"
      "<p class=\"note\">What of the model fits lies on the <i>device</i> (a GPU's memory) and the "
      "<i>host</i> (main memory); the rest is read from <i>disk</i> in every pass. <i>Prefill</i> "
      "is the prompts, <i>decode</i> the new tokens, of all sequences (texts at a time) together. "
      "A <i>lane</i> is what can be busy; the bottleneck is the busiest.</p>\n",
      escaped(machine));
}
}  // namespace

std::string plan_html(const PlanSubject& subject, const SearchRequest& request,
                      const SearchResult& result, const std::optional<WhatIfs>& what_ifs) {
  const std::string title = fmt::format("{} on {}", subject.model, subject.hardware);
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta "
      "charset=\"utf-8\"><title>{}</title>\n<style>{}"
      "</style></head><body>\n<h1>{}</h1>\n{}<pre>{}</pre>\n",
      escaped(title), kStyle, escaped(title), what_it_is(subject, *request.profile),
      escaped(plan_text(subject, request, result, what_ifs)));
  out += "<h2>What lies where</h2>\n" + occupancy(request, result.best.plan);
  out += "<h2>The lanes while six sublayers decode</h2>\n" + timeline(request, result);
  out += "<p class=\"note\">Colours are sublayers; each box says what it is when pointed at.</p>\n";
  out += "<h2>Throughput against host memory</h2>\n" + memory_curve(request);
  out += "<h2>Throughput against the number of sequences</h2>\n" + batch_curve(request);
  out += "<h2>Products under the roofline</h2>\n" + roofline(request, result);
  return out + "</body></html>\n";
}

}  // namespace sluice::app
