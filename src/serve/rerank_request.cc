#include "src/serve/rerank_request.h"

#include <fmt/format.h>

#include "src/jobs/request_fields.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

// The words of the model's card: others make its answers worse.
constexpr const char* kJudge =
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".";
constexpr const char* kInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";

std::string document_text(size_t index, const ordered_json& document) {
  const std::string where = fmt::format("documents[{}]", index);
  if (document.is_string()) return document.get<std::string>();
  need_keys(where, need_object(where, document), {"text"});
  return need_text_of(where, document, "text");
}

size_t count_of(const std::string& name, const ordered_json& value) {
  if (!value.is_number_integer() || value < 1 || value > INT32_MAX)
    refuse_field(name, fmt::format("{} is {}; it must be a whole number above 0", name,
                                   jobs::describe(value)));
  return value.get<size_t>();
}
}  // namespace

RerankRequest parse_rerank(std::string_view body) {
  const ordered_json object = parse_object(body);
  RerankRequest out;
  out.instruction = kInstruction;
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    if (name == "model") {
      out.model = need_text(name, value);
    } else if (name == "query") {
      out.query = need_text(name, value);
    } else if (name == "instruction") {
      out.instruction = need_text(name, value);
    } else if (name == "top_n") {
      out.top_n = count_of(name, value);
    } else if (name == "return_documents") {
      out.returns_documents = need_flag(name, value);
    } else if (name == "documents") {
      if (need_list(name, value).size() > kMostDocuments)
        refuse_field(name, fmt::format("documents has {} documents; at most {} are taken",
                                       value.size(), kMostDocuments));
      for (size_t i = 0; i < value.size(); ++i) out.documents.push_back(document_text(i, value[i]));
    } else {
      refuse_unknown(name);
    }
  }
  if (out.query.empty()) refuse_field("query", "query is missing or empty");
  if (out.documents.empty()) refuse_field("documents", "documents is missing or empty");
  return out;
}

ChatRequest rerank_chat(const RerankRequest& request, size_t document, SystemMessage where) {
  const std::string question =
      fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", request.instruction, request.query,
                  request.documents[document]);
  ChatRequest out;
  out.model = request.model;
  out.messages = ordered_json::array();
  if (where == SystemMessage::kApart)
    out.messages.push_back({{"role", "system"}, {"content", kJudge}});
  out.messages.push_back(
      {{"role", "user"},
       {"content",
        where == SystemMessage::kApart ? question : std::string(kJudge) + "\n\n" + question}});
  out.variables = {{"enable_thinking", false}};  // the answer is the next token
  return out;
}

}  // namespace sluice::serve
