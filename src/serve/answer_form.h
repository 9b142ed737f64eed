#pragma once
// What a generation is written as, in the words of one interface: pieces of a stream as events
// arrive, or one object at the end. Used by one thread.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/chat/message_reader.h"
#include "src/serve/error_response.h"
#include "src/serve/generation_service.h"

namespace sluice::serve {

/// What all parts of an answer say alike.
struct AnswerShape {
  bool is_chat = false;
  chat::MessageForm form;  ///< of a chat's answers
  std::string id;          ///< "cmpl-...", "chatcmpl-..."
  std::string model;       ///< as served
  int64_t created = 0;     ///< seconds since 1970
  int prompts = 1;
  int samples = 1;     ///< answered for each prompt
  int best_of = 1;     ///< computed for each prompt
  int max_tokens = 0;  ///< of each sample
  bool has_logprobs = false;
  int most_top = INT32_MAX;  ///< with has_logprobs: so many likeliest tokens at each
  int prompt_top = -1;       ///< likewise at each of the prompt's; -1: none are told
  bool includes_usage = false;
  bool calls_function = false;  ///< the call is told as "function_call" (function_calls.h)
  bool echoes = false;
  bool generates = true;
  std::vector<std::string> prompt_texts;         ///< with echoes
  std::vector<std::vector<int32_t>> prompt_ids;  ///< of each prompt
  std::vector<std::string> warnings;             ///< what was asked for and is not done
};

class AnswerForm {
 public:
  virtual ~AnswerForm() = default;

  /// Takes an event of the submission.
  virtual void add(const Event& event) = 0;
  /// What `event` is worth in a stream; may be empty. After add().
  virtual std::string stream_of(const Event& event) = 0;
  /// What closes a stream that is complete.
  virtual std::string stream_end() = 0;
  /// What closes a stream that can't be finished.
  virtual std::string stream_error(const ApiError& error) = 0;
  virtual bool is_complete() const noexcept = 0;
  /// The whole answer as one object, when complete.
  virtual std::string whole() = 0;

  virtual ErrorShape error_shape() const noexcept { return ErrorShape::kOpenAi; }
  virtual const char* stream_type() const noexcept { return "text/event-stream"; }
  /// Written into a silent stream: a comment, as server-sent events have them.
  virtual const char* sign_of_life() const noexcept { return ": waiting\n\n"; }
  /// Whether the interface has a word for an answer that the server has broken off; else that is an
  /// error.
  virtual bool tells_of_breaks() const noexcept { return false; }
};

/// Makes the form of an answer, once everything is known that it says.
using FormMaker = std::function<std::unique_ptr<AnswerForm>(AnswerShape)>;

}  // namespace sluice::serve
