#include "src/serve/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/http/server.h"
#include "src/jobs/wishes.h"
#include "src/serve/batch_routes.h"
#include "src/serve/error_response.h"
#include "src/serve/json_text.h"
#include "src/serve/live_generation.h"
#include "src/serve/one_model.h"
#include "src/serve/origins.h"
#include "src/serve/page.h"
#include "src/serve/process_metrics.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

constexpr int kSpareConnections = 64;  // for who asks how it goes, beside those who are answered
}  // namespace

struct HttpServer::Impl {
  Impl(GenerationService& service, const text::Tokenizer& tokenizer, const chat::ChatTemplate* chat,
       HttpOptions chosen, Batches* kept)
      : options(std::move(chosen)),
        callers(options.api_keys),
        own(std::make_unique<OneModel>(service, tokenizer, chat, options)),
        models(*own),
        batches(kept),
        server(routes(kept), server_options()) {}
  Impl(ServedModels& of, HttpOptions chosen, Batches* kept)
      : options(std::move(chosen)),
        callers(options.api_keys),
        models(of),
        batches(kept),
        server(routes(kept), server_options()) {}

  http::Handler guarded(http::Handler handler) const;
  http::Router routes(Batches* batches);
  http::ServerOptions server_options() const;
  std::optional<http::Response> screen(const http::Request& head) const;
  void health(http::Response& response) const;
  http::Response refused(ApiError error, ErrorShape shape) const {
    if (options.in_words) error.message = options.in_words(error.message);
    return error_response(error, shape);
  }
  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  const HttpOptions options;
  const Callers callers;
  mutable AnswerCounts answers;
  const int64_t started = std::time(nullptr);
  const std::unique_ptr<ServedModels> own;  ///< null: somebody else's
  ServedModels& models;
  Batches* const batches;
  std::atomic<bool> is_draining = false;
  http::Server server;
};

void HttpServer::Impl::health(http::Response& response) const {
  ordered_json json{{"status", is_draining ? "draining" : "ok"}};
  if (is_draining) json["reason"] = "the server finishes what runs and then ends";
  models.tell_health(json);
  if (is_draining) response.status = 503;
  response.set_content(dump(json), "application/json");
}

// What a handler throws becomes the answer. What files and the system say of it goes to the log: it
// names paths of this machine.
http::Handler HttpServer::Impl::guarded(http::Handler handler) const {
  return [this, handler = std::move(handler)](const http::Request& request,
                                              http::Response& response) {
    const ErrorShape shape = error_shape(request.path);
    const auto fail = [&](const std::string& what, const ApiError& answer) {
      log(fmt::format("{} {}: {}", request.method, request.path.substr(0, 200), what));
      response = error_response(answer, shape);
    };
    // Nobody reads the warnings of a batch.
    const jobs::Wishes wishes(options.is_strict || AnsweredCaller::is_batch());
    const AnsweredCaller caller(AnsweredCaller::is_batch() ? kBatchCaller : callers.of(request));
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
  models.add_routes(router, [this](http::Handler handler) { return guarded(std::move(handler)); });
  const auto list = [this](const auto&, auto& response) {
    response.set_content(dump({{"object", "list"}, {"data", models.list(started)}}),
                         "application/json");
  };
  for (const char* path : {"/v1/models", "/models"}) add("GET", path, Place::kLoop, list);
  add("GET", "/v1/models/{*}", Place::kLoop, [this](const auto& request, auto& response) {
    response.set_content(dump(models.find(request.parts.front(), started)), "application/json");
  });
  add("GET", "/health", Place::kLoop, [this](const auto&, auto& response) { health(response); });
  add("GET", "/version", Place::kLoop, [](const auto&, auto& response) {
    response.set_content(dump({{"version", SLUICE_VERSION}}), "application/json");
  });
  add("GET", "/metrics", Place::kLoop, [this, kept = batches](const auto&, auto& response) {
    response.set_content(models.metrics() + answers.text() +
                             (kept ? kept->metrics() : std::string()) +
                             process_metrics(SLUICE_VERSION),
                         "text/plain; version=0.0.4");
  });
  if (options.has_page) add("GET", "/", Place::kLoop, answer_page);
  // Lines of batches are answered as callers are.
  if (batches)
    batches->answer_with([to = std::make_shared<const http::Router>(router)](
                             const http::Request& request, http::Response& response) {
      const AnsweredCaller caller(kBatchCaller);
      if (const auto match = to->find(request.method, request.path))
        (*match->handler)(request, response);
      else
        response = error_response({404, "there is no such route", "", "", 0});
    });
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
  const int64_t answered = models.most_requests() + kSpareConnections;
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

HttpServer::HttpServer(ServedModels& models, HttpOptions options, Batches* batches)
    : impl_(std::make_unique<Impl>(models, std::move(options), batches)) {}

HttpServer::~HttpServer() {
  if (impl_->batches) impl_->batches->stop();  // they are answered by the routes
  stop();
}

int HttpServer::bind() { return impl_->server.bind(); }
void HttpServer::listen(const http::Listener& listener) { impl_->server.listen(listener); }
void HttpServer::drain() { impl_->is_draining = true; }
void HttpServer::serve() { impl_->server.serve(); }
void HttpServer::stop() { impl_->server.stop(); }

}  // namespace sluice::serve
