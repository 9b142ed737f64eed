#include "tools/serve_flags.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/serve/origins.h"
#include "tools/flag_words.h"
#include "tools/model_argument.h"
#include "tools/output.h"

namespace sluice::tools {

namespace {
constexpr int64_t kMeanTokens = 1024;  // of a request, where --kv-tokens does not say
}  // namespace

serve::QueueOrder order_of(const std::string& name) {
  return name == "priority"   ? serve::QueueOrder::kPriority
         : name == "shortest" ? serve::QueueOrder::kShortest
                              : serve::QueueOrder::kFirstCome;
}

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

serve::KeepTime checked_keep(const ServeFlags& flags) {
  const auto keep = serve::read_keep_time(flags.keep.empty() ? "5m" : flags.keep);
  if (!keep)
    throw Error(ErrorKind::kUser, fmt::format("--keep {}: no time", flags.keep),
                "write a time such as 5m or 1h30m, 0 for none, or -1 for ever");
  return *keep;
}

namespace {
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

}  // namespace

serve::HttpOptions http_options(const ServeFlags& flags) {
  serve::HttpOptions http = flags.http;
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
  for (const std::string& origin : http.cors_origins) serve::check_origin(origin);
  http.api_keys = keys_of(flags);
  return http;
}

namespace {
bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

http::Listener open_listener(const ServeFlags& flags, ServiceManager& manager) {
  if (auto given = manager.take_listener()) {
    for (const CLI::Option* flag : flags.addresses)
      if (flag->count() > 0)
        throw Error(ErrorKind::kUser,
                    fmt::format("{} says where to listen, and a socket was handed over "
                                "(LISTEN_FDS)",
                                flag->get_name()),
                    "leave the one or the other out");
    return *std::move(given);
  }
  if (flags.socket_path.empty()) return http::Listener::open(flags.http.host, flags.http.port);
  return http::Listener::open_unix(flags.socket_path,
                                   static_cast<mode_t>(std::stoul(flags.socket_mode, nullptr, 8)));
}

void tell_address(const serve::HttpOptions& http, const http::Listener& listener,
                  const std::string& who, const std::string& what) {
  const char* key = http.api_keys.empty() ? "" : "; with an API key";
  const std::string host = listener.address();
  if (listener.is_unix())
    return tell(fmt::format("{} the socket {} ({}{}); Ctrl-C stops", who, host, what, key));
  const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
  const int port = listener.port();
  tell(fmt::format("{} http://{}:{}/v1 ({}{}); Ctrl-C stops", who, shown, port, what, key));
  if (http.has_page)
    tell(fmt::format("in a browser, chat and what the server does just now: http://{}:{}/", shown,
                     port));
  if (http.api_keys.empty() && !is_loopback(host))
    tell(
        fmt::format("note: anybody who reaches {} may ask, upload and read what is kept: there is "
                    "no API key (--api-key)",
                    shown));
}

void adjust_engine(const ServeFlags& flags, EngineOptions& options) {
  options.predict_lengths = !flags.no_prediction;
  options.static_batches = flags.static_batches;
  options.cache_prefixes = !flags.no_prefix_cache && options.kv_recent_tokens == 0;
  options.swaps_always = flags.preemption == "swap";
  options.swap_bytes = checked_swap(flags);
  if (const int64_t bytes = checked_lora_memory(flags); bytes > 0) {
    options.adapters.bytes += bytes;
    options.adapters.rank = std::max(options.adapters.rank, flags.most_rank);
  }
  limit_pass(options, std::max(flags.pass_tokens, flags.sequences));
}

namespace {
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

void add_address_flags(CLI::App& parser, ServeFlags& flags) {
  const char* group = "Server";
  CLI::Option* host = parser.add_option("--host", flags.http.host, "address to listen on")
                          ->capture_default_str()
                          ->group(group);
  CLI::Option* port = parser.add_option("--port", flags.http.port, "port; 0: any that is free")
                          ->capture_default_str()
                          ->check(CLI::Range(0, 65535))
                          ->group(group);
  CLI::Option* path = parser
                          .add_option("--unix-socket", flags.socket_path,
                                      "listen at this file instead of a port: a socket that only "
                                      "this machine reaches")
                          ->excludes(host)
                          ->excludes(port)
                          ->group(group);
  parser.add_option("--unix-socket-mode", flags.socket_mode, "permissions of that file")
      ->capture_default_str()
      ->needs(path)
      ->check(CLI::Validator(
          [](const std::string& text) {
            const bool is_mode = !text.empty() && text.size() <= 4 &&
                                 text.find_first_not_of("01234567") == std::string::npos;
            return is_mode ? std::string() : "give permissions in octal, such as 660";
          },
          "MODE"))
      ->group(group);
  flags.addresses = {host, port, path};
}

void add_server_flags(CLI::App& parser, ServeFlags& flags) {
  const char* group = "Server";
  add_address_flags(parser, flags);
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

void add_model_flags(CLI::App& parser, ServeFlags& flags) {
  const char* group = "Several models";
  take_model_names(
      parser.add_option("models", flags.more_models,
                        "more models, or a folder of models: each is loaded when a request names "
                        "it, within one budget; docs/serving.md"))
      ->group(group);
  parser
      .add_option("--keep", flags.keep,
                  "time that a model stays in memory after its last request, as 10m, 0 or -1 (for "
                  "ever); then the next request loads it (default: 5m; one model: for ever)")
      ->group(group);
  parser
      .add_option("--model-turn", flags.turn_seconds,
                  "seconds from its loading on that a model takes new requests while another is "
                  "waited for (default: 30)")
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

void ServeFlags::add_to(CLI::App& parser) {
  engine.adapter_use = AdapterUse::kByRequest;
  engine.add_to(parser);
  add_server_flags(parser, *this);
  add_model_flags(parser, *this);
  add_kept_flags(parser, *this);
  add_batching_flags(parser, *this);
}

}  // namespace sluice::tools
