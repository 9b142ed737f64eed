#pragma once
// Line charts and bars as SVG, with axes that carry units and ticks, for pages that are looked at
// in a browser and for files of their own. No scripts, nothing from the network; colours follow the
// reader's light or dark scheme, and every point says what it is when pointed at.
#include <string>
#include <string_view>
#include <vector>

namespace sluice::app {

/// `text` as HTML and SVG take it.
std::string escaped_html(std::string_view text);

/// A number over another.
struct ChartPoint {
  double x = 0, y = 0;
  std::string says;        ///< when pointed at; empty: the two numbers
  bool is_marked = false;  ///< stands out: the one that was asked about
};

/// Points that belong together, joined in their order.
struct ChartLine {
  std::string name;  ///< in the legend, where there are several
  std::vector<ChartPoint> points;
  bool has_points = true;  ///< false: a line alone, as of a bound
};

/// How far apart numbers are: by their difference, or by their ratio.
enum class ChartScale { kLinear, kLogarithmic };

/// A place on an axis and what it is called.
struct ChartTick {
  double at = 0;
  std::string name;
};

struct Chart {
  std::string title;           ///< for those who hear the page; not drawn
  std::string x_name, y_name;  ///< with units
  ChartScale x_scale = ChartScale::kLinear, y_scale = ChartScale::kLinear;
  std::vector<ChartTick> x_ticks;  ///< empty: chosen
  std::vector<ChartLine> lines;
};

/// About `count` round places (1, 2 or 5 times a power of ten) from 0 up to `most` or, on a
/// logarithmic scale, between `least` and `most`. In rising order; at least one.
std::vector<ChartTick> chart_ticks(double least, double most, ChartScale scale, int count = 5);

/// The chart as one <svg>; empty where no line has a finite point. What is not finite, or not above
/// zero on a logarithmic scale, is left out.
std::string chart_svg(const Chart& chart);

/// Styles of what chart_svg() draws, for the page around it; chart_svg_file() has its own.
extern const char* const kChartStyle;
/// The chart as a file of its own.
std::string chart_svg_file(const Chart& chart);

/// The colour class ("c0" to "c9") of line or part `index`.
std::string colour_class(size_t index);

/// A page with `title`, styles for charts, and `body` (HTML).
std::string html_page(std::string_view title, std::string_view body);

}  // namespace sluice::app
