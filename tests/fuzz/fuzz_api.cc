// A body of any of the interfaces' routes that generate: an ApiError, or a request whose values are
// in their ranges.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/serve/anthropic_request.h"
#include "src/serve/api_request.h"
#include "src/serve/embedding_request.h"
#include "src/serve/llama_request.h"
#include "src/serve/ollama_request.h"
#include "src/serve/rerank_request.h"
#include "src/serve/responses_request.h"
#include "tests/fuzz/fuzzing.h"

namespace {
namespace serve = sluice::serve;

void check(const serve::ChatRequest& request) {
  if (!request.messages.is_array() || request.messages.empty()) std::abort();
  sluice::sampling::validate(request.params);
}
void check(const serve::CompletionRequest& request) {
  if (request.prompts.empty() || request.best_of < request.samples) std::abort();
  sluice::sampling::validate(request.params);
}
void check(const serve::LlamaRequest& request) {
  if (request.parts.empty() == request.call.prompts.empty()) std::abort();
  sluice::sampling::validate(request.call.params);
}
void check(const serve::OllamaRequest& request) {
  if (request.kind == serve::OllamaRequest::Kind::kChat) check(request.chat);
  if (request.kind == serve::OllamaRequest::Kind::kPlain) check(request.plain);
}

// Evens and odds are completions and chats; those from 'a' on, other interfaces.
void read(uint8_t which, std::string_view body) {
  serve::OllamaModel model;
  model.vocab_size = 100;
  model.context_tokens = 256;
  model.has_template = model.has_thoughts = which % 2 == 0;
  switch (which) {
    case 'a': return check(serve::parse_responses(body, {}, 100).chat);
    case 'b': return check(serve::parse_messages(body, {}, 100, serve::MessagesUse::kAnswer));
    case 'c': return check(serve::parse_messages(body, {}, 100, serve::MessagesUse::kCount));
    case 'd': return check(serve::parse_ollama_chat(body, {}, model));
    case 'e':
    case 'f': return check(serve::parse_ollama_generate(body, {}, model));
    case 'g': return check(serve::parse_llama_completion(body, {}, 100));
    case 'h': {
      const serve::RerankRequest request = serve::parse_rerank(body);
      if (request.query.empty() || request.documents.empty()) std::abort();
      serve::rerank_chat(request, 0, serve::SystemMessage::kApart);
      return;
    }
    case 'i':
    case 'j':
    case 'k':
    case 'l': {
      const auto route = static_cast<serve::EmbeddingRoute>(which - 'i');
      const bool may_be_none = which == 'j' || which == 'k';
      if (serve::parse_embedding(body, route, 100).inputs.empty() && !may_be_none) std::abort();
      return;
    }
    default:
      if (which % 2 == 0) return check(serve::parse_completion(body, {}, 100));
      return check(serve::parse_chat(body, {}, 100));
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    read(data[0], std::string_view(reinterpret_cast<const char*>(data + 1), size - 1));
    sluice::fuzz::accepted();
  } catch (const serve::ApiError& error) {
    if (error.status != 400) std::abort();
    error.body();
  }
  return 0;
}
