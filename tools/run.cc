// sluice run: text for one or more prompts, as it comes.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "src/app/generate_text.h"
#include "src/app/report.h"
#include "src/base/error.h"
#include "src/guide/guide_maker.h"
#include "src/text/utf8.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/sampling_flags.h"

namespace sluice::tools {

namespace {
struct RunFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::vector<std::string> prompts;
  std::vector<std::string> prompt_files;
  std::vector<std::string> prompt_ids;
  bool no_special = false;
};

std::vector<int32_t> encode_prompt(const text::Tokenizer& tokenizer, const std::string& prompt,
                                   bool add_special) {
  check_utf8(prompt, "the prompt");
  return tokenizer.encode(prompt, add_special ? text::AddSpecial::kYes : text::AddSpecial::kNo);
}

std::vector<std::vector<int32_t>> collect_prompts(const RunFlags& flags,
                                                  const text::Tokenizer* tokenizer) {
  std::vector<std::vector<int32_t>> out;
  for (const std::string& ids : flags.prompt_ids) out.push_back(parse_ids(ids, "--prompt-ids"));
  std::vector<std::string> texts = flags.prompts;
  for (const std::string& path : flags.prompt_files)
    texts.push_back(read_text(path, kMostTextBytes));
  if (texts.empty() && out.empty())
    throw Error(ErrorKind::kUser, "no prompt",
                "give -p TEXT, --prompt-file FILE (- for standard input) or --prompt-ids 1,2,3");
  if (!texts.empty() && !tokenizer) {
    BoundModel::open(flags.engine.model)
        .require_runnable();  // a missing or damaged model is the better message
    throw Error(ErrorKind::kFile, fmt::format("{}: the model has no tokenizer", flags.engine.model),
                "copy its tokenizer files there, or give token ids with --prompt-ids");
  }
  for (const std::string& prompt : texts)
    out.push_back(encode_prompt(*tokenizer, prompt, !flags.no_special));
  return out;
}

nlohmann::ordered_json result_json(const app::TextResult& result,
                                   const text::Tokenizer* tokenizer) {
  nlohmann::ordered_json json{{"text", result.text},
                              {"token_ids", result.token_ids},
                              {"prompt_token_ids", result.prompt_ids},
                              {"finish_reason", result.finish_reason}};
  if (!result.refused.empty()) json["error"] = result.refused;
  for (const app::TextHypothesis& beam : result.beams)
    json["beams"].push_back({{"text", beam.text},
                             {"token_ids", beam.token_ids},
                             {"score", beam.score},
                             {"finish_reason", beam.finish_reason}});
  if (!result.choices.empty()) {
    const auto name = [&](int32_t id) {
      return tokenizer ? text::mend_utf8(tokenizer->token_bytes(id)) : std::to_string(id);
    };
    auto list = nlohmann::ordered_json::array();
    for (const sampling::Choice& choice : result.choices) {
      auto top = nlohmann::ordered_json::array();
      for (const auto& other : choice.top)
        top.push_back(
            {{"token", name(other.token)}, {"id", other.token}, {"logprob", other.logprob}});
      list.push_back({{"token", name(choice.token)},
                      {"id", choice.token},
                      {"logprob", choice.logprob},
                      {"top", top}});
    }
    json["logprobs"] = list;
  }
  return json;
}

void print_results(const RunFlags& flags, const OpenedEngine& engine,
                   const std::vector<app::TextResult>& results, const text::Tokenizer* tokenizer) {
  nlohmann::ordered_json json = result_json(results.front(), tokenizer);
  if (results.size() > 1) {
    json["results"] = nlohmann::ordered_json::array();
    for (const app::TextResult& result : results)
      json["results"].push_back(result_json(result, tokenizer));
  }
  json["model"] = flags.engine.model;
  json["policy"] = nlohmann::ordered_json::parse(policy::policy_to_json(engine->plan().policy));
  json["stats"] = app::stats_json(*engine, engine.found.prediction);
  print_json(json);
}

void run(const RunFlags& flags, std::stop_token stop) {
  const auto tokenizer = find_tokenizer(flags.engine);
  sampling::SamplingParams params = flags.sampling.checked();
  const auto prompts = collect_prompts(flags, tokenizer.get());
  int64_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, std::ssize(prompt));
  const auto model = open_model(flags.engine, longest + params.max_tokens);
  std::shared_ptr<guide::Guide> guide;
  if (tokenizer) {
    guide::GuideMaker guides(*tokenizer, model->eos_token_ids());
    guide = guides.make(params.guide);
    guides.find_breakers(params);
  }
  std::deque<GenerationRequest> requests;
  policy::Workload workload;
  int64_t prompt_tokens = 0;
  for (const auto& prompt : prompts) {
    prompt_tokens += static_cast<int64_t>(prompt.size());
    GenerationRequest& request = requests.emplace_back();
    request.id = requests.size() - 1;
    request.prompt = prompt;
    request.params = params;
    request.guide = guide;
    if (!params.has_seed) request.params.seed = sampling::derive_seed(params.seed, request.id);
    app::add_to_workload(workload, static_cast<int64_t>(prompt.size()), params.max_tokens,
                         params.num_beams);
  }
  const bool is_streaming = prompts.size() == 1 && !flags.engine.json && tokenizer;
  // Text that is seen as it comes says itself how far it is.
  TokenProgress progress("", prompt_tokens,
                         is_streaming ? 0 : params.max_tokens * std::ssize(prompts));
  const auto engine = open_engine(flags.engine, model, workload, stop, progress.listens());
  if (!engine) return;
  app::TextSink sink(tokenizer.get());
  std::vector<app::TextResult> results(prompts.size());
  if (is_streaming)
    sink.on_text = [&progress](uint64_t, const std::string& piece) {
      progress.end();
      write_text(piece);
    };
  sink.on_result = [&](app::TextResult&& result) {
    if (!is_streaming && !flags.engine.json && result.refused.empty()) {
      if (prompts.size() > 1)
        std::printf("--- prompt %llu (%s)\n", static_cast<unsigned long long>(result.id + 1),
                    result.finish_reason.c_str());
      const std::string line =
          (tokenizer ? result.text : fmt::format("{}", fmt::join(result.token_ids, ","))) + "\n";
      write_text(line);
    }
    results[result.id] = std::move(result);
  };
  app::PromptSource source(std::move(requests), sink);
  engine->generate(source, sink, stop);
  progress.end();
  if (is_streaming && results.front().refused.empty()) write_text("\n");
  if (flags.engine.json) print_results(flags, engine, results, tokenizer.get());
  for (const app::TextResult& result : results)
    if (!result.refused.empty())
      throw Error(ErrorKind::kUser, fmt::format("prompt {}: {}", result.id + 1, result.refused));
  finish_run(flags.engine, engine);
}
}  // namespace

Command add_run(CLI::App& program) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* parser = program.add_subcommand("run", "generate text for one or more prompts");
  flags->engine.add_to(*parser);
  flags->engine.add_recording_to(*parser);
  flags->sampling.add_to(*parser, 128);
  parser->add_option("-p,--prompt", flags->prompts, "the prompt (may be given again)")
      ->expected(1)
      ->take_all();
  parser
      ->add_option("-f,--prompt-file", flags->prompt_files,
                   "a file with the prompt; - for standard input")
      ->expected(1)
      ->take_all();
  parser->add_option("--prompt-ids", flags->prompt_ids, "token ids as 1,2,3 (needs no tokenizer)")
      ->expected(1)
      ->take_all();
  parser->add_flag("--no-special", flags->no_special,
                   "leave out what the tokenizer adds (begin-of-text)");
  return {parser, [flags](std::stop_token stop) { run(*flags, stop); }};
}

}  // namespace sluice::tools
