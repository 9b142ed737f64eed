#pragma once
// What batch lines need of a model, for the command and the server: prompts as token ids, answers
// as texts and messages. Pure, thread safe.
#include <cstdint>
#include <string>
#include <vector>

#include "src/chat/chat_template.h"
#include "src/chat/message_reader.h"
#include "src/jobs/request.h"
#include "src/jobs/results_file.h"
#include "src/sampling/sampler.h"
#include "src/text/tokenizer.h"

namespace sluice::serve {

/// How the model's chats are written and read.
struct ChatStyle {
  const chat::ChatTemplate* chat = nullptr;  ///< null: it has none, and no chats
  const chat::ToolFormat* tools = nullptr;   ///< null: no calls
  bool splits_thoughts = false;
  bool takes_templates = false;  ///< chat_template of lines
};

/// What the model is given for a line, and how its answer is to be read.
struct LinePrompt {
  std::vector<int32_t> ids;
  sampling::SamplingParams params;  ///< the request's, guided to its calls; validated
  chat::MessageForm form;           ///< of a chat
  bool keeps_special = false;       ///< the answer's text has special tokens
};
/// `tokenizer` may be null (ids only). Errors: kUser, of the template, the tools, or where the
/// tokenizer or the template is missing; kFile from the template.
LinePrompt line_prompt(const jobs::Request& request, const text::Tokenizer* tokenizer,
                       const ChatStyle& style);

/// Why a line is for another model than `model_name` and its adapters; empty: it names one of them,
/// or none.
std::string other_model(const jobs::Request& request, const std::string& model_name,
                        const std::vector<std::string>& adapters = {});

/// Of a chat: makes of the completion's text the message that it is, where that is more than text.
void read_answer(const jobs::Request& request, const chat::MessageForm& form,
                 jobs::Completion& completion);

/// The tokens with their log-probabilities as an answer reports them; ids as text without a
/// tokenizer.
std::vector<jobs::TokenText> token_texts(const std::vector<sampling::Choice>& choices,
                                         const text::Tokenizer* tokenizer);

}  // namespace sluice::serve
