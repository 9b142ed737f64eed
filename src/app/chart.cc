#include "src/app/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::app {

namespace {
constexpr double kWidth = 900, kHeight = 320;
constexpr double kLeft = 84, kRight = 24, kTop = 34, kBottom = 52;

constexpr const char* kPageStyle =
    R"(:root{color-scheme:light dark;--ink:#1d2733;--paper:#fff;--soft:#596673;--panel:#f3f5f8;--line:#d3dae2}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#12161c;--soft:#9aa7b4;--panel:#1c222b;--line:#3a4450}}
body{font:16px/1.55 system-ui,sans-serif;max-width:58em;margin:2em auto;padding:0 1em;color:var(--ink);
background:var(--paper)}h1{font-size:1.5em;line-height:1.25}h2{font-size:1.15em;margin:2.2em 0 .4em}
pre{background:var(--panel);padding:1em;overflow-x:auto;font-size:13px}.answer{font-size:1.2em}
p.note{color:var(--soft);font-size:14px;margin:.3em 0}summary{cursor:pointer;margin-top:2em}
table{border-collapse:collapse;font-size:14px}th,td{padding:.25em .8em .25em 0;text-align:right;border-bottom:1px solid
var(--line)}th:first-child,td:first-child{text-align:left}.scroll{overflow-x:auto}
)";

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  bool is_empty() const { return least > most; }
  void take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

bool is_drawn(double value, ChartScale scale) {
  return std::isfinite(value) && (scale == ChartScale::kLinear || value > 0);
}

// From values to places in the picture.
class Placing {
 public:
  Placing(Range range, ChartScale scale, double from, double to)
      : scale_(scale),
        low_(along(range.least)),
        span_(along(range.most) - low_),
        from_(from),
        to_(to) {}
  double operator()(double value) const {
    const double share = span_ > 0 ? (along(value) - low_) / span_ : 0.5;
    return from_ + share * (to_ - from_);
  }

 private:
  double along(double value) const {
    return scale_ == ChartScale::kLinear ? value : std::log(value);
  }
  ChartScale scale_;
  double low_, span_, from_, to_;
};

std::string tick_name(double value) {
  const double size = std::abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return fmt::format("{:.3g}", value);
  return fmt::format("{:.6g}", value);
}

// The next round number from `value` up.
double round_up(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0, 10.0})
    if (step * power >= value * (1 - 1e-9)) return step * power;
  return 10 * power;
}

std::string drawn_text(double x, double y, std::string_view text, std::string_view more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more,
                     escaped_html(text));
}

std::string drawn_axes(const Chart& chart, const std::vector<ChartTick>& x_ticks,
                       const std::vector<ChartTick>& y_ticks, const Placing& px,
                       const Placing& py) {
  const double bottom = kHeight - kBottom;
  std::string out;
  for (const ChartTick& tick : y_ticks) {
    out += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>\n", kLeft, py(tick.at),
                       kWidth - kRight);
    out += drawn_text(kLeft - 8, py(tick.at) + 4, tick.name, "class=\"soft end\"");
  }
  double last_end = -1e9;
  for (const ChartTick& tick : x_ticks) {
    const double x = px(tick.at), half = 4.2 * static_cast<double>(tick.name.size());
    const double middle = std::min(x, kWidth - half - 2);
    out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {}v5\"/>\n", x, bottom);
    if (middle - half < last_end) continue;  // its name would stand on its neighbour's
    last_end = middle + half + 2;
    out += drawn_text(middle, bottom + 19, tick.name, "class=\"soft middle\"");
  }
  out += fmt::format("<path class=\"axis\" d=\"M{} {}V{}H{}\"/>\n", kLeft, kTop, bottom,
                     kWidth - kRight);
  out += drawn_text((kLeft + kWidth - kRight) / 2, kHeight - 10, chart.x_name, "class=\"middle\"");
  out += drawn_text(8, 18, chart.y_name, "");
  return out;
}

std::string drawn_line(const Chart& chart, const ChartLine& line, size_t index, const Placing& px,
                       const Placing& py) {
  std::string path, points;
  for (const ChartPoint& point : line.points) {
    if (!is_drawn(point.x, chart.x_scale) || !is_drawn(point.y, chart.y_scale)) continue;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(point.x), py(point.y));
    if (!line.has_points) continue;
    const std::string says = point.says.empty()
                                 ? fmt::format("{}: {}", tick_name(point.x), tick_name(point.y))
                                 : point.says;
    points += fmt::format(
        "<circle class=\"{}{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}</title></circle>\n",
        colour_class(index), point.is_marked ? " marked" : "", px(point.x), py(point.y),
        point.is_marked ? 7 : 4.5,
        escaped_html(line.name.empty() ? says : line.name + ", " + says));
  }
  if (path.empty()) return {};
  return fmt::format("<path class=\"line {}\" d=\"{}\"/>\n{}", colour_class(index), path, points);
}

std::string drawn_legend(const Chart& chart) {
  if (chart.lines.size() < 2) return {};
  std::string out;
  double x = kWidth - kRight;
  for (size_t i = chart.lines.size(); i-- > 0;) {
    const std::string& name = chart.lines[i].name;
    x -= 7.2 * static_cast<double>(name.size());
    out += drawn_text(x, 18, name, "");
    x -= 16;
    out += fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"8\" width=\"11\" height=\"11\"/>\n",
                       colour_class(i), x);
    x -= 16;
  }
  return out;
}

