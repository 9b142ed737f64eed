#include "src/app/plan_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "policy/simulator.h"
#include "src/app/chart.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/side_by_side.h"

namespace sluice::app {

namespace {
using policy::SearchRequest;
using policy::SearchResult;

std::string text_at(double x, double y, std::string_view text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more,
                     escaped_html(text));
}

std::string box(double x, double y, double width, double height, const std::string& colour,
                const std::string& title) {
  return fmt::format(
      "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\"><title>{}"
      "</title></rect>\n",
      colour, x, y, std::max(width, 0.3), height, escaped_html(title));
}

std::string picture(double height, const char* says, const std::string& body) {
  return fmt::format("<svg viewBox=\"0 0 900 {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
                     height, says, body);
}

// Ticks of an axis below something drawn from `left` on, `width` for `most`.
std::string scale_below(double left, double width, double y, double most, const char* unit) {
  std::string out =
      fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}h{:.1f}\"/>\n", left, y, width);
  for (const ChartTick& tick : chart_ticks(0, most, ChartScale::kLinear, 6)) {
    if (tick.at > most * 1.001) break;
    const double x = left + width * tick.at / most;
    out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}v5\"/>\n", x, y);
    out += text_at(x, y + 18, tick.at > 0 ? tick.name + " " + unit : tick.name,
                   "class=\"soft middle\"");
  }
  return out;
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
  std::string out;
  double y = 25;
  for (const Tier& tier : tiers) {
    const double scale = 780.0 / static_cast<double>(std::max<int64_t>(tier.budget, 1));
    out += text_at(0, y + 18, tier.name);
    out +=
        fmt::format("<rect class=\"track\" x=\"100\" y=\"{}\" width=\"780\" height=\"28\"/>\n", y);
    double x = 100;
    double legend = 100;
    size_t colour = 0;
    const auto gib = static_cast<double>(std::max<int64_t>(tier.budget, 1)) / kGiB;
    out += gib >= 2 ? scale_below(100, 780, y + 28, gib, "GiB")
                    : scale_below(100, 780, y + 28, gib * 1024, "MiB");
    double legend_y = y + 68;
    for (const policy::PlanLine& line : *tier.lines) {
      if (line.bytes <= 0) continue;
      const std::string fill = colour_class(colour++);
      const double width = static_cast<double>(line.bytes) * scale;
      const std::string label = std::string(line.what) + " " + format_bytes(line.bytes);
      out += box(x, y, width, 28, fill, label);
      x += width;
      const double need = 24 + 7.6 * static_cast<double>(label.size());
      if (legend + need > 890) legend = 100, legend_y += 17;
      out +=
          box(legend, legend_y - 10, 11, 11, fill, label) + text_at(legend + 15, legend_y, label);
      legend += need;
    }
    out += text_at(880, y - 6, format_bytes(tier.budget), "class=\"soft end\"");
    y = legend_y + 40;
  }
  return picture(y - 20, "what lies in each tier", out);
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
  std::string out;
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
               colour_class(static_cast<size_t>(task.task.sublayer)),
               fmt::format("{} sublayer {} micro-batch {}: {}", task_kind_name(task.task.kind),
                           task.task.sublayer, task.task.micro_batch,
                           format_seconds(task.end_seconds - task.start_seconds)));
  }
  const double seconds = to - from;
  out += seconds >= 2 ? scale_below(115, 780, 212, seconds, "s")
                      : scale_below(115, 780, 212, seconds * 1e3, "ms");
  return picture(242, "what each lane does while six sublayers pass", out);
}

// Throughput over sizes that the points' ticks name.
std::string curve(std::vector<ChartPoint> points, std::vector<ChartTick> sizes, const char* title,
                  const char* x_name, double marked) {
  if (points.size() < 2) return "<p class=\"note\">Too few sizes fit for a curve.</p>\n";
  for (size_t i = 0; i < points.size(); ++i) {
    points[i].says = fmt::format("{}: {:.4g} tokens/s", sizes[i].name, points[i].y);
    points[i].is_marked = points[i].x == marked;
  }
  return chart_svg({.title = title,
                    .x_name = x_name,
                    .y_name = "tokens/s",
                    .x_scale = ChartScale::kLogarithmic,
                    .x_ticks = std::move(sizes),
                    .lines = {{"", std::move(points)}}});
}

