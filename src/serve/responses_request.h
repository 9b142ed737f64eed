#pragma once
// A body of /v1/responses as a chat request. Pure, thread safe.
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/serve/api_request.h"

namespace sluice::serve {

/// A call of the Responses interface.
struct ResponsesRequest {
  ChatRequest chat;
  nlohmann::ordered_json echo;  ///< what the answer repeats of the body: an object of its fields
};

/// `defaults` and `vocab_size` as parse_chat has them. What would need a store of answers, tools of
/// the server's own, pictures or sound is refused by name. Throws ApiError.
ResponsesRequest parse_responses(std::string_view body, const sampling::SamplingParams& defaults,
                                 int64_t vocab_size);
/// What a chat's errors name, in this interface's words: `error` with them.
ApiError in_responses_words(ApiError error);

}  // namespace sluice::serve
