#pragma once
// Errors as HTTP answers, in the shape that the interface's callers read. Pure, thread safe.
#include <string_view>

#include "src/http/message.h"
#include "src/serve/api_error.h"

namespace sluice::serve {

/// How an interface writes its errors.
enum class ErrorShape : uint8_t {
  kOpenAi,     ///< {"error": {"message", "type", "param", "code"}}
  kAnthropic,  ///< {"type": "error", "error": {"type", "message"}}
  kOllama      ///< {"error": message}
};

/// That of the interface whose route it is.
ErrorShape error_shape(std::string_view path);
/// As JSON on one line.
std::string error_body(const ApiError& error, ErrorShape shape);
/// An error as a whole answer: its body, Retry-After, WWW-Authenticate.
http::Response error_response(const ApiError& error, ErrorShape shape = ErrorShape::kOpenAi);

}  // namespace sluice::serve
