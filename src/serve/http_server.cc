#include "src/serve/http_server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/serve/api_answer.h"
#include "src/serve/api_request.h"
#include "src/serve/batch_routes.h"
#include "src/serve/chat_prompt.h"
#include "src/serve/json_text.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{200};  // how often a silent caller is looked after
constexpr std::chrono::seconds kMoment{1};  // for an answer's status to wait for its first text
constexpr int kBacklog = 1024;
constexpr std::chrono::seconds kKeepAlive{10};  // a comment in a silent stream

// Takes as long for a wrong key as for the right one.
bool is_same(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  return difference == 0;
}

void answer_error(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.retry_after_seconds > 0)
    response.set_header("Retry-After", std::to_string(error.retry_after_seconds));
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(error.body(), "application/json");
}

// One request on its way through a connection.
struct Exchange {
  std::unique_ptr<GenerationService::Ticket> ticket;
  std::unique_ptr<Answer> answer;
  std::deque<Event> first;  ///< taken before the answer's head went out

  std::optional<Event> next() {
    if (first.empty()) return ticket->mailbox().take(kLook);
    Event event = std::move(first.front());
    first.pop_front();
    return event;
  }
  Clock::time_point arrival = Clock::now();
  Clock::time_point last_sign = Clock::now();
};
}  // namespace

struct HttpServer::Impl {
  Impl(GenerationService& of, const text::Tokenizer& with, const chat::ChatTemplate* templ,
       HttpOptions chosen, Batches* kept)
      : service(of), tokenizer(with), chat(templ), batches(kept), options(std::move(chosen)) {}

  Handler guarded(Handler handler) const;
  void add_routes();
  void complete(const httplib::Request& request, httplib::Response& response);
  void chat_complete(const httplib::Request& request, httplib::Response& response);
  void tokenize(const httplib::Request& request, httplib::Response& response) const;
  void detokenize(const httplib::Request& request, httplib::Response& response) const;
  ordered_json model_json() const;
  void health(httplib::Response& response) const;

  void check_model(const std::string& model) const;
  int64_t room_for(const std::vector<int32_t>& prompt, bool generates) const;
  ChatPrompt prompt_of(const ChatRequest& call) const {
    return chat_prompt(call, chat, tokenizer, options.tool_format, options.splits_thoughts);
  }
  void start(std::vector<Submission> submissions, AnswerShape shape, bool streams,
             httplib::Response& response);
  bool is_late(const Exchange& exchange) const {
    return options.request_timeout.count() > 0 &&
           Clock::now() - exchange.arrival > options.request_timeout;
  }
  void await_start(Exchange& exchange) const;
  bool stream_some(Exchange& exchange, httplib::DataSink& sink) const;
  bool collect_some(Exchange& exchange, httplib::DataSink& sink) const;
  [[noreturn]] static void refuse_event(const Event& event);
  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  GenerationService& service;
  const text::Tokenizer& tokenizer;
  const chat::ChatTemplate* chat;
  Batches* batches;
  HttpOptions options;
  httplib::Server server;
  int listening = -1;  ///< the server's socket
  int64_t started = std::time(nullptr);
};

void HttpServer::Impl::refuse_event(const Event& event) {
  if (event.kind == Event::Kind::kRefused) throw ApiError{400, event.text, "", "", 0};
  throw ApiError{503, "the engine has stopped: " + event.text, "", "", 0};
}

void HttpServer::Impl::check_model(const std::string& model) const {
  if (model.empty() || model == options.model_name) return;
  throw ApiError{404,
                 fmt::format("the model \"{}\" is not served here; this server has \"{}\"",
                             model.substr(0, 200), options.model_name),
                 "model_not_found", "model", 0};
}

// Tokens that may follow the prompt.
int64_t HttpServer::Impl::room_for(const std::vector<int32_t>& prompt, bool generates) const {
  const int64_t context = service.engine().context_tokens();
  const auto length = static_cast<int64_t>(prompt.size());
  if (length == 0)
    throw ApiError{400, "the prompt has no tokens; give at least one", "", "prompt", 0};
  if (length + (generates ? 1 : 0) > context)
    throw ApiError{
        400,
        fmt::format("this server's context is {} tokens; the prompt has {}: shorten it, or start "
                    "the server with a larger --ctx-size",
                    context, length),
        "context_length_exceeded", "prompt", 0};
  return context - length;
}

