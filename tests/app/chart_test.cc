// Axes that carry round ticks, points where they belong, and nothing that is no number.
#include "src/app/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <regex>

namespace sluice::app {
namespace {

std::vector<double> places(const std::vector<ChartTick>& ticks) {
  std::vector<double> out;
  for (const ChartTick& tick : ticks) out.push_back(tick.at);
  return out;
}

Chart chart_of(std::vector<ChartPoint> points) {
  return {.title = "a \"b\" <c>",
          .x_name = "callers",
          .y_name = "ms",
          .lines = {{"", std::move(points)}}};
}

std::vector<std::pair<double, double>> circles(const std::string& svg) {
  static const std::regex kCircle("cx=\"([-0-9.naif]+)\" cy=\"([-0-9.naif]+)\"");
  std::vector<std::pair<double, double>> out;
  for (std::sregex_iterator it(svg.begin(), svg.end(), kCircle), end; it != end; ++it)
    out.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  return out;
}

TEST(ChartTicks, AreRoundAndReachOverTheMost) {
  EXPECT_EQ(places(chart_ticks(0, 9.3, ChartScale::kLinear)),
            (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(places(chart_ticks(0, 250, ChartScale::kLinear)),
            (std::vector<double>{0, 50, 100, 150, 200, 250}));
  EXPECT_EQ(places(chart_ticks(0, 0, ChartScale::kLinear)), (std::vector<double>{0}));
  EXPECT_EQ(places(chart_ticks(-3, 3, ChartScale::kLinear, 3)),
            (std::vector<double>{-4, -2, 0, 2, 4}));
  EXPECT_EQ(places(chart_ticks(1, 4096, ChartScale::kLogarithmic)),
            (std::vector<double>{1, 10, 100, 1000}));
  EXPECT_EQ(places(chart_ticks(3, 9, ChartScale::kLogarithmic)), (std::vector<double>{5}));
  EXPECT_EQ(places(chart_ticks(7, 7, ChartScale::kLogarithmic)), (std::vector<double>{7}));
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    const double most = std::pow(10, std::uniform_real_distribution<>(-12, 15)(random));
    const auto ticks = places(chart_ticks(0, most, ChartScale::kLinear));
    EXPECT_EQ(ticks.front(), 0) << most;
    EXPECT_GE(ticks.back(), most * (1 - 1e-9));
    EXPECT_LE(ticks.size(), 8u);
    EXPECT_TRUE(std::is_sorted(ticks.begin(), ticks.end()));
  }
}

TEST(ChartSvg, PutsPointsWhereTheirNumbersAre) {
  const std::string svg = chart_svg(chart_of({{0, 0, ""}, {50, 5, ""}, {100, 10, "ten"}}));
  const auto found = circles(svg);
  ASSERT_EQ(found.size(), 3u) << svg;
  EXPECT_NEAR(found[1].first, (found[0].first + found[2].first) / 2, 0.11);
  EXPECT_NEAR(found[1].second, (found[0].second + found[2].second) / 2, 0.11);
  EXPECT_GT(found[0].second, found[2].second) << "larger is higher";
  for (const char* part :
       {">callers</text>", ">ms</text>", "<title>ten</title>", "<title>50: 5</title>",
        "aria-label=\"a &quot;b&quot; &lt;c&gt;\"", ">100</text>", ">10</text>"})
    EXPECT_NE(svg.find(part), std::string::npos) << part << "\n" << svg;
}

TEST(ChartSvg, OfOnePointAndOfNone) {
  EXPECT_EQ(circles(chart_svg(chart_of({{8, 3, ""}}))).size(), 1u);
  EXPECT_EQ(circles(chart_svg(chart_of({{0, 0, ""}}))).size(), 1u);
  EXPECT_EQ(chart_svg(chart_of({})), "");
  EXPECT_EQ(chart_svg({}), "");
}

TEST(ChartSvg, LeavesOutWhatIsNoNumber) {
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  const std::string svg =
      chart_svg(chart_of({{1, nan, ""}, {2, 4, ""}, {infinite, 1, ""}, {3, infinite, ""}}));
  EXPECT_EQ(circles(svg).size(), 1u);
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  Chart logarithmic = chart_of({{0, 1, ""}, {-1, 1, ""}, {4, 1, ""}, {8, 2, ""}});
  logarithmic.x_scale = ChartScale::kLogarithmic;
  EXPECT_EQ(circles(chart_svg(logarithmic)).size(), 2u);
  EXPECT_EQ(chart_svg(logarithmic).find("nan"), std::string::npos);
}

TEST(ChartSvg, StaysInItsPicture) {
  std::mt19937 random(11);
  std::uniform_real_distribution<> exponent(-6, 9);
  for (int i = 0; i < 200; ++i) {
    Chart chart = chart_of({});
    chart.x_scale = i % 2 ? ChartScale::kLogarithmic : ChartScale::kLinear;
    chart.y_scale = i % 3 ? ChartScale::kLogarithmic : ChartScale::kLinear;
    const int count = 1 + i % 7;
    for (int k = 0; k < count; ++k)
      chart.lines[0].points.push_back(
          {std::pow(10, exponent(random)), std::pow(10, exponent(random)), ""});
    const auto found = circles(chart_svg(chart));
    ASSERT_EQ(found.size(), static_cast<size_t>(count));
    for (const auto& [x, y] : found) {
      EXPECT_GE(x, 83.9);
      EXPECT_LE(x, 876.1);
      EXPECT_GE(y, 33.9);
      EXPECT_LE(y, 268.1);
    }
  }
}

TEST(ChartSvg, AFileHasItsStyleAndNamespace) {
  const std::string svg = chart_svg_file(chart_of({{1, 1, ""}}));
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"")) << svg;
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  Chart two = chart_of({{1, 1, ""}});
  two.lines.push_back({"p99", {{1, 2, ""}}});
  two.lines[0].name = "median";
  EXPECT_NE(chart_svg(two).find(">p99</text>"), std::string::npos) << "several lines have a legend";
}

TEST(HtmlPage, EscapesItsTitleAndNotItsBody) {
  const std::string page = html_page("a<b>", "<p>x</p>");
  EXPECT_NE(page.find("<h1>a&lt;b&gt;</h1>\n<p>x</p>"), std::string::npos) << page;
  EXPECT_EQ(page.find("http"), std::string::npos) << "nothing from the network";
}

}  // namespace
}  // namespace sluice::app
