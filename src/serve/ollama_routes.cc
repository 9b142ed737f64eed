#include "src/serve/ollama_routes.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/serve/json_text.h"
#include "src/serve/ollama_answer.h"
#include "src/serve/ollama_request.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;
using Route = OllamaAnswer::Route;

constexpr const char* kForever = "9999-12-31T23:59:59Z";

/// What the routes share.
struct Ollama {
  const TextRoutes& texts;
  const std::string started = ollama_time();

  const std::string& model_name() const { return texts.options().model_name; }
  const ModelShape& shape() const { return texts.service().engine().model().shape(); }

  OllamaModel model() const {
    OllamaModel out;
    out.vocab_size = texts.vocab_size();
    out.context_tokens = texts.service().engine().context_tokens();
    out.has_template = texts.chat_template() != nullptr;
    out.has_thoughts = texts.options().splits_thoughts;
    return out;
  }
  /// The name without the tag that callers add.
  std::string served_name(const std::string& name) const {
    return texts.options().names(name) ? name : without_tag(name, model_name());
  }

  void generate(const http::Request& request, http::Response& response, Route route) const;
  void answer_load(const std::string& model, Route route, http::Response& response) const;
  ordered_json details(const std::string& name) const;
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
  const FormMaker make = [&asked, route](AnswerShape shape) {
    return std::make_unique<OllamaAnswer>(std::move(shape), asked.streams, route);
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

// "7.2B", "260K".
std::string parameters_text(int64_t count) {
  const auto number = static_cast<double>(count);
  if (count >= 1000000000) return fmt::format("{:.1f}B", number / 1e9);
  return count >= 1000000 ? fmt::format("{:.1f}M", number / 1e6)
                          : fmt::format("{:.0f}K", number / 1e3);
}

// To tell models apart: of a name and the model's config.json, not of its weights. FNV-1a, four
// times.
std::string name_digest(const std::string& name, const std::string& config) {
  std::string out;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    uint64_t hash = 0xcbf29ce484222325 + seed;
    for (const std::string* text : {&name, &config})
      for (const char c : *text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    out += fmt::format("{:016x}", hash);
  }
  return out;
}

ordered_json Ollama::details(const std::string& name) const {
  const io::Checkpoint& checkpoint = texts.service().engine().model().checkpoint();
  return {{"parent_model", texts.options().names(name) ? "" : model_name()},
          {"format", io::checkpoint_format_name(checkpoint.format())},
          {"family", shape().family},
          {"families", ordered_json::array({shape().family})},
          {"parameter_size", parameters_text(shape().num_parameters())},
          {"quantization_level", shape().weights_name()}};
}

ordered_json Ollama::entry(const std::string& name) const {
  const BoundModel& model = texts.service().engine().model();
  const std::string tagged =
      name.find(':') == std::string::npos ? name + std::string(kOllamaTag) : name;
  return {{"name", tagged},
          {"model", tagged},
          {"modified_at", started},
          {"size", model.checkpoint().total_bytes()},
          {"digest", name_digest(name, model.config_text())},
          {"details", details(name)}};
}

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
  const ordered_json* asked = find_value(body, "model");
  if (!asked) asked = find_value(body, "name");
  if (!asked) refuse_field("model", "model is missing");
  texts.model_of(served_name(need_text("model", *asked)));
  const ordered_json* streams = find_value(body, "stream");
  const bool is_streamed = !streams || *streams == true;
  response.set_content(dump({{"status", "success"}}) + (is_streamed ? "\n" : ""),
                       is_streamed ? "application/x-ndjson" : "application/json");
}

void Ollama::refuse_change(const char* what) const {
  throw ApiError{
      400,
      fmt::format("this server does not {} models: it serves {} until it ends", what, model_name()),
      "unsupported", "model", 0};
}

void Ollama::show(const http::Request& request, http::Response& response) const {
  const ordered_json body = parse_object(request.body);
  for (const auto& [name, value] : body.items())
    if (!value.is_null() && name != "model" && name != "name" && name != "verbose")
      refuse_unknown(name);
  const ordered_json* asked = find_value(body, "model");
  if (!asked) asked = find_value(body, "name");
  if (!asked) refuse_field("model", "model is missing");
  const AdapterPtr adapter = texts.model_of(served_name(need_text("model", *asked)));
  const std::string name = adapter ? adapter->name : model_name();
  const std::string& family = shape().family;
  const sampling::SamplingParams& defaults = texts.options().defaults;
  auto capabilities = ordered_json::array({"completion"});
  if (texts.options().tool_format) capabilities.push_back("tools");
  if (texts.options().splits_thoughts) capabilities.push_back("thinking");
  const ordered_json info{{"general.architecture", family},
                          {"general.parameter_count", shape().num_parameters()},
                          {family + ".context_length", texts.service().engine().context_tokens()},
                          {family + ".embedding_length", shape().hidden_size},
                          {family + ".block_count", shape().num_layers},
                          {family + ".attention.head_count", shape().num_heads},
                          {family + ".attention.head_count_kv", shape().num_kv_heads},
                          {family + ".vocab_size", shape().vocab_size}};
  const auto* templ = texts.chat_template();
  const ordered_json out{
      {"parameters", fmt::format("temperature {}\ntop_k {}\ntop_p {}", defaults.temperature,
                                 defaults.top_k, defaults.top_p)},
      {"template", templ ? templ->source().text : std::string()},
      {"details", details(name)},
      {"model_info", info},
      {"capabilities", std::move(capabilities)},
      {"modified_at", started}};
  response.set_content(dump(out), "application/json");
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
      entry["expires_at"] = kForever;
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
