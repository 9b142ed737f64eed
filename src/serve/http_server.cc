#include "src/serve/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/http/server.h"
#include "src/jobs/wishes.h"
#include "src/serve/adapter_routes.h"
#include "src/serve/anthropic_routes.h"
#include "src/serve/batch_routes.h"
#include "src/serve/embedding_routes.h"
#include "src/serve/error_response.h"
#include "src/serve/json_text.h"
#include "src/serve/live_generation.h"
#include "src/serve/llama_routes.h"
#include "src/serve/ollama_routes.h"
#include "src/serve/origins.h"
#include "src/serve/page.h"
#include "src/serve/process_metrics.h"
#include "src/serve/rerank_routes.h"
#include "src/serve/responses_routes.h"
#include "src/serve/text_routes.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr int kSpareConnections = 64;  // for who asks how it goes, beside those who are answered
}  // namespace

struct HttpServer::Impl {
  Impl(GenerationService& of, const text::Tokenizer& with, const chat::ChatTemplate* templ,
       HttpOptions chosen, Batches* kept)
      : service(of),
        tokenizer(with),
        options(std::move(chosen)),
        callers(options.api_keys),
        texts(service, with, templ, options),
        server(routes(kept), server_options()) {}

  http::Handler guarded(http::Handler handler) const;
  http::Router routes(Batches* batches);
  http::ServerOptions server_options() const;
  std::optional<http::Response> screen(const http::Request& head) const;
  /// Of the model, or of one of its adapters.
  ordered_json model_json(const std::string& name) const;
  void health(http::Response& response) const;
  http::Response refused(ApiError error, ErrorShape shape) const {
    if (options.in_words) error.message = options.in_words(error.message);
    return error_response(error, shape);
  }
  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  GenerationService& service;
  const text::Tokenizer& tokenizer;
  const HttpOptions options;
  const Callers callers;
  mutable AnswerCounts answers;
  const int64_t started = std::time(nullptr);
  const TextRoutes texts;
  std::atomic<bool> is_draining = false;
  http::Server server;
};

ordered_json HttpServer::Impl::model_json(const std::string& name) const {
  ordered_json json{{"id", name},
                    {"object", "model"},
                    {"created", started},
                    {"owned_by", "sluice"},
                    {"max_model_len", service.engine().context_tokens()}};
  if (!options.names(name)) json["parent"] = options.model_name;
  return json;
}

void HttpServer::Impl::health(http::Response& response) const {
  const std::string failure = service.failure();
  if (!failure.empty()) throw ApiError{503, "the engine has stopped: " + failure, "", "", 0};
  ordered_json json{{"status", is_draining ? "draining" : "ok"}};
  if (is_draining) {
    json["reason"] = "the server finishes what runs and then ends";
    response.status = 503;
  }
  json["running"] = service.running();
  json["waiting"] = service.waiting();
  response.set_content(dump(json), "application/json");
}

// What a handler throws becomes the answer. What files and the system say of it goes to the log: it
// names paths of this machine.
http::Handler HttpServer::Impl::guarded(http::Handler handler) const {
  return
      [this, handler = std::move(handler)](const http::Request& request, http::Response& response) {
        const ErrorShape shape = error_shape(request.path);
        const auto fail = [&](const std::string& what, const ApiError& answer) {
          log(fmt::format("{} {}: {}", request.method, request.path.substr(0, 200), what));
          response = error_response(answer, shape);
        };
        const jobs::Wishes wishes(options.is_strict);
        const AnsweredCaller caller(callers.of(request));
        try {
          handler(request, response);
          // What has an answer of its own tells them itself.
          if (!response.live) add_warnings(jobs::Wishes::take(), response);
        } catch (const ApiError& error) {
          response = refused(error, shape);
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::kUser)
            response = refused({400, error.text(), "", "", 0}, shape);
          else if (error.kind() == ErrorKind::kResource)
            fail(error.what(), {503, "the server has no memory or disk left for this", "", "", 60});
          else
            fail(error.what(), {500, "an error of the server's own; its log says more", "", "", 0});
        } catch (const std::exception& error) {
          fail(error.what(), {500, "an error of the server's own; its log says more", "", "", 0});
        }
        answers.count(request, response.status);
      };
}

