// sluice chat: a conversation in the terminal, or over a pipe. Each turn is the whole conversation
// through the model's chat template; what was computed before comes from the prefix cache.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/base/error.h"
#include "src/serve/chat_prompt.h"
#include "src/serve/generation_service.h"
#include "tools/arguments.h"
#include "tools/chat_options.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/flag_words.h"
#include "tools/line_reader.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/sampling_flags.h"
#include "tools/shown_answer.h"

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
  FilterFlags filters;
  bool keeps_no_history = false;
};

sampling::SamplingParams sampling_of(const ChatFlags& flags) {
  sampling::SamplingParams out = flags.chat.defaults(flags.engine.model);
  out.temperature = flags.temperature.value_or(out.temperature);
  out.top_p = flags.top_p.value_or(out.top_p);
  out.min_p = flags.min_p.value_or(out.min_p);
  out.top_k = flags.top_k.value_or(out.top_k);
  flags.filters.apply(out);
  out.has_seed = flags.seed.has_value();
  out.seed = flags.seed.value_or(0);
  sampling::validate(out);
  return out;
}

// Thoughts are told from the answer by a terminal alone, where it can.
ShownAnswer::Thoughts place_of_thoughts() {
  const char* terminal = std::getenv("TERM");
  const bool is_plain = !terminal || std::string_view(terminal) == "dumb" || !*terminal;
  return isatty(STDOUT_FILENO) && !is_plain ? ShownAnswer::Thoughts::kFaint
                                            : ShownAnswer::Thoughts::kHidden;
}

class Conversation {
 public:
  Conversation(const ChatFlags& flags, const text::Tokenizer& tokenizer,
               const chat::ChatTemplate& templ, serve::GenerationService& service,
               LineReader& reader, TokenProgress& progress)
      : flags_(flags),
        tokenizer_(tokenizer),
        template_(templ),
        service_(service),
        reader_(reader),
        progress_(progress),
        style_(flags.chat.style(&templ)) {
    reset();
  }

  void reset() {
    messages_ = ordered_json::array();
    if (!flags_.system.empty())
      messages_.push_back({{"role", "system"}, {"content", flags_.system}});
  }

  /// Prints the answer as it comes and keeps it; of an interrupted one what came. What is not
  /// answered leaves no trace.
  void say(const std::string& text, const sampling::SamplingParams& params,
           const std::stop_token& stop) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    try {
      const Answer answer = answer_to_all(params, stop);
      if (answer.is_cut && answer.text.empty())
        messages_.erase(messages_.size() - 1);
      else
        messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
    } catch (...) {
      messages_.erase(messages_.size() - 1);
      throw;
    }
  }

 private:
  struct Answer {
    std::string text;
    bool is_cut = false;
  };

  /// As the server reads a chat without tools.
  serve::ChatPrompt prompt_of_all() const {
    serve::ChatRequest request;
    request.messages = messages_;
    try {
      serve::ChatPrompt out =
          serve::chat_prompt(request, &template_, tokenizer_, style_.tools, style_.splits_thoughts);
      // Elsewhere nothing but the tools that were offered tells a call from a text.
      if (out.form.has_channels) out.form.calls = style_.tools;
      return out;
    } catch (const serve::ApiError& error) {
      throw Error(ErrorKind::kUser, error.message);
    }
  }

  Answer answer_to_all(sampling::SamplingParams params, const std::stop_token& stop) {
    const serve::ChatPrompt prompt = prompt_of_all();
    serve::Submission submission;
    submission.prompt = tokenizer_.encode(prompt.text, text::AddSpecial::kNo);
    submission.keeps_special = prompt.keeps_special;
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
    progress_.begin();
    auto admission = service_.submit(std::move(all));
    if (!admission.ticket)
      throw Error(service_.failure_kind(), "the engine has stopped: " + service_.failure());
    ShownAnswer shown(prompt.form, place_of_thoughts());
    Answer answer;
    try {
      answer.is_cut = !show(admission.ticket->mailbox(), shown, stop);
    } catch (...) {
      write_text(shown.finish());  // a thought's looks end with it
      throw;
    }
    write(shown.finish());
    progress_.end();
    write_text("\n");
    answer.text = shown.text();
    return answer;
  }

  void write(const std::string& text) const {
    if (!text.empty()) progress_.end();
    write_text(text);
  }

  // False: cut by Ctrl-C.
  bool show(serve::Mailbox& mailbox, ShownAnswer& shown, const std::stop_token& stop) const {
    for (;;) {
      const auto event = mailbox.take(std::chrono::milliseconds(100));
      if (stop.stop_requested()) throw Error(ErrorKind::kCancelled, "stopped");
      if (reader_.was_interrupted()) return false;  // the ticket gives the rest up
      if (!event) continue;
      if (event->kind == serve::Event::Kind::kRefused) throw Error(ErrorKind::kUser, event->text);
      if (event->kind == serve::Event::Kind::kFailed)
        throw Error(service_.failure_kind(), event->text);
      write(shown.add(event->text));
      if (event->is_last()) return true;
    }
  }

  const ChatFlags& flags_;
  const text::Tokenizer& tokenizer_;
  const chat::ChatTemplate& template_;
  serve::GenerationService& service_;
  LineReader& reader_;
  TokenProgress& progress_;
  const serve::ChatStyle style_;
  ordered_json messages_;
};

