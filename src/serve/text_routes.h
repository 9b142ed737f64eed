#pragma once
// /v1/completions, /v1/chat/completions, /tokenize and /detokenize over HTTP. Thread safe.
#include <string>
#include <vector>

#include "src/chat/chat_template.h"
#include "src/http/message.h"
#include "src/serve/api_answer.h"
#include "src/serve/chat_prompt.h"
#include "src/serve/http_server.h"

namespace sluice::serve {

class TextRoutes {
 public:
  /// What is given outlives the routes; `chat` may be null.
  TextRoutes(GenerationService& service, const text::Tokenizer& tokenizer,
             const chat::ChatTemplate* chat, const HttpOptions& options);

  /// These throw ApiError.
  void complete(const http::Request& request, http::Response& response) const;
  void chat_complete(const http::Request& request, http::Response& response) const;
  void tokenize(const http::Request& request, http::Response& response) const;
  void detokenize(const http::Request& request, http::Response& response) const;
  /// What there is of the tokenizer to know, as vLLM's /tokenizer_info names it.
  void tokenizer_info(http::Response& response) const;
  /// Before the work of reading a request: whether there is room for one more.
  void check_room() const;
  /// The same of requests of other interfaces, answered in their forms. Their names for what is
  /// asked are theirs to put into errors.
  void chat(const ChatRequest& call, const FormMaker& make, http::Response& response) const;
  void complete(const CompletionRequest& call, const FormMaker& make,
                http::Response& response) const;
  /// Submissions as they are, answered whole. `adapter`: of all of them.
  void answer(std::vector<Submission> submissions, const AdapterPtr& adapter, AnswerShape shape,
              const FormMaker& make, http::Response& response) const {
    start(std::move(submissions), adapter, std::move(shape), false, "", make, response);
  }
  /// A chat's prompt.
  std::vector<int32_t> ids_of(const ChatRequest& call) const {
    return ids_of(call, prompt_of(call));
  }
  /// Tokens of a chat's prompt.
  int64_t count_tokens(const ChatRequest& call) const;
  const HttpOptions& options() const noexcept { return options_; }
  const GenerationService& service() const noexcept { return service_; }
  const text::Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  /// Of the model; may be null.
  const chat::ChatTemplate* chat_template() const noexcept { return chat_; }
  int64_t vocab_size() const { return service_.engine().model().shape().vocab_size; }
  /// What a request has asked for: the model (nothing), or one of its adapters.
  AdapterPtr model_of(const std::string& model) const;

  /// Of a text of a prompt; what can't fit the context is refused unread. `param`: its field.
  std::vector<int32_t> encode(const std::string& text, text::AddSpecial adds_special,
                              const char* param, bool is_truncated = false) const;

 private:
  void truncate(const ApiRequest& call, std::vector<int32_t>& prompt) const;
  int64_t room_for(const std::vector<int32_t>& prompt, bool generates, const char* param) const;
  ChatPrompt prompt_of(const ChatRequest& call) const;
  Submission submission_of(const CompletionRequest& call, std::vector<int32_t> prompt) const;
  std::unique_ptr<AnswerForm> openai_form(AnswerShape shape) const;
  std::vector<int32_t> ids_of(const ChatRequest& call, const ChatPrompt& prompt) const;
  /// `adapter`: of all of them.
  void start(std::vector<Submission> submissions, const AdapterPtr& adapter, AnswerShape shape,
             bool streams, const std::string& guide_field, const FormMaker& make,
             http::Response& response) const;

  GenerationService& service_;
  const text::Tokenizer& tokenizer_;
  const chat::ChatTemplate* chat_;
  const HttpOptions& options_;
  const int64_t most_prompt_bytes_;  ///< more can't be as few tokens as the context holds
};

}  // namespace sluice::serve
