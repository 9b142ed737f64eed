#include <fmt/format.h>

#include <algorithm>

#include "src/text/steps.h"

namespace sluice::text {

namespace {
constexpr double kMostGrowth = 64;  // real files: 12 (a mark of three bytes before and in a text)

double growth_of(const Field& json) {
  const std::string type = json.type();
  double growth = 1;
  for (const char* steps : {"normalizers", "decoders"})
    if (type == "Sequence" && json.has(steps)) {
      const Field list = json.at(steps);
      if (!list.is_array()) list.refuse("not a list");
      for (size_t i = 0; i < list.size(); ++i) growth *= growth_of(list.at(i));
    }
  if (type == "Prepend") growth = 1 + static_cast<double>(json.at("prepend").text().size());
  if (type == "Replace") {
    const Field pattern = json.at("pattern");
    // A regular expression may match a single byte.
    const size_t least = pattern.has("String") ? pattern.at("String").text().size() : 1;
    growth = static_cast<double>(json.at("content").text().size()) /
             static_cast<double>(std::max<size_t>(1, least));
  }
  return std::max(1.0, growth);
}
}  // namespace

void refuse_growth(const Field& json) {
  const double growth = growth_of(json);
  if (growth > kMostGrowth)
    json.refuse(
        fmt::format("its steps make up to {:.3g} bytes of one, more than {}", growth, kMostGrowth));
}

}  // namespace sluice::text
