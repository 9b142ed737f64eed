#pragma once
// What batch lines need of a model, for the command and the server: prompts as token ids, tokens as
// texts. Pure, thread safe.
#include <cstdint>
#include <vector>

#include "src/chat/chat_template.h"
#include "src/jobs/request.h"
#include "src/jobs/results_file.h"
#include "src/sampling/sampler.h"
#include "src/text/tokenizer.h"

namespace sluice::serve {

/// `tokenizer` may be null (ids only), `chat` too (no chats). Errors: kUser, kFile from the
/// template; kUser where either is missing.
std::vector<int32_t> prompt_of(const jobs::Request& request, const text::Tokenizer* tokenizer,
                               const chat::ChatTemplate* chat);

/// The tokens with their log-probabilities as an answer reports them; ids as text without a
/// tokenizer.
std::vector<jobs::TokenText> token_texts(const std::vector<sampling::Choice>& choices,
                                         const text::Tokenizer* tokenizer);

}  // namespace sluice::serve
