// sluice logits: token ids in, .npy of every position's logits out; for checking numbers against
// other engines.
#include <cstdio>

#include "src/app/generate_text.h"
#include "src/base/error.h"
#include "src/jobs/npy_writer.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/progress.h"

namespace sluice::tools {

namespace {
struct LogitsFlags {
  EngineFlags engine;
  std::string prompt, prompt_ids, output;
};

class NpySink final : public GenerationSink {
 public:
  explicit NpySink(jobs::NpyWriter& writer) : writer_(writer) {}
  bool on_token(uint64_t, const sampling::Choice&) override { return false; }
  void on_finish(uint64_t, FinishReason) override {}
  void on_refused(uint64_t, const std::string& message) override {
    throw Error(ErrorKind::kUser, message);
  }
  void on_logits(uint64_t, int64_t, std::span<const float> logits) override {
    writer_.append(logits);
  }

 private:
  jobs::NpyWriter& writer_;
};

class OneSource final : public RequestSource {
 public:
  explicit OneSource(GenerationRequest request) : request_(std::move(request)) {}
  std::optional<GenerationRequest> next() override { return std::exchange(request_, std::nullopt); }

 private:
  std::optional<GenerationRequest> request_;
};

void run(const LogitsFlags& flags, std::stop_token stop) {
  if (flags.prompt_ids.empty() && flags.prompt.empty())
    throw Error(ErrorKind::kUser, "no prompt", "give -p TEXT or --prompt-ids 1,2,3");
  check_utf8(flags.prompt, "the prompt");
  GenerationRequest request;
  request.score_prompt = true;
  request.prompt = flags.prompt_ids.empty()
                       ? need_tokenizer(flags.engine)->encode(flags.prompt, text::AddSpecial::kYes)
                       : parse_ids(flags.prompt_ids, "--prompt-ids");
  policy::Workload workload;
  app::add_to_workload(workload, static_cast<int64_t>(request.prompt.size()), 0);
  TokenProgress progress;
  const auto engine = open_engine(flags.engine, workload, stop, progress.listens());
  if (!engine) return;
  jobs::NpyWriter writer(flags.output, engine->model().shape().vocab_size);
  NpySink sink(writer);
  OneSource source(std::move(request));
  engine->generate(source, sink, stop);
  progress.end();
  writer.finish();
  std::fprintf(stderr, "sluice: [%lld, %lld] f32 to %s (%s)\n",
               static_cast<long long>(writer.rows()),
               static_cast<long long>(engine->model().shape().vocab_size), flags.output.c_str(),
               engine->compute_name().c_str());
}
}  // namespace

Command add_logits(CLI::App& program) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* parser =
      program.add_subcommand("logits", "logits of every position of a prompt as .npy");
  flags->engine.add_to(*parser);
  parser->add_option("--prompt-ids", flags->prompt_ids, "token ids as 1,2,3");
  parser->add_option("-p,--prompt", flags->prompt, "the prompt as text");
  parser->add_option("-o,--output", flags->output, "the .npy file, [tokens, vocab_size] f32")
      ->required();
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
