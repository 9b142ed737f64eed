#pragma once
// Streams of typed events, as callers read them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice::serve {

/// The data of each event; its "type" is the event's name.
inline std::vector<nlohmann::json> typed_events(const std::string& stream) {
  std::vector<nlohmann::json> out;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "an event without an end: " << stream.substr(at);
      break;
    }
    const std::string event = stream.substr(at, end - at);
    at = end + 2;
    if (event.starts_with(":")) continue;  // a comment
    const size_t data = event.find("\ndata: ");
    if (!event.starts_with("event: ") || data == std::string::npos) {
      ADD_FAILURE() << "no event: " << event;
      break;
    }
    out.push_back(nlohmann::json::parse(event.substr(data + 7)));
    EXPECT_EQ(out.back()["type"], event.substr(7, data - 7));
  }
  return out;
}

/// The texts of `field` in events of that type, joined.
inline std::string joined(const std::vector<nlohmann::json>& events, const std::string& type,
                          const nlohmann::json::json_pointer& field) {
  std::string out;
  for (const auto& event : events)
    if (event["type"] == type && event.contains(field)) out += event[field].get<std::string>();
  return out;
}

inline std::vector<std::string> types_of(const std::vector<nlohmann::json>& events) {
  std::vector<std::string> out;
  for (const auto& event : events) out.push_back(event["type"]);
  return out;
}

}  // namespace sluice::serve
