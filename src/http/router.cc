#include "src/http/router.h"

#include <algorithm>

namespace sluice::http {

namespace {
constexpr size_t kLongestPart = 100;

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    out.emplace_back(path.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

bool is_name(std::string_view part) {
  return !part.empty() && part.size() <= kLongestPart &&
         std::all_of(part.begin(), part.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
         });
}

// What the {} of `pattern` match in `path`; nothing when the path is another.
std::optional<std::vector<std::string>> match(const std::vector<std::string>& pattern,
                                              const std::vector<std::string>& path) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (i >= path.size()) return std::nullopt;
    if (pattern[i] == "{*}") {
      std::string rest = path[i];
      for (size_t more = i + 1; more < path.size(); ++more) rest += "/" + path[more];
      if (rest.empty()) return std::nullopt;
      parts.push_back(std::move(rest));
      return parts;
    }
    if (pattern[i] == "{}" && is_name(path[i]))
      parts.push_back(path[i]);
    else if (pattern[i] != path[i])
      return std::nullopt;
  }
  if (path.size() != pattern.size()) return std::nullopt;
  return parts;
}
}  // namespace

void Router::add(std::string method, std::string_view path, Place place, Handler handler) {
  routes_.push_back({std::move(method), split(path), place, std::move(handler)});
}

std::optional<Router::Match> Router::find(std::string_view method, std::string_view path) const {
  // A slash at the end is nobody's: base addresses are written with it.
  if (path.size() > 1 && path.ends_with('/') && !path.ends_with("//")) path.remove_suffix(1);
  const auto segments = split(path);
  for (const Route& route : routes_) {
    if (route.method != method) continue;
    if (auto parts = match(route.segments, segments))
      return Match{&route.handler, route.place, std::move(*parts)};
  }
  return std::nullopt;
}

}  // namespace sluice::http