void HttpServer::Impl::complete(const httplib::Request& request, httplib::Response& response) {
  const int64_t vocab = service.engine().model().shape().vocab_size;
  CompletionRequest call = parse_completion(request.body, options.defaults, vocab);
  check_model(call.model);
  AnswerShape shape;
  shape.id = random_name("cmpl-");
  shape.prompts = static_cast<int>(call.prompts.size());
  shape.samples = call.samples;
  shape.best_of = call.best_of;
  shape.has_logprobs = call.params.logprobs >= 0;
  shape.includes_usage = call.includes_usage;
  shape.echoes = call.echoes;
  shape.generates = call.generates;
  std::vector<Submission> submissions;
  for (const auto& prompt : call.prompts) {
    Submission& one = submissions.emplace_back();
    if (const auto* text = std::get_if<std::string>(&prompt))
      one.prompt = tokenizer.encode(
          *text, call.adds_special.value_or(true) ? text::AddSpecial::kYes : text::AddSpecial::kNo);
    else
      one.prompt = std::get<std::vector<int32_t>>(prompt);
    for (int32_t id : one.prompt)
      if (id >= vocab)
        throw ApiError{
            400, fmt::format("prompt has token id {}; the model's are 0 to {}", id, vocab - 1), "",
            "prompt", 0};
    room_for(one.prompt, call.generates);
    one.params = call.params;
    // The likeliest of best_of are found by their log-probabilities.
    if (call.best_of > call.samples) one.params.logprobs = std::max(one.params.logprobs, 0);
    one.samples = call.best_of;
    one.scores_prompt = call.echoes && shape.has_logprobs;
    one.generates = call.generates;
    one.priority = call.priority;
    one.stops_are_kept = call.keeps_stop;
    shape.prompt_ids.push_back(one.prompt);
    if (!call.echoes) continue;
    const auto* text = std::get_if<std::string>(&prompt);
    shape.prompt_texts.push_back(text ? *text
                                      : tokenizer.decode(one.prompt, text::SkipSpecial::kNo));
  }
  // Without a token to generate and without scores there is nothing to compute but the echo; one
  // token is computed and left out.
  if (!call.generates)
    for (Submission& one : submissions) one.generates = !one.scores_prompt;
  start(std::move(submissions), std::move(shape), call.streams, response);
}

void HttpServer::Impl::chat_complete(const httplib::Request& request, httplib::Response& response) {
  ChatRequest call =
      parse_chat(request.body, options.defaults, service.engine().model().shape().vocab_size);
  check_model(call.model);
  const ChatPrompt prompt = prompt_of(call);
  Submission one;
  one.params = call.params;
  if (prompt.guide.kind != sampling::GuideKind::kNone) {
    one.params.guide = prompt.guide;
    sampling::validate(one.params);
  }
  one.keeps_special = prompt.keeps_special;
  // The template writes the special tokens itself.
  one.prompt =
      tokenizer.encode(prompt.text, call.adds_special.value_or(false) ? text::AddSpecial::kYes
                                                                      : text::AddSpecial::kNo);
  const int64_t room = room_for(one.prompt, true);
  if (!call.has_max_tokens)
    one.params.max_tokens = static_cast<int>(std::max<int64_t>(room, one.params.min_tokens));
  one.samples = call.samples;
  one.priority = call.priority;
  one.stops_are_kept = call.keeps_stop;
  AnswerShape shape;
  shape.is_chat = true;
  shape.form = prompt.form;
  shape.id = random_name("chatcmpl-");
  shape.samples = shape.best_of = call.samples;
  shape.has_logprobs = call.params.logprobs >= 0;
  shape.includes_usage = call.includes_usage;
  shape.prompt_ids = {one.prompt};
  std::vector<Submission> submissions;
  submissions.push_back(std::move(one));
  start(std::move(submissions), std::move(shape), call.streams, response);
}

