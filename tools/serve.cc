// sluice serve: one model behind an OpenAI-compatible interface.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "src/app/report.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/http/listener.h"
#include "src/serve/http_server.h"
#include "src/serve/origins.h"
#include "src/serve/waiting_room.h"
#include "tools/chat_options.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/flag_words.h"
#include "tools/output.h"

namespace sluice::tools {

namespace {
struct ServeFlags {
  EngineFlags engine;
  serve::HttpOptions http;
  std::string order = "fcfs";
  std::vector<std::string> keys, names;
  std::string key_file;
  int64_t most_caller_tokens = 0;
  ChatOptions chat;
  int64_t sequences = 16;
  int64_t kv_tokens = 0;
  int64_t pass_tokens = 512;
  int64_t waiting = 256;
  int timeout_seconds = 0;
  int drain_seconds = 30;
  bool no_page = false;
  bool no_prefix_cache = false;
  bool no_prediction = false;
  bool static_batches = false;
  std::string most_body = "32MiB", most_bodies;
  std::string batch_dir, batch_quota = "10GiB";
  std::string swap_space = "0";
  std::string lora_dir, lora_memory;
  int64_t most_rank = 64;
  std::string preemption = "auto";
};

constexpr int64_t kMeanTokens = 1024;  // of a request, where --kv-tokens does not say

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
  // Nothing is known of them yet: as much is generated as is asked.
  workload.prompt_tokens = workload.total_tokens / 2;
  return workload;
}

// Bytes of swap space; what would have no effect is refused.
int64_t checked_swap(const ServeFlags& flags) {
  const int64_t bytes = parse_bytes(flags.swap_space, "--swap-space");
  if (bytes > 0 && (flags.no_prefix_cache || flags.engine.kv_recent > 0))
    throw Error(ErrorKind::kUser,
                "--swap-space keeps pages of the prefix cache, which is off (--no-prefix-cache, "
                "--kv-recent)",
                "leave one of them out");
  if (bytes == 0 && flags.preemption == "swap")
    throw Error(ErrorKind::kUser, "--preemption-mode swap has no space to swap to",
                "say how much with --swap-space, such as 4GiB");
  return bytes;
}

// Room for adapters that are loaded while the server runs, beside those given.
int64_t checked_lora_memory(const ServeFlags& flags) {
  if (flags.lora_dir.empty() != flags.lora_memory.empty())
    throw Error(ErrorKind::kUser, "--lora-dir and --lora-memory go together",
                "say where adapters that may be loaded lie, and how much memory is for them, such "
                "as 1GiB");
  if (flags.lora_dir.empty()) return 0;
  std::error_code error;
  if (!std::filesystem::is_directory(flags.lora_dir, error))
    throw Error(ErrorKind::kFile, fmt::format("--lora-dir {}: no folder", flags.lora_dir),
                "give a folder");
  return parse_bytes(flags.lora_memory, "--lora-memory");
}

// Who said that there is a key meant that strangers are refused.
void require_key(std::string_view key, const char* name) {
  if (key.empty())
    throw Error(ErrorKind::kUser, fmt::format("{} is empty: anybody could ask", name),
                fmt::format("give it a key, or leave {} out", name));
}

std::vector<serve::ApiKey> keys_of(const ServeFlags& flags) {
  std::vector<serve::ApiKey> keys;
  if (!flags.key_file.empty()) keys = serve::read_keys(flags.key_file);
  for (const std::string& key : flags.keys) {
    for (const serve::ApiKey& other : keys)
      if (other.key == key)
        throw Error(ErrorKind::kUser, "--api-key gives a key that was given before",
                    "give each caller a key of its own");
    keys.push_back({key, 1});
  }
  if (const char* key = std::getenv("SLUICE_API_KEY"); key && keys.empty()) {
    require_key(key, "SLUICE_API_KEY");
    keys.push_back({key, 1});
  }
  return keys;
}

serve::HttpOptions http_options(const ServeFlags& flags) {
  serve::HttpOptions http = flags.http;
  http.defaults = flags.chat.defaults(flags.engine.model);
  http.most_body_bytes = parse_bytes(flags.most_body, "--max-body");
  if (!flags.most_bodies.empty())
    http.most_bytes_together = parse_bytes(flags.most_bodies, "--max-body-total");
  if (http.most_bytes_together > 0 && http.most_bytes_together < http.most_body_bytes)
    throw Error(ErrorKind::kUser,
                fmt::format("--max-body-total {} is less than one body may have (--max-body {})",
                            flags.most_bodies, flags.most_body),
                "raise the one or lower the other");
  http.request_timeout = std::chrono::seconds(flags.timeout_seconds);
  http.log = tell;
  http.lora_folder = flags.lora_dir;
  http.has_page = !flags.no_page;
  http.in_words = in_flags;
  http.model_name = flags.names.empty() ? model_name(flags.engine.model) : flags.names.front();
  if (!flags.names.empty()) http.aliases.assign(flags.names.begin() + 1, flags.names.end());
  for (const std::string& origin : http.cors_origins) serve::check_origin(origin);
  http.api_keys = keys_of(flags);
  return http;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void tell_address(const serve::HttpOptions& http, int port, bool has_chat) {
  const std::string shown =
      http.host.find(':') == std::string::npos ? http.host : "[" + http.host + "]";
  tell(
      fmt::format("{} at http://{}:{}/v1 ({}{}); Ctrl-C stops", http.model_name, shown, port,
                  has_chat ? "completions and chat" : "completions; the model has no chat template",
                  http.api_keys.empty() ? "" : "; with an API key"));
  if (http.has_page)
    tell(fmt::format("in a browser, chat and what the server does just now: http://{}:{}/", shown,
                     port));
  if (http.api_keys.empty() && !is_loopback(http.host))
    tell(
        fmt::format("note: anybody who reaches {} may ask, upload and read what is kept: there is "
                    "no API key (--api-key)",
                    shown));
}

void wait_for_end(const serve::GenerationService& service, std::stop_token stop) {
  Mutex mutex;
  StoppableCondition stopped;
  MutexLock lock(mutex);
  while (!stop.stop_requested() && service.failure().empty())
    stopped.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
}

void run(const ServeFlags& flags, std::stop_token stop) {
  const int64_t swap_bytes = checked_swap(flags);
  const int64_t lora_bytes = checked_lora_memory(flags);
  serve::HttpOptions http = http_options(flags);
  // A port that is taken is told before anything is read.
  const http::Listener address = http::Listener::open(http.host, http.port);
  serve::WaitingRoom waiting(address, http);
  const auto tokenizer = need_tokenizer(flags.engine);
  const auto chat = flags.chat.load_template(flags.engine.model, *tokenizer);
  const serve::ChatStyle style = flags.chat.style(chat.get());
  http.tool_format = style.tools;
  http.splits_thoughts = style.splits_thoughts;

  const EngineFlags engine_flags = serving_flags(flags.engine);
  const auto engine = open_engine(
      engine_flags, workload_of(flags, engine_flags.context), stop, [&](EngineOptions& options) {
        options.predict_lengths = !flags.no_prediction;
        options.static_batches = flags.static_batches;
        options.cache_prefixes = !flags.no_prefix_cache && options.kv_recent_tokens == 0;
        options.swaps_always = flags.preemption == "swap";
        options.swap_bytes = swap_bytes;
        if (lora_bytes > 0) {
          options.adapters.bytes += lora_bytes;
          options.adapters.rank = std::max(options.adapters.rank, flags.most_rank);
        }
        limit_pass(options, std::max(flags.pass_tokens, flags.sequences));
        options.load_progress = [shown = options.load_progress,
                                 &waiting](const LoadProgress& progress) {
          waiting.tell(progress.done_bytes, progress.total_bytes);
          if (shown) shown(progress);
        };
      });
  if (!engine) return;
  for (const AdapterPtr& adapter : engine->adapters().list())
    if (http.names(adapter->name))
      throw Error(ErrorKind::kUser,
                  fmt::format("{} names the model and one of its adapters", adapter->name),
                  "give one of them another name (--served-model-name, --lora NAME=DIR)");
  engine->load(stop);
  serve::GenerationService service(
      *engine, *tokenizer, http.model_name, flags.waiting, order_of(flags.order),
      flags.most_caller_tokens > 0 ? flags.most_caller_tokens : INT64_MAX);
  std::unique_ptr<serve::Batches> batches;
  if (!flags.batch_dir.empty())
    batches = std::make_unique<serve::Batches>(
        service, *tokenizer, chat.get(),
        serve::BatchOptions{
            .folder = flags.batch_dir,
            .names = http,
            .tool_format = style.tools,
            .splits_thoughts = style.splits_thoughts,
            .takes_templates = http.takes_templates,
            .config = answers_key(http.model_name, engine->model(), chat.get(), flags.chat) +
                      adapters_key(flags.engine.loras),
            .defaults = http.defaults,
            .files = {.bytes = parse_bytes(flags.batch_quota, "--batch-dir-quota")},
            .log = tell});
  serve::HttpServer server(service, *tokenizer, chat.get(), http, batches.get());
  waiting.close();
  server.listen(address);
  tell_address(http, address.port(), chat != nullptr);
  std::jthread listener([&] { server.serve(); });
  wait_for_end(service, stop);
  server.drain();
  if (batches) batches->stop();
  const std::string failure = service.failure();
  if (failure.empty() && service.running() + service.waiting() > 0)
    tell(fmt::format("finishing {} requests, at most {} s", service.running() + service.waiting(),
                     flags.drain_seconds));
  service.drain(std::chrono::seconds(flags.drain_seconds));
  server.stop();
  listener.join();
  if (!failure.empty()) throw Error(service.failure_kind(), "the engine has stopped: " + failure);
  finish_run(engine_flags, engine);
}

void add_key_flags(CLI::App& parser, ServeFlags& flags) {
  const char* group = "Server";
  parser
      .add_option("--api-key", flags.keys,
                  "asked for as a bearer token (or set SLUICE_API_KEY); several, each a caller's "
                  "with a share of its own")
      ->expected(1)
      ->take_all()
      ->each([](const std::string& key) { require_key(key, "--api-key"); })
      ->group(group);
  parser
      .add_option("--api-key-file", flags.key_file,
                  "keys, one a line; a number behind one is what its caller's share weighs (1)")
      ->check(CLI::ExistingFile)
      ->group(group);
}

void add_server_flags(CLI::App& parser, ServeFlags& flags) {
  const char* group = "Server";
  parser.add_option("--host", flags.http.host, "address to listen on")
      ->capture_default_str()
      ->group(group);
  parser.add_option("--port", flags.http.port, "port; 0: any that is free")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->group(group);
  add_key_flags(parser, flags);
  parser
      .add_option("--allowed-host", flags.http.allowed_hosts,
                  "a name that this server goes by, beside localhost, addresses and names without "
                  "dots, where no API key is asked for (* for any)")
      ->expected(1)
      ->take_all()
      ->delimiter(',')
      ->group(group);
  parser
      .add_option("--served-model-name", flags.names,
                  "names that requests use, the first of them that of answers (default: the "
                  "folder's)")
      ->expected(1)
      ->take_all()
      ->delimiter(',')
      ->group(group);
  parser
      .add_flag("--any-model", flags.http.takes_any_name,
                "answer requests by whatever name they call the model, as llama.cpp does")
      ->group(group);
  flags.chat.add_to(parser, group);
  flags.chat.add_reading_to(parser, group);
  parser
      .add_flag("--strict", flags.http.is_strict,
                "refuse requests with fields that this server does not know or can't do; else they "
                "are passed over, and the answer says so (X-Sluice-Warning)")
      ->group(group);
  parser
      .add_option("--cors-origin", flags.http.cors_origins,
                  "pages of this origin may ask, such as https://a.example (* for all)")
      ->expected(1)
      ->take_all()
      ->delimiter(',')
      ->group(group);
  parser
      .add_flag("--no-webui", flags.no_page,
                "without the page at / (chat and live figures in a browser)")
      ->group(group);
  parser
      .add_option("--max-connections", flags.http.connections,
                  "open at once; never fewer than requests may run and wait")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  parser
      .add_option("--max-body", flags.most_body,
                  "largest request body, also once it is decompressed")
      ->capture_default_str()
      ->group(group);
  parser
      .add_option("--max-body-total", flags.most_bodies,
                  "of all bodies that are being read together; more are answered with 503 "
                  "(default: 4 times --max-body)")
      ->group(group);
  parser
      .add_option("--request-timeout", flags.timeout_seconds,
                  "seconds from arrival to the end; 0: none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  parser
      .add_option("--drain-timeout", flags.drain_seconds,
                  "seconds that running requests get when the server stops")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->group(group);
}

void add_kept_flags(CLI::App& parser, ServeFlags& flags) {
  const char* group = "Server";
  parser
      .add_option("--lora-dir", flags.lora_dir,
                  "adapters in this folder may be loaded while the server runs "
                  "(/v1/load_lora_adapter; default: none; needs --lora-memory)")
      ->group(group);
  parser.add_option("--lora-memory", flags.lora_memory, "memory for these, as 1GiB")->group(group);
  parser.add_option("--max-lora-rank", flags.most_rank, "largest rank of these")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536))
      ->group(group);
  parser
      .add_option("--batch-dir", flags.batch_dir,
                  "keep files and batches (/v1/files, /v1/batches) here; the next start goes on "
                  "with them (default: none)")
      ->group(group);
  parser
      .add_option("--batch-dir-quota", flags.batch_quota,
                  "of all files there; an upload that does not fit is refused")
      ->capture_default_str()
      ->group(group);
}

void add_batching_flags(CLI::App& parser, ServeFlags& flags) {
  const char* group = "Batching";
  parser.add_option("--max-num-seqs,--parallel", flags.sequences, "sequences that run together")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096))
      ->group(group);
  parser
      .add_option("--max-num-batched-tokens", flags.pass_tokens,
                  "tokens of a pass: prompts go in so large chunks")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  parser
      .add_option("--kv-tokens", flags.kv_tokens, "tokens of KV to hold (default: 1024 a sequence)")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  parser
      .add_option("--max-waiting", flags.waiting,
                  "requests that may wait; more are answered with 429")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  parser
      .add_option(
          "--max-tokens-per-key", flags.most_caller_tokens,
          "prompts and answers of one caller's requests that wait or run together; more are "
          "answered with 429 (default: no limit). A caller is a key where there are several, "
          "else an address")
      ->check(CLI::PositiveNumber)
      ->group(group);
  parser.add_option("--scheduling-policy", flags.order, "who is next: fcfs, priority or shortest")
      ->capture_default_str()
      ->check(CLI::IsMember({"fcfs", "priority", "shortest"}))
      ->group(group);
  parser
      .add_option("--swap-space", flags.swap_space,
                  "room for KV that the pool gives up, to be copied back where that is cheaper "
                  "than computing it again: host memory below a device, else disk")
      ->capture_default_str()
      ->group(group);
  parser
      .add_option("--preemption-mode", flags.preemption,
                  "auto: copied back or computed again, whichever was cheaper of late; swap: "
                  "always copied (--swap-space)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "swap"}))
      ->group(group);
  parser
      .add_flag("--trust-request-chat-template", flags.http.takes_templates,
                "requests may bring a chat_template of their own; one can take a core for seconds")
      ->group(group);
  parser.add_flag("--no-prefix-cache", flags.no_prefix_cache, "compute every prompt anew")
      ->group(group);
  parser
      .add_flag("--no-length-prediction", flags.no_prediction,
                "reserve KV for max_tokens instead of what outputs turn out to need")
      ->group(group);
  parser
      .add_flag("--static", flags.static_batches,
                "whole batches one after the other, to compare with continuous batching")
      ->group(group);
}
}  // namespace

Command add_serve(CLI::App& program) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* parser =
      program.add_subcommand("serve", "answer requests over HTTP (OpenAI-compatible)");
  flags->engine.adapter_use = AdapterUse::kByRequest;
  flags->engine.add_to(*parser);
  add_server_flags(*parser, *flags);
  add_kept_flags(*parser, *flags);
  add_batching_flags(*parser, *flags);
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