std::string chart_picture(const Chart& chart, std::string_view more, std::string_view style) {
  Range xs, ys;
  for (const ChartLine& line : chart.lines)
    for (const ChartPoint& point : line.points)
      if (is_drawn(point.x, chart.x_scale) && is_drawn(point.y, chart.y_scale)) {
        xs.take(point.x);
        ys.take(point.y);
      }
  if (ys.is_empty()) return {};
  if (chart.y_scale == ChartScale::kLinear) ys.take(0);
  const auto y_ticks = chart_ticks(ys.least, ys.most, chart.y_scale);
  for (const ChartTick& tick : y_ticks) ys.take(tick.at);
  auto x_ticks = chart.x_ticks;
  if (x_ticks.empty()) {
    if (chart.x_scale == ChartScale::kLinear) xs.take(0);
    x_ticks = chart_ticks(xs.least, xs.most, chart.x_scale);
  }
  for (const ChartTick& tick : x_ticks) xs.take(tick.at);
  const Placing px(xs, chart.x_scale, kLeft, kWidth - kRight);
  const Placing py(ys, chart.y_scale, kHeight - kBottom, kTop);
  std::string out = fmt::format("<svg {} viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}",
                                more, kWidth, kHeight, escaped_html(chart.title), style);
  out += drawn_axes(chart, x_ticks, y_ticks, px, py);
  for (size_t i = 0; i < chart.lines.size(); ++i)
    out += drawn_line(chart, chart.lines[i], i, px, py);
  return out + drawn_legend(chart) + "</svg>\n";
}
}  // namespace

const char* const kChartStyle =
    R"(svg{width:100%;height:auto}svg text{font:13px system-ui,sans-serif;fill:#1d2733}
.soft{fill:#596673!important}.end{text-anchor:end}.middle{text-anchor:middle}
.axis{stroke:#7c8894;fill:none}.grid{stroke:#dfe4ea;fill:none}.track{fill:#e6eaef}
.line{fill:none!important;stroke-width:2.5}.marked{stroke:#1d2733;stroke-width:2}
.c0{fill:#2f6fb0;stroke:#2f6fb0}.c1{fill:#c96a12;stroke:#c96a12}.c2{fill:#3a8a52;stroke:#3a8a52}
.c3{fill:#b5495b;stroke:#b5495b}.c4{fill:#7a5ba6;stroke:#7a5ba6}.c5{fill:#2f7f86;stroke:#2f7f86}
.c6{fill:#7d722f;stroke:#7d722f}.c7{fill:#96492a;stroke:#96492a}.c8{fill:#5f6b7a;stroke:#5f6b7a}
.c9{fill:#b0588b;stroke:#b0588b}rect{stroke:none!important}
@media (prefers-color-scheme:dark){svg text{fill:#e6edf3}.soft{fill:#9aa7b4!important}.axis{stroke:#7c8894}
.grid{stroke:#2c343e}.track{fill:#28303a}.marked{stroke:#fff}
.c0{fill:#6aa9e8;stroke:#6aa9e8}.c1{fill:#f0a04b;stroke:#f0a04b}.c2{fill:#6cc487;stroke:#6cc487}
.c3{fill:#e57f90;stroke:#e57f90}.c4{fill:#b39ddb;stroke:#b39ddb}.c5{fill:#6cc0c8;stroke:#6cc0c8}
.c6{fill:#c9bb68;stroke:#c9bb68}.c7{fill:#d98b66;stroke:#d98b66}.c8{fill:#a3b0bf;stroke:#a3b0bf}
.c9{fill:#e59cc4;stroke:#e59cc4}}
)";

std::string escaped_html(std::string_view text) {
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

std::string colour_class(size_t index) { return fmt::format("c{}", index % 10); }

std::vector<ChartTick> chart_ticks(double least, double most, ChartScale scale, int count) {
  std::vector<ChartTick> out;
  if (scale == ChartScale::kLinear) {
    const double low = std::min(least, 0.0), high = std::max(most, 0.0);
    const double step = high > low ? round_up((high - low) / std::max(count, 1)) : 1;
    const auto first = static_cast<int64_t>(std::floor(low / step + 1e-9));
    const auto last = std::max(first, static_cast<int64_t>(std::ceil(high / step - 1e-9)));
    for (int64_t i = first; i <= last; ++i)
      out.push_back({static_cast<double>(i) * step, tick_name(static_cast<double>(i) * step)});
    return out;
  }
  // Powers of ten alone where there are many of them.
  const double decades = std::log10(most / least);
  const std::vector<double> steps = decades > 3     ? std::vector{1.0}
                                    : decades > 1.2 ? std::vector{1.0, 3.0}
                                                    : std::vector{1.0, 2.0, 5.0};
  for (double power = std::pow(10, std::floor(std::log10(least))); power <= most; power *= 10)
    for (const double step : steps)
      if (step * power >= least * (1 - 1e-9) && step * power <= most * (1 + 1e-9))
        out.push_back({step * power, tick_name(step * power)});
  if (out.empty()) out.push_back({least, tick_name(least)});
  return out;
}

std::string chart_svg(const Chart& chart) { return chart_picture(chart, "", ""); }

std::string chart_svg_file(const Chart& chart) {
  return chart_picture(
      chart, "xmlns=\"http://www.w3.org/2000/svg\" width=\"900\" height=\"320\"",
      fmt::format("<style>{}</style>\n<rect class=\"paper\" width=\"100%\" "
                  "height=\"100%\"/>\n",
                  std::string(kChartStyle) + ".paper{fill:#fff}@media (prefers-color-scheme:dark)"
                                             "{.paper{fill:#12161c}}"));
}

std::string html_page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}{2}</style></head><body><main>\n<h1>{0}</h1>\n{3}</main></"
      "body>"
      "</html>\n",
      escaped_html(title), kPageStyle, kChartStyle, body);
}

}  // namespace sluice::app
