#include "src/jobs/bounded_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "src/jobs/request_fields.h"

namespace sluice::jobs {

template <typename Json>
Json parse_bounded(std::string_view text, int most_depth, const char* what) {
  std::vector<std::unordered_set<std::string>> keys(static_cast<size_t>(most_depth) + 2);
  int64_t values = 0;
  using Event = typename Json::parse_event_t;
  const auto check = [&](int depth, Event event, Json& parsed) {
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= most_depth)
        throw Refusal{"invalid_json", fmt::format("nested deeper than {} levels", most_depth)};
      if (event == Event::object_start) keys[static_cast<size_t>(depth) + 1].clear();
    }
    if (event == Event::key) {
      const auto& key = parsed.template get_ref<const std::string&>();
      if (!keys[static_cast<size_t>(depth)].insert(key).second)
        throw Refusal{"invalid_request",
                      fmt::format("the field \"{}\" is given twice", key.substr(0, 100))};
    }
    if (++values > 2 * kMaxLineValues)
      throw Refusal{"invalid_json", fmt::format("more than {} values", kMaxLineValues)};
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const typename Json::parse_error& error) {
    throw Refusal{"invalid_json", fmt::format("{} is not valid JSON: it breaks at byte {} of {}",
                                              what, error.byte, text.size())};
  } catch (const typename Json::out_of_range&) {
    throw Refusal{"invalid_json", fmt::format("a number in {} is out of range", what)};
  }
}

template nlohmann::json parse_bounded(std::string_view, int, const char*);
template nlohmann::ordered_json parse_bounded(std::string_view, int, const char*);

}  // namespace sluice::jobs
