#pragma once
// The interfaces of OpenAI, Anthropic and Ollama over HTTP: completions and chat (whole or as
// streams), models, tokenize, files and batches, health, metrics, and a page for browsers, on
// src/http. A caller that goes away takes its request with it; a full queue is answered with 429
// and Retry-After. Thread safe.
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/chat/chat_template.h"
#include "src/chat/tool_format.h"
#include "src/http/listener.h"
#include "src/serve/batches.h"
#include "src/serve/callers.h"
#include "src/serve/generation_service.h"
#include "src/serve/served_models.h"
#include "src/serve/served_names.h"

namespace sluice::serve {

/// Where the server listens and what it says of itself.
struct HttpOptions : ServedNames {
  std::string host = "127.0.0.1";
  int port = 8000;                         ///< 0: any that is free
  std::vector<ApiKey> api_keys;            ///< none: none is asked for
  std::vector<std::string> cors_origins;   ///< of pages that may ask (OriginRules)
  std::vector<std::string> allowed_hosts;  ///< names that it goes by, where no key is asked for
  int connections = 1024;                  ///< at least as many as may run and wait
  int64_t most_body_bytes = int64_t{32} << 20;
  int64_t most_bytes_together = 0;  ///< of bodies that are read or not answered; 0: four largest
  std::chrono::seconds request_timeout{0};        ///< from arrival to the end; 0: none
  sampling::SamplingParams defaults;              ///< of what requests leave out
  const chat::ToolFormat* tool_format = nullptr;  ///< of calls; null: tools are refused
  bool splits_thoughts = false;       ///< what is between <think> and </think> is reasoning_content
  bool takes_templates = false;       ///< chat_template of requests: strangers' programs, bounded
  bool is_strict = false;             ///< wishes that are not done are refused (jobs::Wishes)
  bool leaves = false;                ///< the model may leave the memory while the server runs
  bool has_page = true;               ///< "/" is a page for browsers: chat and live figures
  std::filesystem::path lora_folder;  ///< of adapters that callers may load; empty: none
  std::function<void(std::string_view)> log;  ///< one line at a time; may be empty
  /// Turns names of parameters in a text, `api_key`, into what the operator sets; may be empty.
  std::function<std::string(std::string_view)> in_words;
};

class HttpServer {
 public:
  /// What is given outlives the server; `chat` may be null: the model has no chat template; so may
  /// `batches`: no files are kept.
  HttpServer(GenerationService& service, const text::Tokenizer& tokenizer,
             const chat::ChatTemplate* chat, HttpOptions options, Batches* batches = nullptr);
  /// Likewise of several models. Names and template options of `options` are nobody's.
  HttpServer(ServedModels& models, HttpOptions options, Batches* batches = nullptr);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Listens at the options' address; returns the port. Errors: kUser when it can't be had.
  int bind();
  /// Listens where `listener` does, which may go.
  void listen(const http::Listener& listener);
  /// Serves until stop(). After bind() or listen().
  void serve();
  /// From now on /health says 503: what runs is finished, and nothing more is taken. From any
  /// thread.
  void drain();
  /// Takes no more connections; those there are end with their requests. From any thread.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::serve
