// A body of /v1/completions or /v1/chat/completions: an ApiError, or a request whose values are in
// their ranges.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/serve/api_request.h"
#include "tests/fuzz/fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  namespace serve = sluice::serve;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 2 == 0) {
      const auto request = serve::parse_completion(body, {}, 100);
      sluice::fuzz::accepted();
      if (request.prompts.empty() || request.best_of < request.samples) std::abort();
      sluice::sampling::validate(request.params);
    } else {
      const auto request = serve::parse_chat(body, {}, 100);
      sluice::fuzz::accepted();
      if (!request.messages.is_array() || request.messages.empty()) std::abort();
      sluice::sampling::validate(request.params);
    }
  } catch (const serve::ApiError& error) {
    if (error.status != 400) std::abort();
    error.body();
  }
  return 0;
}
