#include "src/serve/pooled_models.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "src/serve/api_request.h"
#include "src/serve/json_text.h"
#include "src/serve/model_routes.h"
#include "src/serve/model_wish.h"
#include "src/serve/ollama_answer.h"
#include "src/serve/ollama_listing.h"
#include "src/serve/ollama_request.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

// As llama.cpp's router names them.
const char* place_name(ModelPlace place) {
  switch (place) {
    case ModelPlace::kAbsent: return "unloaded";
    case ModelPlace::kLoading: return "loading";
    case ModelPlace::kLoaded: return "loaded";
    case ModelPlace::kLeaving: return "leaving";
  }
  return "";
}

bool is_there(ModelPlace place) {
  return place == ModelPlace::kLoaded || place == ModelPlace::kLeaving;
}

std::string time_in(std::chrono::seconds from_now) {
  const std::time_t then = std::time(nullptr) + from_now.count();
  std::tm parts{};
  gmtime_r(&then, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

double share_of(const ModelState& state) {
  return state.total_bytes > 0
             ? static_cast<double>(state.loaded_bytes) / static_cast<double>(state.total_bytes)
             : 0;
}

void answer_json(const ordered_json& json, http::Response& response) {
  response.set_content(dump(json), "application/json");
}

// What it throws is told and counted by `guarded`; what the model's own routes answer, they count.
http::Handler told_once(http::Handler handler, const Guard& guarded) {
  return [handler = std::move(handler), guarded](const http::Request& request,
                                                 http::Response& response) {
    try {
      handler(request, response);
    } catch (const ApiError& error) {
      guarded([&](const http::Request&, http::Response&) { throw ApiError(error); })(request,
                                                                                     response);
    }
  };
}

// Ollama's callers unload a model so: nothing is asked, and it is kept for no time.
bool unloads(const ModelWish& wish) {
  return !wish.asks && wish.keep && *wish.keep && wish.keep->value().count() == 0;
}
}  // namespace

PooledModels::PooledModels(ModelPool& pool) : pool_(pool), started_(ollama_time()) {}

void PooledModels::add_routes(http::Router& router, const Guard& guarded) {
  pool_.start(guarded);
  for (const RoutePath& route : model_route_paths()) {
    const std::string path = route.path;
    const bool is_chat = path == "/api/chat";
    if (is_chat || path == "/api/generate") {
      router.add(route.method, path, http::Place::kWork,
                 told_once(
                     [this, is_chat](const http::Request& request, http::Response& response) {
                       const auto wish = read_wish(request.body);
                       if (!wish || !unloads(*wish)) return pool_.answer(request, response);
                       pool_.let_go(wish->model);
                       ordered_json out{{"model", pool_.models()[pool_.find(wish->model)].name},
                                        {"created_at", ollama_time()}};
                       if (is_chat)
                         out["message"] = {{"role", "assistant"}, {"content", ""}};
                       else
                         out["response"] = "";
                       out["done"] = true;
                       out["done_reason"] = "unload";
                       answer_json(out, response);
                     },
                     guarded));
      continue;
    }
    router.add(route.method, path, http::Place::kWork,
               told_once([this](const http::Request& request,
                                http::Response& response) { pool_.answer(request, response); },
                         guarded));
  }
  add_ollama_routes(router, guarded);
}

void PooledModels::add_ollama_routes(http::Router& router, const Guard& guarded) const {
  using http::Place;
  const auto add = [&](const char* method, const char* path, http::Handler handler) {
    router.add(method, path, Place::kWork, guarded(std::move(handler)));
  };
  add("GET", "/api/tags", [this](const auto&, auto& response) {
    auto all = ordered_json::array();
    for (size_t i = 0; i < pool_.models().size(); ++i)
      if (pool_.models()[i].files) all.push_back(entry(i));
    answer_json({{"models", std::move(all)}}, response);
  });
  add("GET", "/api/ps", [this](const auto&, auto& response) {
    answer_json({{"models", running()}}, response);
  });
  add("POST", "/api/show",
      [this](const auto& request, auto& response) { show(request, response); });
  add("POST", "/api/pull", [this](const auto& request, auto& response) {
    const ordered_json body = parse_object(request.body);
    pool_.find(ollama_named(body));
    std::string told = ollama_pulled(body);
    const char* type = told.ends_with('\n') ? "application/x-ndjson" : "application/json";
    response.set_content(std::move(told), type);
  });
  const auto refuse = [](const char* what) {
    return [what](const http::Request&, http::Response&) {
      throw ApiError{400,
                     fmt::format("this server does not {} models: it serves those that it was "
                                 "started with",
                                 what),
                     "unsupported", "model", 0};
    };
  };
  add("POST", "/api/push", refuse("push"));
  add("POST", "/api/create", refuse("create"));
  add("POST", "/api/copy", refuse("copy"));
  add("DELETE", "/api/delete", refuse("delete"));
  router.add("GET", "/api/version", Place::kLoop, guarded([](const auto&, auto& response) {
               answer_json({{"version", SLUICE_VERSION}}, response);
             }));
}

ordered_json PooledModels::entry(size_t index) const {
  const PooledModel& model = pool_.models()[index];
  return ollama_entry({*model.files, model.name, "", started_});
}

ordered_json PooledModels::running() const {
  auto out = ordered_json::array();
  for (size_t i = 0; i < pool_.models().size(); ++i) {
    const ModelState state = pool_.state(i);
    if (!is_there(state.place)) continue;
    ordered_json one = entry(i);
    one.erase("modified_at");
    one["size"] = state.bytes.host + state.bytes.device;
    one["size_vram"] = state.bytes.device;
    one["expires_at"] = state.leaves ? time_in(*state.leaves) : kOllamaForever;
    one["context_length"] = pool_.models()[i].context_tokens;
    out.push_back(std::move(one));
  }
  return out;
}

void PooledModels::show(const http::Request& request, http::Response& response) const {
  const ordered_json body = parse_object(request.body);
  check_ollama_show(body);
  const size_t index = pool_.find(ollama_named(body));
  const PooledModel& model = pool_.models()[index];
  if (!model.files)
    throw ApiError{
        500, fmt::format("the model \"{}\" can't be read; the server's log says why", model.name),
        "model_load_failed", "model", 0};
  const ModelFront front = pool_.options().front(index);
  const OllamaShown shown{model.context_tokens, front.chat.get(),
                          front.options.tool_format != nullptr, front.options.splits_thoughts,
                          front.options.defaults};
  answer_json(ollama_show({*model.files, model.name, "", started_}, shown), response);
}

ordered_json PooledModels::json_of(size_t index, int64_t created) const {
  const PooledModel& model = pool_.models()[index];
  const ModelState state = pool_.state(index);
  ordered_json out{{"id", model.name},
                   {"object", "model"},
                   {"created", created},
                   {"owned_by", "sluice"},
                   {"max_model_len", model.context_tokens},
                   {"status", {{"value", place_name(state.place)}}}};
  if (state.place == ModelPlace::kLoading) out["status"]["progress"] = share_of(state);
  if (!model.files) out["status"]["failed"] = true;
  return out;
}

ordered_json PooledModels::list(int64_t created) const {
  auto all = ordered_json::array();
  for (size_t i = 0; i < pool_.models().size(); ++i) all.push_back(json_of(i, created));
  return all;
}

ordered_json PooledModels::find(const std::string& name, int64_t created) const {
  return json_of(pool_.find(name), created);
}

void PooledModels::tell_health(ordered_json& health) const {
  auto models = ordered_json::array();
  int64_t running = 0, waiting = 0;
  bool has_loaded = false, is_loading = false;
  for (size_t i = 0; i < pool_.models().size(); ++i) {
    const ModelState state = pool_.state(i);
    running += state.running;
    waiting += state.waiting;
    has_loaded = has_loaded || is_there(state.place);
    ordered_json one{{"name", pool_.models()[i].name}, {"state", place_name(state.place)}};
    if (state.place == ModelPlace::kLoading) {
      is_loading = true;
      one["loaded_bytes"] = state.loaded_bytes;
      one["total_bytes"] = state.total_bytes;
      one["progress"] = share_of(state);
    }
    one["running"] = state.running;
    one["waiting"] = state.waiting;
    models.push_back(std::move(one));
  }
  // Requests are taken all the same: they wait for their model.
  if (is_loading && !has_loaded && health["status"] == "ok") health["status"] = "loading";
  health["running"] = running;
  health["waiting"] = waiting;
  health["models"] = std::move(models);
}

std::string PooledModels::metrics() const {
  std::string loaded, loads, seconds;
  metric_head(loaded, "sluice:model_loaded", "gauge", "Whether the model is in memory.");
  metric_head(loads, "sluice:model_loads_total", "counter", "How often the model was loaded.");
  metric_head(seconds, "sluice:model_load_seconds_total", "counter",
              "Seconds of loading the model, with the wait for room.");
  std::vector<std::string> texts;
  for (size_t i = 0; i < pool_.models().size(); ++i) {
    ModelState state = pool_.state(i, ModelPool::WithMetrics::kYes);
    const std::string label = model_label(pool_.models()[i].name);
    loaded += fmt::format("sluice:model_loaded{{{}}} {}\n", label, is_there(state.place) ? 1 : 0);
    loads += fmt::format("sluice:model_loads_total{{{}}} {}\n", label, state.loads);
    seconds +=
        fmt::format("sluice:model_load_seconds_total{{{}}} {:.3f}\n", label, state.load_seconds);
    texts.push_back(std::move(state.metrics));
  }
  return join_metrics(texts) + loaded + loads + seconds;
}

int64_t PooledModels::most_requests() const { return 2 * pool_.options().most_waiting; }

}  // namespace sluice::serve