http::Router HttpServer::Impl::routes(Batches* batches) {
  http::Router router;
  const auto add = [&](const char* method, const char* path, http::Place place,
                       http::Handler handler) {
    router.add(method, path, place, guarded(std::move(handler)));
  };
  using http::Place;
  add_batch_routes(router, batches,
                   [this](http::Handler handler) { return guarded(std::move(handler)); });
  add_adapter_routes(
      router, service.adapters(), options.lora_folder,
      [this](const std::string& name) { return options.names(name); },
      [this](http::Handler handler) { return guarded(std::move(handler)); });
  add("POST", "/v1/completions", Place::kWork,
      [this](const auto& request, auto& response) { texts.complete(request, response); });
  // Also without "v1", as callers whose base address lacks it ask.
  for (const char* path : {"/v1/chat/completions", "/chat/completions"})
    add("POST", path, Place::kWork,
        [this](const auto& request, auto& response) { texts.chat_complete(request, response); });
  const auto with_guard = [this](http::Handler handler) { return guarded(std::move(handler)); };
  add_responses_routes(router, texts, with_guard);
  add_anthropic_routes(router, texts, with_guard);
  add_ollama_routes(router, texts, with_guard);
  add_llama_routes(router, texts, tokenizer, with_guard);
  add_rerank_routes(router, texts, tokenizer, with_guard);
  add_embedding_routes(router, texts, tokenizer, with_guard);
  add("POST", "/tokenize", Place::kWork,
      [this](const auto& request, auto& response) { texts.tokenize(request, response); });
  add("POST", "/detokenize", Place::kWork,
      [this](const auto& request, auto& response) { texts.detokenize(request, response); });
  add("GET", "/tokenizer_info", Place::kWork,
      [this](const auto&, auto& response) { texts.tokenizer_info(response); });
  const auto list = [this](const auto&, auto& response) {
    auto all = ordered_json::array({model_json(options.model_name)});
    for (const std::string& name : options.aliases) all.push_back(model_json(name));
    for (const AdapterPtr& adapter : service.adapters().list())
      all.push_back(model_json(adapter->name));
    response.set_content(dump({{"object", "list"}, {"data", all}}), "application/json");
  };
  for (const char* path : {"/v1/models", "/models"}) add("GET", path, Place::kLoop, list);
  add("GET", "/v1/models/{*}", Place::kLoop, [this](const auto& request, auto& response) {
    const AdapterPtr adapter = texts.model_of(request.parts.front());
    const std::string& asked = request.parts.front();
    const std::string& own = options.names(asked) ? asked : options.model_name;
    response.set_content(dump(model_json(adapter ? adapter->name : own)), "application/json");
  });
  add("GET", "/health", Place::kLoop, [this](const auto&, auto& response) { health(response); });
  add("GET", "/version", Place::kLoop, [](const auto&, auto& response) {
    response.set_content(dump({{"version", SLUICE_VERSION}}), "application/json");
  });
  add("GET", "/metrics", Place::kLoop, [this, kept = batches](const auto&, auto& response) {
    response.set_content(service.metrics().text(service.running(), service.waiting()) +
                             answers.text() + (kept ? kept->metrics() : std::string()) +
                             process_metrics(SLUICE_VERSION),
                         "text/plain; version=0.0.4");
  });
  if (options.has_page) add("GET", "/", Place::kLoop, answer_page);
  return router;
}

// What is answered by a request's head alone.
std::optional<http::Response> HttpServer::Impl::screen(const http::Request& head) const {
  const ErrorShape shape = error_shape(head.path);
  if (!callers.asks_for_key())
    if (auto why = refusal(head, {options.allowed_hosts, options.cors_origins}))
      return refused({403, std::move(*why), "", "", 0}, shape);
  if (!options.cors_origins.empty() && head.method == "OPTIONS") {
    http::Response response;
    response.status = 204;
    return response;
  }
  // The page asks for the key itself, and sends it with what it asks.
  const bool is_page = options.has_page && head.path == "/" && head.method == "GET";
  if (head.path == "/health" || is_page || callers.is_known(head)) return std::nullopt;
  return error_response({401,
                         "the API key is missing or wrong; send \"Authorization: Bearer KEY\", or "
                         "\"X-Api-Key: KEY\"",
                         "invalid_api_key", "", 0},
                        shape);
}

http::ServerOptions HttpServer::Impl::server_options() const {
  http::ServerOptions out;
  out.host = options.host;
  out.port = options.port;
  // Whoever may run or wait may also be connected.
  const int64_t answered = service.most_waiting() + service.most_running() + kSpareConnections;
  out.most_connections =
      static_cast<int>(std::clamp<int64_t>(answered, options.connections, int64_t{1} << 20));
  out.most_body_bytes = options.most_body_bytes;
  out.most_bytes_together =
      options.most_bytes_together > 0 ? options.most_bytes_together : 4 * options.most_body_bytes;
  if (!options.cors_origins.empty())
    out.headers = [this](const http::Request& head) {
      return cors_headers(head, options.cors_origins);
    };
  out.screen = [this](const http::Request& head) { return screen(head); };
  out.refusal = [](int status, const std::string& message) {
    return error_response({status, message, "", "", 0});
  };
  out.log = options.log;
  return out;
}

HttpServer::HttpServer(GenerationService& service, const text::Tokenizer& tokenizer,
                       const chat::ChatTemplate* chat, HttpOptions options, Batches* batches)
    : impl_(std::make_unique<Impl>(service, tokenizer, chat, std::move(options), batches)) {}

HttpServer::~HttpServer() { stop(); }

int HttpServer::bind() { return impl_->server.bind(); }
void HttpServer::listen(const http::Listener& listener) { impl_->server.listen(listener); }
void HttpServer::drain() { impl_->is_draining = true; }
void HttpServer::serve() { impl_->server.serve(); }
void HttpServer::stop() { impl_->server.stop(); }

}  // namespace sluice::serve
