#pragma once
// From a chat request to what the model is given, and how its answer is to be read: the chat
// template, tools that it may or must call, thoughts. Pure, thread safe.
#include <string>

#include "src/chat/chat_template.h"
#include "src/chat/message_reader.h"
#include "src/serve/api_request.h"
#include "src/text/tokenizer.h"

namespace sluice::serve {

struct ChatPrompt {
  std::string text;            ///< with its special tokens
  chat::MessageForm form;      ///< of the answer
  sampling::GuideSpec guide;   ///< of calls; kNone: the request's own holds
  bool keeps_special = false;  ///< calls begin with a special token: the answer's text has them
};

/// Refuses a request that brings a template of its own. For where strangers ask.
void refuse_own_template(const ChatRequest& request);

/// `chat` may be null (refused), `tools` too: calls are refused. Throws ApiError.
ChatPrompt chat_prompt(const ChatRequest& request, const chat::ChatTemplate* chat,
                       const text::Tokenizer& tokenizer, const chat::ToolFormat* tools,
                       bool splits_thoughts);

}  // namespace sluice::serve