// Waits for the first sign of the engine, and a moment for what it computes first, so that what is
// refused still gets a status of its own.
void HttpServer::Impl::await_start(Exchange& exchange) const {
  std::optional<Clock::time_point> begun;
  while (!begun || Clock::now() - *begun < kMoment) {
    auto event = exchange.ticket->mailbox().take(kLook);
    if (!event && !begun && is_late(exchange))
      throw ApiError{
          504,
          fmt::format("no answer within {} s (--request-timeout)", options.request_timeout.count()),
          "", "", 0};
    if (!event) continue;
    if (event->kind == Event::Kind::kRefused || event->kind == Event::Kind::kFailed)
      refuse_event(*event);
    const bool is_answer = event->kind != Event::Kind::kStarted;
    begun = begun.value_or(Clock::now());
    exchange.first.push_back(std::move(*event));
    if (is_answer) return;
  }
}

void HttpServer::Impl::start(std::vector<Submission> submissions, AnswerShape shape, bool streams,
                             httplib::Response& response) {
  shape.model = options.model_name;
  shape.created = std::time(nullptr);
  auto exchange = std::make_shared<Exchange>();
  auto admission = service.submit(std::move(submissions));
  if (admission.outcome == RequestQueue::Outcome::kFull)
    throw ApiError{429, "too many requests are waiting; try again later", "", "",
                   service.retry_after_seconds()};
  if (admission.outcome == RequestQueue::Outcome::kClosed) {
    const std::string failure = service.failure();
    throw ApiError{
        503, failure.empty() ? "the server is shutting down" : "the engine has stopped: " + failure,
        "", "", 0};
  }
  exchange->ticket = std::move(admission.ticket);
  exchange->answer = std::make_unique<Answer>(std::move(shape), tokenizer);
  if (streams) {
    response.set_header("Cache-Control", "no-cache");
    response.set_header("X-Accel-Buffering", "no");
    // Streams begin at once: a caller sees that the request was taken while it waits.
    if (service.waiting() == 0) await_start(*exchange);
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, exchange](size_t, httplib::DataSink& sink) { return stream_some(*exchange, sink); });
    return;
  }
  await_start(*exchange);
  response.set_chunked_content_provider(
      "application/json",
      [this, exchange](size_t, httplib::DataSink& sink) { return collect_some(*exchange, sink); });
}

// False ends the connection, and with it the request.
bool HttpServer::Impl::stream_some(Exchange& exchange, httplib::DataSink& sink) const {
  const auto write = [&](const std::string& text) {
    exchange.last_sign = Clock::now();
    return text.empty() || sink.write(text.data(), text.size());
  };
  const auto fail = [&](const ApiError& error) {
    write("data: " + error.body() + "\n\ndata: [DONE]\n\n");
    sink.done();
    return true;
  };
  std::optional<Event> event = exchange.next();
  if (!event) {
    if (!sink.is_writable()) return false;
    if (is_late(exchange))
      return fail({504, "the request took longer than --request-timeout allows", "", "", 0});
    return Clock::now() - exchange.last_sign < kKeepAlive || write(": waiting\n\n");
  }
  if (event->kind == Event::Kind::kRefused || event->kind == Event::Kind::kFailed) {
    try {
      refuse_event(*event);
    } catch (const ApiError& error) {
      return fail(error);
    }
  }
  exchange.answer->add(*event);
  if (!write(exchange.answer->stream_of(*event))) return false;
  if (!exchange.answer->is_complete()) return true;
  if (!write(exchange.answer->stream_end())) return false;
  sink.done();
  return true;
}

bool HttpServer::Impl::collect_some(Exchange& exchange, httplib::DataSink& sink) const {
  std::optional<Event> event = exchange.next();
  if (!event || Clock::now() - exchange.last_sign > kLook) {
    exchange.last_sign = Clock::now();
    if (!sink.is_writable() || is_late(exchange)) return false;
    if (!event) return true;
  }
  // The status is out: an answer that breaks off is no answer, and looks like none.
  if (event->kind == Event::Kind::kRefused || event->kind == Event::Kind::kFailed) {
    log(fmt::format("a request was broken off: {}", event->text));
    return false;
  }
  exchange.answer->add(*event);
  if (!exchange.answer->is_complete()) return true;
  const std::string whole = exchange.answer->whole();
  if (!sink.write(whole.data(), whole.size())) return false;
  sink.done();
  return true;
}

