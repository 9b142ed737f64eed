#pragma once
// Why a request can't be answered, as OpenAI's interface says it.
#include <string>

namespace sluice::serve {

struct ApiError {
  int status = 400;  ///< of HTTP
  std::string message;
  std::string code;   ///< "model_not_found", "context_length_exceeded"; may be empty
  std::string param;  ///< the field; may be empty
  int retry_after_seconds = 0;

  /// {"error": {"message", "type", "param", "code"}}.
  std::string body() const;
};

}  // namespace sluice::serve
