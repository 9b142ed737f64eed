// sluice batch: a file of requests in, a file of answers out, safe against crashes.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/app/generate_text.h"
#include "src/app/report.h"
#include "src/base/error.h"
#include "src/guide/guide_maker.h"
#include "src/jobs/job.h"
#include "src/serve/job_line.h"
#include "tools/arguments.h"
#include "tools/batch_files.h"
#include "tools/chat_options.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/sampling_flags.h"

namespace sluice::tools {

namespace {
struct BatchFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  ChatOptions chat;
  std::string input;
  std::string output;
};

// A line as the engine takes it, and how its answer is to be read.
struct Encoded {
  GenerationRequest request;
  chat::MessageForm form;
  bool keeps_special = false;
};

// What turns lines into token ids.
struct Encoder {
  const text::Tokenizer* tokenizer;  ///< null: ids only
  serve::ChatStyle style;
  guide::GuideMaker* guides;  ///< null without a tokenizer
  std::string model_name;     ///< what lines may call the model

  /// Errors: kUser, kFile from the prompt or the guide.
  Encoded encode(const jobs::Request& request) const {
    Encoded out;
    GenerationRequest& generation = out.request;
    generation.id = static_cast<uint64_t>(request.line_number);
    serve::LinePrompt prompt = serve::line_prompt(request, tokenizer, style);
    generation.params = std::move(prompt.params);
    if (!generation.params.has_seed)
      generation.params.seed = sampling::derive_seed(generation.params.seed, generation.id);
    if (guides) generation.guide = guides->make(generation.params.guide);
    generation.prompt = std::move(prompt.ids);
    out.form = std::move(prompt.form);
    out.keeps_special = prompt.keeps_special;
    return out;
  }
};

// Reads the input once beforehand, to know what the memory has to hold.
struct Survey {
  policy::Workload workload;
  int64_t requests = 0;
};

Survey survey(const BatchFlags& flags, const BatchInput& from, const jobs::ResultsFile* results,
              const Encoder& encoder, int32_t vocab_size, int64_t longest) {
  std::ifstream input(from.path());
  jobs::JobReader reader(input, from.name(), flags.sampling.checked(), results, vocab_size);
  Survey out;
  while (auto line = reader.next()) {
    const auto* request = std::get_if<jobs::Request>(&*line);
    if (!request || !serve::other_model(*request, encoder.model_name).empty()) continue;
    ++out.requests;
    GenerationRequest generation;
    try {
      generation = encoder.encode(*request).request;
    } catch (const Error&) {
      continue;  // becomes an error record when its turn comes
    }
    const auto length = static_cast<int64_t>(generation.prompt.size());
    if (length < longest)
      app::add_to_workload(out.workload, length,
                           std::min<int64_t>(generation.params.max_tokens, longest - length),
                           generation.params.num_beams);
  }
  return out;
}

// Lines of the job as the engine has room for them; what is no request becomes an error record on
// the way.
class JobSource final : public RequestSource {
 public:
  JobSource(jobs::JobReader& reader, jobs::ResultsFile& results, app::TextSink& sink,
            const Encoder& encoder)
      : reader_(reader), results_(results), sink_(sink), encoder_(encoder) {}

  std::optional<GenerationRequest> next() override {
    while (auto line = reader_.next()) {
      if (const auto* error = std::get_if<jobs::RequestError>(&*line)) {
        results_.write_error(*error);
        on_failure();
        continue;
      }
      auto& request = std::get<jobs::Request>(*line);
      if (const auto why = serve::other_model(request, encoder_.model_name); !why.empty()) {
        results_.write_error(request, "model_not_found", why);
        on_failure();
        continue;
      }
      if (request.prompt_ids.empty() && !encoder_.tokenizer) {
        results_.write_error(request, "no_tokenizer",
                             "the model has no tokenizer; give prompts as lists of token ids");
        on_failure();
        continue;
      }
      Encoded encoded;
      try {
        encoded = encoder_.encode(request);
      } catch (const Error& error) {
        results_.write_error(request, request.is_chat ? "chat_template" : "guide", error.what());
        on_failure();
        continue;
      }
      sink_.expect(encoded.request, encoded.keeps_special);
      running.emplace(encoded.request.id, Running{std::move(request), std::move(encoded.form)});
      return std::move(encoded.request);
    }
    return std::nullopt;
  }

