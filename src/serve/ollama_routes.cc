#include "src/serve/ollama_routes.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/serve/json_text.h"
#include "src/serve/ollama_answer.h"
#include "src/serve/ollama_listing.h"
#include "src/serve/ollama_request.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;
using Route = OllamaAnswer::Route;

/// What the routes share.
struct Ollama {
  const TextRoutes& texts;
  const std::string started = ollama_time();

  const std::string& model_name() const { return texts.options().model_name; }
  OllamaListed listed(const std::string& name) const {
    return {texts.service().engine().model(), name,
            texts.options().names(name) ? std::string() : model_name(), started};
  }

  OllamaModel model() const {
    OllamaModel out;
    out.vocab_size = texts.vocab_size();
    out.context_tokens = texts.service().engine().context_tokens();
    out.has_template = texts.chat_template() != nullptr;
    out.has_thoughts = texts.options().splits_thoughts;
    out.leaves = texts.options().leaves;
    return out;
  }
  /// The name without the tag that callers add.
  std::string served_name(const std::string& name) const {
    return texts.options().names(name) ? name : without_tag(name, model_name());
  }

  void generate(const http::Request& request, http::Response& response, Route route) const;
  void answer_load(const std::string& model, Route route, http::Response& response) const;
  ordered_json entry(const std::string& name) const;
  ordered_json entries() const;
  void show(const http::Request& request, http::Response& response) const;
  void pull(const http::Request& request, http::Response& response) const;
  [[noreturn]] void refuse_change(const char* what) const;
};

void Ollama::generate(const http::Request& request, http::Response& response, Route route) const {
  texts.check_room();
  const sampling::SamplingParams& defaults = texts.options().defaults;
  OllamaRequest call = route == Route::kChat
                           ? parse_ollama_chat(request.body, defaults, model())
                           : parse_ollama_generate(request.body, defaults, model());
  const bool is_plain = call.kind == OllamaRequest::Kind::kPlain;
  ApiRequest& asked = is_plain ? static_cast<ApiRequest&>(call.plain) : call.chat;
  asked.model = served_name(asked.model);
  if (call.kind == OllamaRequest::Kind::kLoad) return answer_load(asked.model, route, response);
  const FormMaker make = [&](AnswerShape shape) {
    return std::make_unique<OllamaAnswer>(std::move(shape), asked.streams, route,
                                          texts.tokenizer());
  };
  if (is_plain)
    texts.complete(call.plain, make, response);
  else
    texts.chat(call.chat, make, response);
}

// Without a prompt the model is to be loaded; it is.
void Ollama::answer_load(const std::string& model, Route route, http::Response& response) const {
  const AdapterPtr adapter = texts.model_of(model);
  ordered_json out{{"model", adapter ? adapter->name : model_name()},
                   {"created_at", ollama_time()}};
  if (route == Route::kChat)
    out["message"] = {{"role", "assistant"}, {"content", ""}};
  else
    out["response"] = "";
  out["done"] = true;
  out["done_reason"] = "load";
  response.set_content(dump(out), "application/json");
}

ordered_json Ollama::entry(const std::string& name) const { return ollama_entry(listed(name)); }

ordered_json Ollama::entries() const {
  auto out = ordered_json::array({entry(model_name())});
  for (const std::string& name : texts.options().aliases) out.push_back(entry(name));
  for (const AdapterPtr& adapter : texts.service().adapters().list())
    out.push_back(entry(adapter->name));
  return out;
}

// The model is here, and is all that there is: nothing is fetched, written or removed.
void Ollama::pull(const http::Request& request, http::Response& response) const {
  const ordered_json body = parse_object(request.body);
  texts.model_of(served_name(ollama_named(body)));
  std::string told = ollama_pulled(body);
  const bool is_streamed = told.ends_with('\n');
  response.set_content(std::move(told), is_streamed ? "application/x-ndjson" : "application/json");
}

void Ollama::refuse_change(const char* what) const {
  throw ApiError{
      400,
      fmt::format("this server does not {} models: it serves {} until it ends", what, model_name()),
      "unsupported", "model", 0};
}

void Ollama::show(const http::Request& request, http::Response& response) const {
  const ordered_json body = parse_object(request.body);
  check_ollama_show(body);
  const AdapterPtr adapter = texts.model_of(served_name(ollama_named(body)));
  const OllamaShown shown{texts.service().engine().context_tokens(), texts.chat_template(),
                          texts.options().tool_format != nullptr, texts.options().splits_thoughts,
                          texts.options().defaults};
  response.set_content(dump(ollama_show(listed(adapter ? adapter->name : model_name()), shown)),
                       "application/json");
}
}  // namespace

void add_ollama_routes(http::Router& router, const TextRoutes& texts,
                       const std::function<http::Handler(http::Handler)>& guarded) {
  const auto ollama = std::make_shared<const Ollama>(Ollama{texts});
  const auto add = [&](const char* method, const char* path, http::Place place, auto answer) {
    router.add(method, path, place,
               guarded([ollama, answer](const http::Request& request, http::Response& response) {
                 try {
                   answer(*ollama, request, response);
                 } catch (const ApiError& error) {
                   throw in_ollama_words(error);
                 }
               }));
  };
  using http::Place;
  add("POST", "/api/chat", Place::kWork, [](const Ollama& to, const auto& request, auto& response) {
    to.generate(request, response, Route::kChat);
  });
  add("POST", "/api/generate", Place::kWork,
      [](const Ollama& to, const auto& request, auto& response) {
        to.generate(request, response, Route::kGenerate);
      });
  add("POST", "/api/show", Place::kWork,
      [](const Ollama& to, const auto& request, auto& response) { to.show(request, response); });
  add("GET", "/api/tags", Place::kWork, [](const Ollama& to, const auto&, auto& response) {
    response.set_content(dump({{"models", to.entries()}}), "application/json");
  });
  add("GET", "/api/ps", Place::kWork, [](const Ollama& to, const auto&, auto& response) {
    ordered_json entries = to.entries();
    for (ordered_json& entry : entries) {
      entry.erase("modified_at");
      entry["expires_at"] = kOllamaForever;
      entry["context_length"] = to.model().context_tokens;
    }
    response.set_content(dump({{"models", std::move(entries)}}), "application/json");
  });
  add("POST", "/api/pull", Place::kWork,
      [](const Ollama& to, const auto& request, auto& response) { to.pull(request, response); });
  const std::pair<const char*, const char*> changes[] = {
      {"/api/push", "push"}, {"/api/create", "create"}, {"/api/copy", "copy"}};
  for (const auto& [path, what] : changes)
    add("POST", path, Place::kWork,
        [what = what](const Ollama& to, const auto&, auto&) { to.refuse_change(what); });
  add("DELETE", "/api/delete", Place::kWork,
      [](const Ollama& to, const auto&, auto&) { to.refuse_change("delete"); });
  add("GET", "/api/version", Place::kLoop, [](const Ollama&, const auto&, auto& response) {
    response.set_content(dump({{"version", SLUICE_VERSION}}), "application/json");
  });
}

}  // namespace sluice::serve
