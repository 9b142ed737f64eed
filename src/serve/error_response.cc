#include "src/serve/error_response.h"

#include <nlohmann/json.hpp>
#include <string>

#include "src/serve/json_text.h"

namespace sluice::serve {

namespace {
// Anthropic's words for what a status means.
const char* anthropic_type(int status) {
  switch (status) {
    case 400: return "invalid_request_error";
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}
}  // namespace

ErrorShape error_shape(std::string_view path) {
  if (path.starts_with("/v1/messages")) return ErrorShape::kAnthropic;
  return path.starts_with("/api/") ? ErrorShape::kOllama : ErrorShape::kOpenAi;
}

std::string error_body(const ApiError& error, ErrorShape shape) {
  switch (shape) {
    case ErrorShape::kOpenAi: return error.body();
    case ErrorShape::kAnthropic:
      return dump(
          {{"type", "error"},
           {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}}}});
    case ErrorShape::kOllama: return dump({{"error", error.message}});
  }
  return {};
}

http::Response error_response(const ApiError& error, ErrorShape shape) {
  http::Response response;
  response.status = error.status;
  if (error.retry_after_seconds > 0)
    response.set_header("Retry-After", std::to_string(error.retry_after_seconds));
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(error_body(error, shape), "application/json");
  return response;
}

}  // namespace sluice::serve