void HttpServer::Impl::tokenize(const httplib::Request& request,
                                httplib::Response& response) const {
  const ordered_json body = parse_object(request.body);
  std::vector<int32_t> ids;
  const auto flag = [&](const char* name, bool fallback) {
    if (!body.contains(name)) return fallback;
    if (!body[name].is_boolean())
      throw ApiError{400, fmt::format("{} must be true or false", name), "", name, 0};
    return body[name].get<bool>();
  };
  if (body.contains("messages")) {
    ChatRequest call;
    call.messages = body["messages"];
    call.adds_generation_prompt = flag("add_generation_prompt", true);
    const ChatRequest checked = parse_chat(dump({{"messages", call.messages}}), options.defaults,
                                           service.engine().model().shape().vocab_size);
    call.messages = checked.messages;
    ids = tokenizer.encode(prompt_of(call).text, flag("add_special_tokens", false)
                                                     ? text::AddSpecial::kYes
                                                     : text::AddSpecial::kNo);
  } else {
    const char* field = body.contains("prompt") ? "prompt" : "content";  // vLLM's name, llama.cpp's
    if (!body.contains(field) || !body[field].is_string())
      throw ApiError{400, "give \"prompt\", a string, or \"messages\"", "", "prompt", 0};
    ids = tokenizer.encode(body[field].get<std::string>(), flag("add_special_tokens", true)
                                                               ? text::AddSpecial::kYes
                                                               : text::AddSpecial::kNo);
  }
  response.set_content(dump({{"count", ids.size()},
                             {"max_model_len", service.engine().context_tokens()},
                             {"tokens", ids}}),
                       "application/json");
}

void HttpServer::Impl::detokenize(const httplib::Request& request,
                                  httplib::Response& response) const {
  const ordered_json body = parse_object(request.body);
  if (!body.contains("tokens") || !body["tokens"].is_array())
    throw ApiError{400, "give \"tokens\", a list of token ids", "", "tokens", 0};
  std::vector<int32_t> ids;
  for (const ordered_json& id : body["tokens"]) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      throw ApiError{400, "tokens must be a list of token ids", "", "tokens", 0};
    ids.push_back(id.get<int32_t>());
  }
  const std::string text = tokenizer.decode(ids, text::SkipSpecial::kNo);
  response.set_content(dump({{"prompt", text}, {"content", text}}), "application/json");
}

ordered_json HttpServer::Impl::model_json() const {
  return {{"id", options.model_name},
          {"object", "model"},
          {"created", started},
          {"owned_by", "sluice"},
          {"max_model_len", service.engine().context_tokens()}};
}

void HttpServer::Impl::health(httplib::Response& response) const {
  const std::string failure = service.failure();
  if (!failure.empty()) throw ApiError{503, "the engine has stopped: " + failure, "", "", 0};
  response.set_content(
      dump({{"status", "ok"}, {"running", service.running()}, {"waiting", service.waiting()}}),
      "application/json");
}

// What a handler throws becomes the answer.
Handler HttpServer::Impl::guarded(Handler handler) const {
  return [this, handler = std::move(handler)](const httplib::Request& request,
                                              httplib::Response& response) {
    try {
      handler(request, response);
    } catch (const ApiError& error) {
      answer_error(response, error);
    } catch (const Error& error) {
      answer_error(response,
                   {error.kind() == ErrorKind::kUser ? 400 : 500, error.text(), "", "", 0});
    } catch (const std::exception& error) {
      log(fmt::format("{} {}: {}", request.method, request.path, error.what()));
      answer_error(response, {500, "an error of the server's own; its log says more", "", "", 0});
    }
  };
}

