#include "src/serve/origins.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "src/base/error.h"

namespace sluice::serve {

namespace {
std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

bool has(const std::vector<std::string>& list, std::string_view one) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& entry) { return lower(entry) == one; });
}

// "name:8000" is "name", "[::1]:8000" is "::1", "name." is "name".
std::string name_of(std::string_view host) {
  if (host.starts_with('[')) return lower(host.substr(1, host.find(']') - 1));
  host = host.substr(0, host.find(':'));
  if (host.ends_with('.')) host.remove_suffix(1);
  return lower(host);
}

bool is_address(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> bytes;
  return ::inet_pton(AF_INET, name.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), bytes.data()) == 1;
}

std::string machine_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  return lower(name.data());
}

// "https://a.example" is that of "https" and "a.example"; the port that a scheme has anyway goes.
struct Origin {
  std::string scheme, authority;
};
std::string without_port(std::string authority, std::string_view scheme) {
  for (const auto& [name, port] : {std::pair{"http", ":80"}, {"https", ":443"}})
    if (scheme == name && authority.ends_with(port))
      authority.resize(authority.size() - std::string_view(port).size());
  return authority;
}
std::optional<Origin> parse(std::string_view origin) {
  const size_t end = origin.find("://");
  if (end == std::string_view::npos || end == 0) return std::nullopt;
  Origin out{lower(origin.substr(0, end)), lower(origin.substr(end + 3))};
  out.authority = without_port(std::move(out.authority), out.scheme);
  return out;
}

// "" where it is not allowed, else what the answer says of it.
std::string allowed(std::string_view origin, const std::vector<std::string>& origins) {
  if (origin.empty()) return {};
  if (has(origins, "*")) return "*";
  return has(origins, lower(origin)) ? std::string(origin) : std::string();
}

bool is_header_list(std::string_view text) {
  return !text.empty() && text.size() <= 4096 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ',' || c == ' ';
  });
}
}  // namespace

bool is_own_host(std::string_view host, const std::vector<std::string>& hosts) {
  const std::string name = name_of(host);
  if (host.empty() || has(hosts, "*") || has(hosts, name)) return true;
  if (name.find('.') == std::string::npos || name.ends_with(".localhost") || is_address(name))
    return true;
  const std::string own = machine_name();
  return !own.empty() && (name == own || name == own + ".local");
}

bool is_foreign(const http::Request& head, const std::vector<std::string>& origins) {
  const std::string_view origin = head.header("Origin"), site = head.header("Sec-Fetch-Site");
  if (has(origins, "*") || !allowed(origin, origins).empty()) return false;
  // What browsers say themselves, and no page can.
  if (site == "same-origin" || site == "none") return false;
  if (!site.empty()) return head.method != "GET" || head.header("Sec-Fetch-Mode") != "navigate";
  if (origin.empty()) return false;
  const auto parsed = parse(origin);
  if (!parsed) return true;  // "null": a page that hides where it is from
  // Programs with windows of their own: no page on the web can have such an origin.
  if (parsed->scheme != "http" && parsed->scheme != "https") return false;
  return parsed->authority != without_port(lower(head.header("Host")), parsed->scheme);
}

std::optional<std::string> refusal(const http::Request& head, const OriginRules& rules) {
  const std::string_view host = head.header("Host");
  if (!is_own_host(host, rules.hosts))
    return fmt::format(
        "this server does not go by the name {}: any page could have made it mean this machine. If "
        "it is yours, start the server with `allowed_hosts` {}, or with an `api_key`",
        name_of(host).substr(0, 200), name_of(host).substr(0, 200));
  if (!is_foreign(head, rules.origins)) return std::nullopt;
  const std::string origin(head.header("Origin").substr(0, 200));
  return fmt::format(
      "a page of another origin{} asks, which this server does not answer. If it is yours, start "
      "the server with `cors_origins` {}, or with an `api_key`",
      origin.empty() ? "" : " (" + origin + ")",
      origin.empty() || origin == "null" ? "ORIGIN" : origin);
}

bool is_preflight(const http::Request& head) {
  return head.method == "OPTIONS" && !head.header("Origin").empty() &&
         !head.header("Access-Control-Request-Method").empty();
}

http::Fields cors_headers(const http::Request& head, const std::vector<std::string>& origins) {
  http::Fields out;
  if (origins.empty()) return out;
  if (!has(origins, "*")) out.emplace_back("Vary", "Origin");
  const std::string origin = allowed(head.header("Origin"), origins);
  if (origin.empty()) return out;
  out.emplace_back("Access-Control-Allow-Origin", origin);
  if (!is_preflight(head)) {
    out.emplace_back("Access-Control-Expose-Headers", "*");
    return out;
  }
  out.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  // SDKs send headers of their own (x-stainless-...): whatever is asked for.
  const std::string_view asked = head.header("Access-Control-Request-Headers");
  if (is_header_list(asked)) out.emplace_back("Access-Control-Allow-Headers", asked);
  if (head.header("Access-Control-Request-Private-Network") == "true")
    out.emplace_back("Access-Control-Allow-Private-Network", "true");
  out.emplace_back("Access-Control-Max-Age", "600");
  return out;
}

void check_origin(const std::string& origin) {
  if (origin == "*") return;
  const auto parsed = parse(origin);
  if (parsed && !parsed->authority.empty() &&
      parsed->authority.find_first_of("/?#@ ") == std::string::npos && lower(origin) == origin)
    return;
  throw Error(ErrorKind::kUser, fmt::format("{} is no origin of pages", origin.substr(0, 200)),
              "an origin is a scheme, a host and maybe a port, such as https://a.example or "
              "http://localhost:3000, without a path; * is any");
}

}  // namespace sluice::serve
