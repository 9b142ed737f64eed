#pragma once
// Bodies of /rerank, as Jina's, Cohere's and vLLM's interfaces have them, and the question that a
// model is asked for each document. Pure, thread safe.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/serve/api_request.h"

namespace sluice::serve {

constexpr size_t kMostDocuments = 1024;

struct RerankRequest {
  std::string model, query;
  std::vector<std::string> documents;
  std::string instruction;  ///< what is searched for, in words
  size_t top_n = 0;         ///< so many best; 0: all
  bool returns_documents = false;
};

/// Throws ApiError: what is not understood is refused by name.
RerankRequest parse_rerank(std::string_view body);

/// Where the instructions go: models differ in what their templates take.
enum class SystemMessage : uint8_t { kApart, kInQuestion };
/// The chat that asks whether the document meets the query, to be answered with yes or no: the one
/// that Qwen3-Reranker was trained on. `document` is below documents.size().
ChatRequest rerank_chat(const RerankRequest& request, size_t document, SystemMessage where);

}  // namespace sluice::serve
