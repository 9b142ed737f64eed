#pragma once
// Prompts of batch lines: the token ids of a text, a chat or ids. Pure, thread safe.
#include <cstdint>
#include <vector>

#include "src/chat/chat_template.h"
#include "src/jobs/request.h"
#include "src/text/tokenizer.h"

namespace sluice::serve {

/// `tokenizer` may be null (ids only), `chat` too (no chats). Errors: kUser, kFile from the
/// template; kUser where either is missing.
std::vector<int32_t> prompt_of(const jobs::Request& request, const text::Tokenizer* tokenizer,
                               const chat::ChatTemplate* chat);

}  // namespace sluice::serve
