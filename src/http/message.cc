#include "src/http/message.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::http {

namespace {
char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

struct Reason {
  int status;
  std::string_view phrase;
};
constexpr Reason kReasons[] = {{200, "OK"},
                               {204, "No Content"},
                               {304, "Not Modified"},
                               {400, "Bad Request"},
                               {401, "Unauthorized"},
                               {404, "Not Found"},
                               {408, "Request Timeout"},
                               {409, "Conflict"},
                               {413, "Content Too Large"},
                               {415, "Unsupported Media Type"},
                               {417, "Expectation Failed"},
                               {429, "Too Many Requests"},
                               {431, "Request Header Fields Too Large"},
                               {500, "Internal Server Error"},
                               {501, "Not Implemented"},
                               {503, "Service Unavailable"},
                               {504, "Gateway Timeout"}};
}  // namespace

bool is_same_name(std::string_view a, std::string_view b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (is_same_name(key, name)) return value;
  return {};
}

const std::string* Request::parameter(std::string_view name) const {
  for (const auto& [key, value] : query)
    if (key == name) return &value;
  return nullptr;
}

std::string_view reason_phrase(int status) noexcept {
  for (const Reason& reason : kReasons)
    if (reason.status == status) return reason.phrase;
  return {};
}

std::string head_text(const Response& response, std::string_view framing, bool closes) {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  for (const auto& [name, value] : response.headers) out += fmt::format("{}: {}\r\n", name, value);
  out += framing;
  if (closes) out += "Connection: close\r\n";
  return out + "\r\n";
}

}  // namespace sluice::http
