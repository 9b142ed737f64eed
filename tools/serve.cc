// sluice serve: one model behind an OpenAI-compatible interface, or several.
#include <fmt/format.h>

#include <filesystem>
#include <thread>

#include "src/app/report.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/http/listener.h"
#include "src/serve/waiting_room.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/serve_flags.h"
#include "tools/serve_several.h"

namespace sluice::tools {

namespace {
void wait_for_end(const serve::GenerationService& service, std::stop_token stop) {
  Mutex mutex;
  StoppableCondition stopped;
  MutexLock lock(mutex);
  while (!stop.stop_requested() && service.failure().empty())
    stopped.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
}

void run_one(const ServeFlags& flags, std::stop_token stop) {
  checked_swap(flags);
  checked_lora_memory(flags);
  serve::HttpOptions http = http_options(flags);
  http.defaults = flags.chat.defaults(flags.engine.model);
  http.model_name = flags.names.empty() ? model_name(flags.engine.model) : flags.names.front();
  if (!flags.names.empty()) http.aliases.assign(flags.names.begin() + 1, flags.names.end());
  ServiceManager manager;
  // A port that is taken is told before anything is read.
  const http::Listener address = open_listener(flags, manager);
  serve::WaitingRoom waiting(address, http);
  manager.notify("STATUS=loading the model");
  const auto tokenizer = need_tokenizer(flags.engine);
  const auto chat = flags.chat.load_template(flags.engine.model, *tokenizer);
  const serve::ChatStyle style = flags.chat.style(chat.get());
  http.tool_format = style.tools;
  http.splits_thoughts = style.splits_thoughts;

  const EngineFlags engine_flags = serving_flags(flags.engine);
  const auto engine = open_engine(
      engine_flags, workload_of(flags, engine_flags.context), stop, [&](EngineOptions& options) {
        adjust_engine(flags, options);
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
        serve::BatchOptions{.folder = flags.batch_dir,
                            .names = http,
                            .tool_format = style.tools,
                            .splits_thoughts = style.splits_thoughts,
                            .takes_templates = http.takes_templates,
                            .config = answers_key(http.model_name, engine->model(), chat.get(),
                                                  flags.chat, flags.engine) +
                                      adapters_key(flags.engine.loras),
                            .defaults = http.defaults,
                            .files = {.bytes = parse_bytes(flags.batch_quota, "--batch-dir-quota")},
                            .log = tell});
  serve::HttpServer server(service, *tokenizer, chat.get(), http, batches.get());
  waiting.close();
  server.listen(address);
  tell_address(http, address, fmt::format("{} at", http.model_name),
               chat ? "completions and chat" : "completions; the model has no chat template");
  std::jthread listener([&] { server.serve(); });
  manager.notify("READY=1\nSTATUS=serving");
  wait_for_end(service, stop);
  manager.notify("STOPPING=1");
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

}  // namespace

Command add_serve(CLI::App& program) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* parser =
      program.add_subcommand("serve", "answer requests over HTTP (OpenAI-compatible)");
  flags->add_to(*parser);
  return {parser, [flags](std::stop_token stop) {
            const std::vector<ServedPath> models = served_paths(*flags);
            if (models.size() > 1 || !flags->keep.empty())
              return serve_several(*flags, models, stop);
            if (flags->turn_seconds >= 0)
              throw Error(ErrorKind::kUser, "--model-turn has no effect with one model",
                          "leave it out");
            flags->engine.model = models.front().path;
            run_one(*flags, stop);
          }};
}

}  // namespace sluice::tools