double rate_of(const SearchRequest& request) {
  try {
    return job_tokens_per_second(policy::search_policy(request).best, request.job);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResource) throw;
    return -1;  // does not fit
  }
}

// Rates of the requests that fit, each at the tick of its own index.
std::string rate_curve(const std::vector<SearchRequest>& requests,
                       const std::vector<ChartTick>& ticks, const char* title, const char* x_name,
                       double marked) {
  std::vector<double> rates(requests.size());
  run_side_by_side(requests.size(), [&](size_t i) { rates[i] = rate_of(requests[i]); });
  std::vector<ChartPoint> points;
  std::vector<ChartTick> sizes;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (rates[i] <= 0) continue;
    points.push_back({ticks[i].at, rates[i], ""});
    sizes.push_back(ticks[i]);
  }
  return curve(std::move(points), std::move(sizes), title, x_name, marked);
}

std::string memory_curve(const SearchRequest& request) {
  std::vector<SearchRequest> requests;
  std::vector<ChartTick> ticks;
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    SearchRequest& one = requests.emplace_back(request);
    one.simulated_candidates = 2;
    one.input.memory_budget_bytes =
        static_cast<int64_t>(static_cast<double>(request.input.memory_budget_bytes) * factor);
    ticks.push_back({factor, format_bytes(one.input.memory_budget_bytes)});
  }
  return rate_curve(requests, ticks, "tokens a second against host memory",
                    "host memory (each step twice)", 1.0);
}

std::string batch_curve(const SearchRequest& request) {
  std::vector<SearchRequest> requests;
  std::vector<ChartTick> ticks;
  for (const int64_t sequences : {1, 4, 16, 64, 256, 1024}) {
    SearchRequest& one = requests.emplace_back(request);
    one.simulated_candidates = 2;
    one.job.sequences = sequences;
    const int64_t before = std::max<int64_t>(one.input.workload.sequences, 1);
    one.input.workload.total_tokens = one.input.workload.total_tokens / before * sequences;
    one.input.workload.sequences = sequences;
    ticks.push_back({static_cast<double>(sequences), std::to_string(sequences)});
  }
  return rate_curve(requests, ticks, "tokens a second against texts at a time",
                    "sequences of the job", static_cast<double>(request.job.sequences));
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
  Chart chart{.title = "operations a second against rows of a product",
              .x_name = "rows of a product (tokens computed together)",
              .y_name = "TFLOP/s",
              .x_scale = ChartScale::kLogarithmic,
              .y_scale = ChartScale::kLogarithmic};
  for (int i = 0; i <= 12; i += 2)
    chart.x_ticks.push_back({std::pow(2.0, i), std::to_string(1 << i)});
  ChartLine bound{"at most", {}, false};
  for (int i = 0; i <= 48; ++i)
    bound.points.push_back({std::pow(2.0, i / 4.0), roof(std::pow(2.0, i / 4.0)) / 1e12, ""});
  chart.lines.push_back(std::move(bound));
  const int64_t decode =
      std::min(result.best.policy.micro_batch_sequences, result.best.policy.micro_batch_tokens);
  const int64_t prefill =
      std::min(result.best.policy.micro_batch_tokens, result.best.plan.pass_tokens);
  for (const auto& [rows, name] : {std::pair{decode, "decode"}, std::pair{prefill, "prefill"}}) {
    constexpr int64_t kSide = 4096;
    const double flops =
        2.0 * static_cast<double>(rows * kSide * kSide) /
        policy::matmul_seconds(processor, *parse_weight_format(model.weights_name()),
                               request.input.eight_bit_activations, rows, kSide, kSide);
    chart.lines.push_back({fmt::format("{} ({} rows)", name, rows),
                           {{static_cast<double>(rows), flops / 1e12,
                             fmt::format("{:.3g} TFLOP/s", flops / 1e12), true}}});
  }
  return chart_svg(chart);
}