// Turn by turn until the input ends. In a terminal Ctrl-C ends an answer, or drops what is typed;
// twice at an empty prompt, it leaves: an impatient second one at an answer does not.
void converse(Conversation& conversation, LineReader& reader,
              const sampling::SamplingParams& params, const std::stop_token& stop) {
  bool was_interrupted = false;
  for (;;) {
    const LineReader::Line line = reader.next(stop);
    if (line.kind == LineReader::Line::Kind::kInterrupted) {
      if (was_interrupted && !line.had_text) return;
      if (!line.had_text) std::fprintf(stderr, "sluice: once more, or Ctrl-D, ends\n");
      was_interrupted = true;
      continue;
    }
    was_interrupted = false;
    if (line.kind == LineReader::Line::Kind::kEnd || line.text == "/exit") return;
    if (line.text == "/reset") {
      conversation.reset();
      continue;
    }
    if (line.text.empty()) continue;
    check_utf8(line.text, "the message");
    try {
      conversation.say(line.text, params, stop);
    } catch (const Error& error) {
      // A person can go on after a message that the template or the context refuses.
      if (!reader.is_terminal() || error.kind() != ErrorKind::kUser) throw;
      std::fprintf(stderr, "%ssluice: %s\n", message_start(), in_flags(error.what()).c_str());
    }
  }
}

void run(const ChatFlags& flags, const std::stop_token& stop) {
  const auto tokenizer = need_tokenizer(flags.engine);
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
  TokenProgress progress;
  progress.end();  // until something is asked
  const auto engine = open_engine(engine_flags, workload, stop, [&](EngineOptions& options) {
    progress.listens()(options);
    options.cache_prefixes = options.kv_recent_tokens == 0;
    limit_pass(options, 512);
  });
  if (!engine) return;
  engine->load(stop);
  serve::GenerationService service(*engine, *tokenizer, model_name(flags.engine.model), 4,
                                   serve::QueueOrder::kFirstCome);
  const auto reader = LineReader::open(flags.keeps_no_history ? std::nullopt : chat_history_path());
  if (reader->is_terminal())
    std::fprintf(stderr,
                 "sluice: Ctrl-C ends an answer, /reset begins anew, /exit or Ctrl-D leaves\n");
  Conversation conversation(flags, *tokenizer, *chat, service, *reader, progress);
  converse(conversation, *reader, params, stop);
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
  flags->filters.add_to(*parser);
  parser
      ->add_flag("--no-history", flags->keeps_no_history,
                 "keep what is typed only until the end (else also for the next time, in "
                 "~/.local/state/sluice/chat_history, for your eyes only)")
      ->group(group);
  parser->add_option("-s,--seed", flags->seed, "of the random numbers")->group(group);
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
