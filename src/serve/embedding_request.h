#pragma once
// Bodies that ask for embeddings: OpenAI's /v1/embeddings with vLLM's fields, Ollama's /api/embed
// and /api/embeddings, llama.cpp's /embedding. Pure, thread safe.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/serve/api_request.h"
#include "src/serve/pooling.h"

namespace sluice::serve {

/// The interface that a body came by.
enum class EmbeddingRoute : uint8_t { kOpenAi, kOllama, kOllamaOne, kLlama };

constexpr bool is_ollama(EmbeddingRoute route) noexcept {
  return route == EmbeddingRoute::kOllama || route == EmbeddingRoute::kOllamaOne;
}

constexpr size_t kMostInputs = 2048;

struct EmbeddingRequest {
  std::string model;
  std::vector<std::variant<std::string, std::vector<int32_t>>> inputs;
  bool is_base64 = false;   ///< f32, little-endian
  int64_t dimensions = 0;   ///< the first so many; 0: all
  int64_t kept_tokens = 0;  ///< the last so many of an input; -1: what the context holds; 0: all
  bool keeps_beginning = false;  ///< what does not fit is cut at its end instead of refused
  int64_t wanted_context = 0;    ///< tokens; 0: the server's
  std::optional<bool> adds_special;
  std::optional<bool> is_normalised;
  Pooling pooling = Pooling::kNone;  ///< kNone: the model's
  const char* input_field = "input";
};

/// Token ids are below `vocab_size`. No inputs: only Ollama's, which load a model so. Throws
/// ApiError: what is not understood is refused by name.
EmbeddingRequest parse_embedding(std::string_view body, EmbeddingRoute route, int64_t vocab_size);

/// The bytes in base64 (RFC 4648), padded.
std::string base64_of(std::string_view bytes);

}  // namespace sluice::serve