std::string in_plain_words(const std::string& bottleneck) {
  static const std::map<std::string, std::string> kWords{
      {"disk read", "how fast the disk reads"},
      {"disk write", "how fast the disk writes"},
      {"host to device", "the link to the GPU"},
      {"device to host", "the link from the GPU"},
      {"device compute", "how fast the GPU computes"},
      {"host compute", "how fast the processor computes"},
      {"host memory", "how fast main memory is read"}};
  const auto found = kWords.find(bottleneck);
  return found == kWords.end() ? bottleneck : found->second;
}

// The question that the page was made for, in three sentences.
std::string answer(const SearchRequest& request, const SearchResult& result,
                   const std::optional<WhatIfs>& what_ifs) {
  const policy::Prediction& prediction = policy::prediction_of(result.best);
  const policy::JobShape& job = request.job;
  const double rate = job_tokens_per_second(result.best, job);
  const double seconds = static_cast<double>(job.sequences) * job.new_tokens / rate;
  std::string limit = bottleneck_name(prediction);
  if (limit == "device compute" && !result.best.plan.has_device) limit = "host compute";
  std::string out = fmt::format("<p class=\"answer\"><b>It runs: {:.3g} tokens/s</b>", rate);
  if (job.sequences > 1)
    out += fmt::format(" for {} texts together, {:.2g} for each", job.sequences,
                       rate / static_cast<double>(job.sequences));
  out +=
      fmt::format(". {} ({:.0f} tokens of prompt, {:.0f} new ones{}) {} {}. The limit is {}.",
                  job.sequences > 1 ? "All of them" : "One text", job.prompt_tokens, job.new_tokens,
                  job.sequences > 1 ? " each" : "", job.sequences > 1 ? "take" : "takes",
                  format_seconds(seconds), in_plain_words(limit));
  if (what_ifs && what_ifs->lifts.empty())
    out += " Twice of no single resource would make it 3 % faster.";
  if (what_ifs && !what_ifs->lifts.empty()) {
    std::string lifts;
    const size_t shown = std::min<size_t>(what_ifs->lifts.size(), 3);
    for (size_t i = 0; i < shown; ++i) {
      const Lift& lift = what_ifs->lifts[i];
      const std::string what =
          lift.what == kHostMemory
              ? format_bytes(request.input.memory_budget_bytes) + " more main memory"
              : "twice " + lift.what;
      lifts += fmt::format("{}{} would make it {:.2f} times as fast",
                           i == 0           ? ""
                           : i + 1 == shown ? ", and "
                                            : ", ",
                           what, lift.factor);
    }
    lifts.front() = static_cast<char>(std::toupper(lifts.front()));
    out += " " + escaped_html(lifts) + ".";
  }
  return out + "</p>\n";
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
      escaped_html(machine));
}
}  // namespace

std::string plan_html(const PlanSubject& subject, const SearchRequest& request,
                      const SearchResult& result, const std::optional<WhatIfs>& what_ifs) {
  const std::string title = fmt::format("{} on {}", subject.model, subject.hardware);
  std::string out = answer(request, result, what_ifs) + what_it_is(subject, *request.profile);
  out += "<h2>What lies where</h2>\n" + occupancy(request, result.best.plan);
  out += "<h2>The lanes while six sublayers decode</h2>\n" + timeline(request, result);
  out += "<p class=\"note\">Colours are sublayers; each box says what it is when pointed at.</p>\n";
  out += "<h2>Throughput against main memory</h2>\n" + memory_curve(request);
  out += "<p class=\"note\">The large circle is what was asked about.</p>\n";
  out += "<h2>Throughput against texts at a time</h2>\n" + batch_curve(request);
  out += "<h2>Products under the roofline</h2>\n" + roofline(request, result);
  out += "<details><summary>All figures</summary><pre>" +
         escaped_html(plan_text(subject, request, result, what_ifs)) + "</pre></details>\n";
  return html_page(title, out);
}

}  // namespace sluice::app