  struct Running {
    jobs::Request request;
    chat::MessageForm form;
  };
  std::map<uint64_t, Running> running;
  std::function<void()> on_failure;  ///< after each error record

 private:
  jobs::JobReader& reader_;
  jobs::ResultsFile& results_;
  app::TextSink& sink_;
  const Encoder& encoder_;
};

jobs::Completion to_completion(const app::TextResult& result, const text::Tokenizer* tokenizer) {
  jobs::Completion completion;
  completion.text = tokenizer ? result.text : fmt::format("{}", fmt::join(result.token_ids, ","));
  completion.finish_reason = result.finish_reason;
  completion.prompt_tokens = static_cast<int64_t>(result.prompt_ids.size());
  completion.completion_tokens = static_cast<int64_t>(result.token_ids.size());
  if (!result.choices.empty()) completion.logprobs = serve::token_texts(result.choices, tokenizer);
  return completion;
}

// What becomes of the requests that run: answers and error records, progress, the count.
class Account {
 public:
  Account(jobs::ResultsFile& results, BatchOutput& to, const text::Tokenizer* tokenizer,
          int64_t requests)
      : results_(results), to_(to), tokenizer_(tokenizer), requests_(requests) {}
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  void keep(JobSource& source, app::TextSink& sink) {
    source.on_failure = [this] {
      ++failed_;
      to_.forward();
    };
    sink.on_result = [this, &source](app::TextResult&& result) { take(source, result); };
    sink.on_pass_report = [this](const PassReport& report) { show(report); };
  }

  nlohmann::ordered_json json(int64_t skipped) const {
    return {{"requests", answered_ + failed_},
            {"answered", answered_},
            {"failed", failed_},
            {"skipped", skipped}};
  }
  void print(int64_t skipped) const {
    std::fprintf(stderr, "  %lld requests answered, %lld error records, %lld already there: %s\n",
                 static_cast<long long>(answered_), static_cast<long long>(failed_),
                 static_cast<long long>(skipped), to_.name().c_str());
  }

 private:
  void take(JobSource& source, const app::TextResult& result) {
    const auto it = source.running.find(result.id);
    const JobSource::Running& one = it->second;
    if (!result.refused.empty()) {
      results_.write_error(one.request, "refused", result.refused);
      ++failed_;
    } else if (result.finish_reason != "cancelled") {
      jobs::Completion completion = to_completion(result, tokenizer_);
      serve::read_answer(one.request, one.form, completion);
      results_.write(one.request, completion);
      ++answered_;
    }
    source.running.erase(it);
    ++done_;
    to_.forward();
  }

  void show(const PassReport& report) {
    tokens_ += report.decode_tokens;
    seconds_ += report.seconds;
    const double rate = seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0;
    progress_.update(done_, requests_,
                     fmt::format("{}/{} requests, {} running", done_, requests_, report.running),
                     fmt::format("{:.2f} tokens/s, pass {}", rate, report.pass));
  }

