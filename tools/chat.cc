// sluice chat: a conversation in the terminal. Each turn is the whole conversation through the
// model's chat template; what was computed before comes from the prefix cache.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/base/error.h"
#include "src/serve/generation_service.h"
#include "tools/arguments.h"
#include "tools/chat_options.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/output.h"

namespace sluice::tools {

namespace {
using nlohmann::ordered_json;

struct ChatFlags {
  EngineFlags engine;
  ChatOptions chat;
  std::string system;
  int max_tokens = 0;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
};

sampling::SamplingParams sampling_of(const ChatFlags& flags) {
  sampling::SamplingParams out = flags.chat.defaults(flags.engine.model);
  out.temperature = flags.temperature.value_or(out.temperature);
  out.top_p = flags.top_p.value_or(out.top_p);
  out.min_p = flags.min_p.value_or(out.min_p);
  out.top_k = flags.top_k.value_or(out.top_k);
  out.has_seed = flags.seed.has_value();
  out.seed = flags.seed.value_or(0);
  sampling::validate(out);
  return out;
}

// The next line of standard input; nothing at its end or when asked to stop.
class Lines {
 public:
  std::optional<std::string> next(std::stop_token stop) {
    for (;;) {
      if (const size_t end = pending_.find('\n'); end != std::string::npos) {
        std::string line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return line;
      }
      if (is_at_end_)
        return pending_.empty() ? std::nullopt : std::optional(std::exchange(pending_, {}));
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (stop.stop_requested()) return std::nullopt;
      if (poll(&input, 1, 200) <= 0) continue;
      char bytes[4096];
      const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
      if (count <= 0)
        is_at_end_ = true;
      else
        pending_.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  std::string pending_;
  bool is_at_end_ = false;
};

class Conversation {
 public:
  Conversation(const ChatFlags& flags, const text::Tokenizer& tokenizer,
               const chat::ChatTemplate& templ, serve::GenerationService& service)
      : flags_(flags), tokenizer_(tokenizer), template_(templ), service_(service) {
    reset();
  }

  void reset() {
    messages_ = ordered_json::array();
    if (!flags_.system.empty())
      messages_.push_back({{"role", "system"}, {"content", flags_.system}});
  }

  /// Prints the answer as it comes and keeps it. What can't be answered leaves no trace.
  void say(const std::string& text, const sampling::SamplingParams& params, std::stop_token stop) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    try {
      const std::string answer = answer_to_all(params, stop);
      messages_.push_back({{"role", "assistant"}, {"content", answer}});
    } catch (...) {
      messages_.erase(messages_.size() - 1);
      throw;
    }
  }

 private:
  std::string answer_to_all(sampling::SamplingParams params, std::stop_token stop) {
    serve::Submission submission;
    submission.prompt = tokenizer_.encode(template_.render(messages_, nullptr, true, nullptr),
                                          text::AddSpecial::kNo);
    const int64_t room =
        service_.engine().context_tokens() - static_cast<int64_t>(submission.prompt.size());
    if (room < 1)
      throw Error(ErrorKind::kUser,
                  fmt::format("the conversation has {} tokens, the context {}",
                              submission.prompt.size(), service_.engine().context_tokens()),
                  "/reset begins anew; --ctx-size makes it larger");
    params.max_tokens =
        static_cast<int>(flags_.max_tokens > 0 ? std::min<int64_t>(flags_.max_tokens, room) : room);
    submission.params = std::move(params);
    std::vector<serve::Submission> all;
    all.push_back(std::move(submission));
    auto admission = service_.submit(std::move(all));
    if (!admission.ticket)
      throw Error(service_.failure_kind(), "the engine has stopped: " + service_.failure());
    std::string answer;
    for (;;) {
      const auto event = admission.ticket->mailbox().take(std::chrono::milliseconds(200));
      if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped");
      if (!event) continue;
      if (event->kind == serve::Event::Kind::kRefused) throw Error(ErrorKind::kUser, event->text);
      if (event->kind == serve::Event::Kind::kFailed)
        throw Error(service_.failure_kind(), event->text);
      write_text(event->text);
      answer += event->text;
      if (event->is_last()) break;
    }
    write_text("\n");
    return answer;
  }

  const ChatFlags& flags_;
  const text::Tokenizer& tokenizer_;
  const chat::ChatTemplate& template_;
  serve::GenerationService& service_;
  ordered_json messages_;
};

void run(const ChatFlags& flags, std::stop_token stop) {
  const auto tokenizer = need_tokenizer(flags.engine.model);
  const auto chat = flags.chat.load_template(flags.engine.model, *tokenizer);
  if (!chat)
    throw Error(ErrorKind::kFile, flags.engine.model + ": the model has no chat template",
                "give one with --chat-template FILE, or use sluice run for models that were not "
                "trained to chat");
  const sampling::SamplingParams params = sampling_of(flags);
  const EngineFlags engine_flags = serving_flags(flags.engine);
  policy::Workload workload;
  workload.sequences = 1;
  workload.max_total_tokens = workload.max_prompt_tokens = engine_flags.context;
  const auto engine = open_engine(engine_flags, workload, stop, [](EngineOptions& options) {
    options.cache_prefixes = options.kv_recent_tokens == 0;
    limit_pass(options, 512);
  });
  if (!engine) return;
  engine->load(stop);
  serve::GenerationService service(*engine, *tokenizer, model_name(flags.engine.model), 4,
                                   serve::QueueOrder::kFirstCome);
  Conversation conversation(flags, *tokenizer, *chat, service);
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  if (is_terminal) std::fprintf(stderr, "sluice: /reset begins anew, /exit or Ctrl-D ends\n");
  Lines lines;
  for (;;) {
    if (is_terminal) {
      std::printf("> ");
      std::fflush(stdout);
    }
    const auto line = lines.next(stop);
    if (!line || *line == "/exit") break;
    if (*line == "/reset") {
      conversation.reset();
      continue;
    }
    if (line->empty()) continue;
    check_utf8(*line, "the message");
    try {
      conversation.say(*line, params, stop);
    } catch (const Error& error) {
      // A person can go on after a message that the template or the context refuses.
      if (!is_terminal || error.kind() != ErrorKind::kUser) throw;
      std::fprintf(stderr, "%ssluice: %s\n", message_start(), error.what());
    }
  }
  service.drain(std::chrono::seconds(0));
}
}  // namespace

Command add_chat(CLI::App& program) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* parser = program.add_subcommand("chat", "a conversation in the terminal");
  flags->engine.add_to(*parser);
  const char* group = "Chat";
  flags->chat.add_to(*parser, group);
  parser->add_option("--system", flags->system, "the system message")->group(group);
  parser
      ->add_option("-n,--max-tokens,--n-predict", flags->max_tokens,
                   "new tokens of an answer, at most (default: what the context holds)")
      ->check(CLI::Range(1, 1 << 24))
      ->group(group);
  parser->add_option("--temperature,--temp", flags->temperature, "0: greedy (default: the model's)")
      ->group(group);
  parser->add_option("--top-k", flags->top_k, "keep the k likeliest")->group(group);
  parser->add_option("--top-p", flags->top_p, "keep the likeliest that add up to p")->group(group);
  parser->add_option("--min-p", flags->min_p, "keep those above min-p times the likeliest")
      ->group(group);
  parser->add_option("-s,--seed", flags->seed, "of the random numbers")->group(group);
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