void HttpServer::Impl::add_routes() {
  const auto post = [&](const char* path, Handler handler) {
    server.Post(path, guarded(std::move(handler)));
  };
  const auto get = [&](const char* path, Handler handler) {
    server.Get(path, guarded(std::move(handler)));
  };
  add_batch_routes(server, batches,
                   [this](Handler handler) { return guarded(std::move(handler)); });
  post("/v1/completions",
       [this](const auto& request, auto& response) { complete(request, response); });
  post("/v1/chat/completions",
       [this](const auto& request, auto& response) { chat_complete(request, response); });
  post("/tokenize", [this](const auto& request, auto& response) { tokenize(request, response); });
  post("/detokenize",
       [this](const auto& request, auto& response) { detokenize(request, response); });
  get("/v1/models", [this](const auto&, auto& response) {
    response.set_content(dump({{"object", "list"}, {"data", ordered_json::array({model_json()})}}),
                         "application/json");
  });
  get("/v1/models/(.+)", [this](const auto& request, auto& response) {
    check_model(request.matches[1]);
    response.set_content(dump(model_json()), "application/json");
  });
  get("/health", [this](const auto&, auto& response) { health(response); });
  get("/version", [](const auto&, auto& response) {
    response.set_content(dump({{"version", SLUICE_VERSION}}), "application/json");
  });
  get("/metrics", [this](const auto&, auto& response) {
    response.set_content(service.metrics().text(service.running(), service.waiting()),
                         "text/plain; version=0.0.4");
  });
  server.set_pre_routing_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        if (!options.cors_origin.empty()) {
          response.set_header("Access-Control-Allow-Origin", options.cors_origin);
          response.set_header("Access-Control-Allow-Headers", "authorization, content-type");
          response.set_header("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
          if (request.method == "OPTIONS") {
            response.status = 204;
            return httplib::Server::HandlerResponse::Handled;
          }
        }
        if (options.api_key.empty() || request.path == "/health" ||
            is_same(request.get_header_value("Authorization"), "Bearer " + options.api_key))
          return httplib::Server::HandlerResponse::Unhandled;
        answer_error(response,
                     {401, "the API key is missing or wrong; send \"Authorization: Bearer KEY\"",
                      "invalid_api_key", "", 0});
        return httplib::Server::HandlerResponse::Handled;
      });
  server.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    const int status = response.status;
    const std::string what =
        status == 404
            ? fmt::format("there is no {} {}", request.method, request.path.substr(0, 200))
        : status == 413 ? "the body is larger than this server takes (--max-body)"
                        : "the request could not be read as HTTP";
    answer_error(response, {status, what, "", "", 0});
  });
}

HttpServer::HttpServer(GenerationService& service, const text::Tokenizer& tokenizer,
                       const chat::ChatTemplate* chat, HttpOptions options, Batches* batches)
    : impl_(std::make_unique<Impl>(service, tokenizer, chat, std::move(options), batches)) {
  httplib::Server& server = impl_->server;
  const int connections = impl_->options.connections;
  server.new_task_queue = [connections] {
    return new httplib::ThreadPool(static_cast<size_t>(connections));
  };
  server.set_payload_max_length(static_cast<size_t>(impl_->options.most_body_bytes));
  server.set_tcp_nodelay(true);
  server.set_read_timeout(30);
  server.set_write_timeout(30);  // a caller that does not read is given up
  // Not SO_REUSEPORT, the library's own choice: a second server on the port would share it unseen.
  server.set_socket_options([this](int socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    impl_->listening = socket;
  });
  impl_->add_routes();
}

HttpServer::~HttpServer() { stop(); }

int HttpServer::bind() {
  const HttpOptions& options = impl_->options;
  const int port = options.port == 0 ? impl_->server.bind_to_any_port(options.host)
                   : impl_->server.bind_to_port(options.host, options.port) ? options.port
                                                                            : -1;
  if (port < 0)
    throw Error(ErrorKind::kUser, fmt::format("can't listen on {}:{}", options.host, options.port),
                "choose another --port (0: any that is free) or --host; something may listen there "
                "already");
  // The library lets five callers wait to be accepted; the sixth would come again a second later.
  ::listen(impl_->listening, kBacklog);
  return port;
}

void HttpServer::serve() { impl_->server.listen_after_bind(); }
void HttpServer::stop() { impl_->server.stop(); }

}  // namespace sluice::serve