  jobs::ResultsFile& results_;
  BatchOutput& to_;
  const text::Tokenizer* tokenizer_;
  int64_t requests_;
  Progress progress_{"batch"};
  int64_t answered_ = 0, failed_ = 0;
  int64_t done_ = 0;  // of the requests that run
  int64_t tokens_ = 0;
  double seconds_ = 0;
};

void fail_for_errors(const jobs::ResultsFile& results, const std::string& output) {
  const int64_t errors = results.records() - results.answers();
  if (errors > 0)
    throw Error(ErrorKind::kUser,
                fmt::format("{} of {} lines have error records instead of answers", errors,
                            results.records()),
                fmt::format("they are in {}, each with its reason", output));
}

void run(const BatchFlags& flags, std::stop_token stop) {
  const auto opened = app::open_model(flags.engine.model);
  const BoundModel& model = *opened;
  const auto tokenizer = find_tokenizer(flags.engine.model);
  const auto chat = tokenizer ? flags.chat.load_template(flags.engine.model, *tokenizer) : nullptr;
  std::optional<guide::GuideMaker> guides;
  if (tokenizer) guides.emplace(*tokenizer, model.eos_token_ids());
  const Encoder encoder{tokenizer.get(), flags.chat.style(chat.get()), guides ? &*guides : nullptr,
                        model_name(flags.engine.model)};
  const auto vocab_size = static_cast<int32_t>(model.shape().vocab_size);
  const BatchInput from(flags.input);
  if (flags.output == "-" && flags.engine.json)
    throw Error(ErrorKind::kUser, "--json and -o - both write to standard output",
                "leave one of them out");
  const std::string& name = encoder.model_name;
  const std::string config = answers_key(name, model, chat.get(), flags.chat);
  std::optional<BatchOutput> to;
  std::optional<jobs::ResultsFile> results;
  if (!flags.engine.dry_run || is_there(flags.output)) {
    to.emplace(flags.output);
    results.emplace(to->path(), config, name);
  }
  if (results && results->resumed_records() > 0)
    std::fprintf(stderr, "sluice: %s holds %lld answers; going on after them\n",
                 flags.output.c_str(), static_cast<long long>(results->resumed_records()));
  const int64_t longest =
      flags.engine.context > 0 ? flags.engine.context : model.shape().max_positions;
  const Survey found =
      survey(flags, from, results ? &*results : nullptr, encoder, vocab_size, longest);
  std::fprintf(stderr, "sluice: %lld requests to run\n", static_cast<long long>(found.requests));

  const auto engine = open_engine(flags.engine, opened, found.workload, stop);
  if (!engine) return;
  std::ifstream input(from.path());
  jobs::JobReader reader(input, from.name(), flags.sampling.checked(), &*results, vocab_size);
  app::TextSink sink(tokenizer.get(), model.eos_token_ids());
  JobSource source(reader, *results, sink, encoder);
  Account account(*results, *to, tokenizer.get(), found.requests);
  account.keep(source, sink);
  if (found.requests > 0)
    engine->generate(source, sink, stop);
  else
    while (source.next()) continue;  // error records only: no weight is read for them
  finish_run(flags.engine, engine);
  if (flags.engine.json) {
    nlohmann::ordered_json json = account.json(reader.skipped());
    json["output"] = flags.output;
    json["policy"] = nlohmann::ordered_json::parse(policy::policy_to_json(engine->plan().policy));
    json["stats"] = app::stats_json(*engine, engine.found.prediction);
    print_json(json);
  } else {
    account.print(reader.skipped());
  }
  fail_for_errors(*results, to->name());
}
}  // namespace

Command add_batch(CLI::App& program) {
  auto flags = std::make_shared<BatchFlags>();
  CLI::App* parser = program.add_subcommand(
      "batch", "answer a JSONL file of requests; started again, it continues");
  flags->engine.add_to(*parser);
  flags->sampling.add_to(*parser, 128);
  flags->chat.add_to(*parser, "Chat", ChatOptions::Has::kTemplateOnly);
  flags->chat.add_reading_to(*parser, "Chat");
  parser
      ->add_option("input,-i,--input", flags->input,
                   "OpenAI batch lines or {\"prompt\": ...} lines; - for standard input")
      ->required();
  parser
      ->add_option("-o,--output", flags->output,
                   "answers, one line each, in the order they end (custom_id says whose), synced; "
                   "- for standard output")
      ->required();
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
