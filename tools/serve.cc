// sluice serve: one model behind an OpenAI-compatible interface.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "src/app/report.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/serve/http_server.h"
#include "tools/command.h"
#include "tools/engine_flags.h"

namespace sluice::tools {

namespace {
struct ServeFlags {
  EngineFlags engine;
  serve::HttpOptions http;
  std::string order = "fcfs";
  std::string chat_template;
  std::string generation_config = "auto";
  int64_t sequences = 16;
  int64_t kv_tokens = 0;
  int64_t pass_tokens = 512;
  int64_t waiting = 256;
  int timeout_seconds = 0;
  int drain_seconds = 30;
  bool no_prefix_cache = false;
  bool no_prediction = false;
  std::string most_body = "32MiB";
};

constexpr int64_t kDefaultContext = 4096;
constexpr int64_t kMeanTokens = 1024;  // of a request, where --kv-tokens does not say

// A sampling field of generation_config.json, as vLLM takes it for what requests leave out.
sampling::SamplingParams generation_defaults(const ServeFlags& flags) {
  sampling::SamplingParams out;
  if (flags.generation_config == "none") return out;
  const bool is_auto = flags.generation_config == "auto";
  const auto path = is_auto ? std::filesystem::path(flags.engine.model) / "generation_config.json"
                            : std::filesystem::path(flags.generation_config);
  std::ifstream file(path);
  if (!file) {
    if (is_auto) return out;
    throw Error(ErrorKind::kFile, path.string() + ": can't be read", "check --generation-config");
  }
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw Error(ErrorKind::kFile, path.string() + ": is no JSON object",
                "mend it, or leave it out with --generation-config none");
  const auto read = [&](const char* name, auto& field) {
    if (json.contains(name) && json[name].is_number())
      field = json[name].get<std::decay_t<decltype(field)>>();
  };
  read("temperature", out.temperature);
  read("top_k", out.top_k);
  read("top_p", out.top_p);
  read("min_p", out.min_p);
  read("repetition_penalty", out.repetition_penalty);
  try {
    sampling::validate(out);
  } catch (const Error& error) {
    throw error.with_context(path.string());
  }
  return out;
}

std::optional<chat::ChatTemplateSource> template_source(const ServeFlags& flags) {
  auto found = chat::find_chat_template(flags.engine.model);
  if (flags.chat_template.empty()) return found;
  std::ifstream file(flags.chat_template, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file)
    throw Error(ErrorKind::kFile, flags.chat_template + ": can't be read", "check --chat-template");
  chat::ChatTemplateSource given = found.value_or(chat::ChatTemplateSource{});
  given.text = text.str();
  given.tools_text.clear();
  given.origin = flags.chat_template;
  return given;
}

std::unique_ptr<chat::ChatTemplate> load_chat(const ServeFlags& flags,
                                              const text::Tokenizer& tokenizer) {
  auto source = template_source(flags);
  if (!source) return nullptr;
  if (source->bos_token.empty() && tokenizer.bos())
    source->bos_token = tokenizer.token_bytes(*tokenizer.bos());
  if (source->eos_token.empty() && tokenizer.eos())
    source->eos_token = tokenizer.token_bytes(*tokenizer.eos());
  return std::make_unique<chat::ChatTemplate>(std::move(*source));
}

serve::QueueOrder order_of(const std::string& name) {
  return name == "priority"   ? serve::QueueOrder::kPriority
         : name == "shortest" ? serve::QueueOrder::kShortest
                              : serve::QueueOrder::kFirstCome;
}

// What the memory has to hold: the sequences that run together at their usual length, and any one
// of them at the whole context.
policy::Workload workload_of(const ServeFlags& flags, int64_t context) {
  policy::Workload workload;
  workload.sequences = flags.sequences;
  workload.max_total_tokens = context;
  workload.max_prompt_tokens = context;
  const int64_t tokens =
      flags.kv_tokens > 0 ? flags.kv_tokens : flags.sequences * std::min(context, kMeanTokens);
  workload.total_tokens = std::max(tokens, context);
  return workload;
}

std::string folder_name(const std::string& model) {
  const auto path = std::filesystem::absolute(model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

void tell(std::string_view line) {
  std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(line.size()), line.data());
}

void run(const ServeFlags& flags, std::stop_token stop) {
  const auto tokenizer = need_tokenizer(flags.engine.model);
  const auto chat = load_chat(flags, *tokenizer);
  serve::HttpOptions http = flags.http;
  http.defaults = generation_defaults(flags);
  http.most_body_bytes = parse_bytes(flags.most_body, "--max-body");
  http.request_timeout = std::chrono::seconds(flags.timeout_seconds);
  http.log = tell;
  if (http.model_name.empty()) http.model_name = folder_name(flags.engine.model);
  if (const char* key = std::getenv("SLUICE_API_KEY"); key && http.api_key.empty())
    http.api_key = key;

  EngineFlags engine_flags = flags.engine;
  engine_flags.prefers_memory = true;
  const int64_t positions = BoundModel::open(flags.engine.model).shape().max_positions;
  if (engine_flags.context == 0) engine_flags.context = std::min(positions, kDefaultContext);
  const auto engine = open_engine(
      engine_flags, workload_of(flags, engine_flags.context), [&](EngineOptions& options) {
        options.predict_lengths = !flags.no_prediction;
        options.cache_prefixes = !flags.no_prefix_cache && options.kv_recent_tokens == 0;
        policy::Policy& policy = options.policy ? *options.policy : options.start_policy;
        if (policy.pass_tokens == 0)
          policy.pass_tokens = std::max(flags.pass_tokens, flags.sequences);
      });
  if (!engine) return;
  engine->load(stop);
  serve::GenerationService service(*engine, *tokenizer, http.model_name, flags.waiting,
                                   order_of(flags.order));
  serve::HttpServer server(service, *tokenizer, chat.get(), http);
  const int port = server.bind();
  const std::string shown =
      http.host.find(':') == std::string::npos ? http.host : "[" + http.host + "]";
  tell(fmt::format("{} at http://{}:{}/v1 ({}{}); Ctrl-C stops", http.model_name, shown, port,
                   chat ? "completions and chat" : "completions; the model has no chat template",
                   http.api_key.empty() ? "" : "; with an API key"));
  std::jthread listener([&] { server.serve(); });
  {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested() && service.failure().empty())
      stopped.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
  }
  const std::string failure = service.failure();
  if (failure.empty() && service.running() + service.waiting() > 0)
    tell(fmt::format("finishing {} requests, at most {} s", service.running() + service.waiting(),
                     flags.drain_seconds));
  service.drain(std::chrono::seconds(flags.drain_seconds));
  server.stop();
  listener.join();
  if (!failure.empty()) throw Error(ErrorKind::kInternal, "the engine has stopped: " + failure);
  finish_run(engine_flags, *engine);
}
}  // namespace

Command add_serve(CLI::App& program) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* parser =
      program.add_subcommand("serve", "answer requests over HTTP (OpenAI-compatible)");
  flags->engine.add_to(*parser);
  const char* group = "Server";
  parser->add_option("--host", flags->http.host, "address to listen on")
      ->capture_default_str()
      ->group(group);
  parser->add_option("--port", flags->http.port, "port; 0: any that is free")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->group(group);
  parser
      ->add_option("--api-key", flags->http.api_key,
                   "asked for as a bearer token (or set SLUICE_API_KEY)")
      ->group(group);
  parser
      ->add_option("--served-model-name", flags->http.model_name,
                   "name that requests use (default: the folder's)")
      ->group(group);
  parser
      ->add_option("--chat-template", flags->chat_template,
                   "a Jinja file instead of the model's own")
      ->group(group);
  parser
      ->add_option(
          "--generation-config", flags->generation_config,
          "defaults of sampling: auto (the model's generation_config.json), none, or a file")
      ->capture_default_str()
      ->group(group);
  parser
      ->add_option("--cors-origin", flags->http.cors_origin,
                   "pages of this origin may ask (* for all)")
      ->group(group);
  parser->add_option("--max-connections", flags->http.connections, "served at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096))
      ->group(group);
  parser->add_option("--max-body", flags->most_body, "largest request body")
      ->capture_default_str()
      ->group(group);
  parser
      ->add_option("--request-timeout", flags->timeout_seconds,
                   "seconds from arrival to the end; 0: none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  parser
      ->add_option("--drain-timeout", flags->drain_seconds,
                   "seconds that running requests get when the server stops")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  const char* batching = "Batching";
  parser->add_option("--max-num-seqs,--parallel", flags->sequences, "sequences that run together")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096))
      ->group(batching);
  parser
      ->add_option("--max-num-batched-tokens", flags->pass_tokens,
                   "tokens of a pass: prompts go in so large chunks")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->group(batching);
  parser
      ->add_option("--kv-tokens", flags->kv_tokens,
                   "tokens of KV to hold (default: 1024 a sequence)")
      ->check(CLI::NonNegativeNumber)
      ->group(batching);
  parser
      ->add_option("--max-waiting", flags->waiting,
                   "requests that may wait; more are answered with 429")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20))
      ->group(batching);
  parser->add_option("--scheduling-policy", flags->order, "who is next: fcfs, priority or shortest")
      ->capture_default_str()
      ->check(CLI::IsMember({"fcfs", "priority", "shortest"}))
      ->group(batching);
  parser->add_flag("--no-prefix-cache", flags->no_prefix_cache, "compute every prompt anew")
      ->group(batching);
  parser
      ->add_flag("--no-length-prediction", flags->no_prediction,
                 "reserve KV for max_tokens instead of what outputs turn out to need")
      ->group(batching);
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
