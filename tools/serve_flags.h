#pragma once
// What `sluice serve` is told, and what becomes of it.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/serve/http_server.h"
#include "src/serve/keep_time.h"
#include "tools/chat_options.h"
#include "tools/engine_flags.h"
#include "tools/service_manager.h"

namespace sluice::tools {

struct ServeFlags {
  EngineFlags engine;  ///< of the first model
  std::vector<std::string> more_models;
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
  std::string keep;       ///< empty: as long as the server where there is one model, else 5m
  int turn_seconds = -1;  ///< below 0: 30
  std::string socket_path, socket_mode = "660";
  std::vector<const CLI::Option*> addresses;  ///< flags that say where to listen

  void add_to(CLI::App& parser);
};

/// What the memory has to hold: the sequences that run together at their usual length, and any one
/// of them at the whole context.
policy::Workload workload_of(const ServeFlags& flags, int64_t context);
serve::QueueOrder order_of(const std::string& name);
/// Bytes of swap space. Errors: kUser for what would have no effect.
int64_t checked_swap(const ServeFlags& flags);
/// Room for adapters that are loaded while the server runs, beside those given. Errors: kUser,
/// kFile.
int64_t checked_lora_memory(const ServeFlags& flags);
/// How long a model stays after its last request. Errors: kUser.
serve::KeepTime checked_keep(const ServeFlags& flags);
/// What all models share; names and defaults are of a model. Errors: kUser, kFile.
serve::HttpOptions http_options(const ServeFlags& flags);
/// What the flags say of an engine that serves, beside what all engines are told.
void adjust_engine(const ServeFlags& flags, EngineOptions& options);

/// Where the flags or the service manager say. Errors: kUser when it can't be had, or both say.
http::Listener open_listener(const ServeFlags& flags, ServiceManager& manager);

/// Says where the server is: "`who` http://...", and for what.
void tell_address(const serve::HttpOptions& http, const http::Listener& listener,
                  const std::string& who, const std::string& what);

}  // namespace sluice::tools
