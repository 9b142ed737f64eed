#pragma once
// A body of /v1/messages as a chat request. Pure, thread safe.
#include <string_view>

#include "src/serve/api_request.h"

namespace sluice::serve {

/// What a body is sent for.
enum class MessagesUse : uint8_t {
  kAnswer,  ///< max_tokens has to be there
  kCount    ///< /v1/messages/count_tokens: there is none
};

/// `defaults` and `vocab_size` as parse_chat has them. A last message that is the assistant's is
/// gone on with. What would need tools of the server's own, pictures, documents or files is refused
/// by name. Throws ApiError.
ChatRequest parse_messages(std::string_view body, const sampling::SamplingParams& defaults,
                           int64_t vocab_size, MessagesUse use);
/// What a chat's errors name, in this interface's words: `error` with them.
ApiError in_anthropic_words(ApiError error);

}  // namespace sluice::serve
