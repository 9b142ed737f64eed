#include "tools/sampling_flags.h"

#include "tools/arguments.h"

namespace sluice::tools {

void SamplingFlags::add_to(CLI::App& parser, int max_tokens) {
  const char* group = "Sampling";
  params.temperature = 0;
  params.max_tokens = max_tokens;
  parser
      .add_option("-n,--max-tokens,--n-predict,--max-new-tokens,--gen-len", params.max_tokens,
                  "new tokens, at most")
      ->capture_default_str()
      ->group(group);
  parser.add_option("--temperature,--temp", params.temperature, "0: greedy")
      ->capture_default_str()
      ->group(group);
  parser.add_option("--top-k", params.top_k, "keep the k likeliest; 0: all")->group(group);
  parser.add_option("--top-p", params.top_p, "keep the likeliest that add up to p")->group(group);
  parser.add_option("--min-p", params.min_p, "keep those above min-p times the likeliest")
      ->group(group);
  parser.add_option("--repetition-penalty,--repeat-penalty", params.repetition_penalty, "1: off")
      ->group(group);
  parser.add_option("--presence-penalty", params.presence_penalty, "-2..2")->group(group);
  parser.add_option("--frequency-penalty", params.frequency_penalty, "-2..2")->group(group);
  seed_option_ =
      parser.add_option("-s,--seed", seed, "of the random numbers (default 0)")->group(group);
  parser.add_option("--stop", params.stop, "text that ends the output (may be given again)")
      ->expected(1)
      ->take_all()
      ->group(group);
  parser.add_option("--min-tokens", params.min_tokens, "no end before so many")->group(group);
  parser
      .add_option("--logprobs", params.logprobs,
                  "log-probabilities of the chosen token and the N likeliest")
      ->group(group);
  parser.add_option("--num-beams,--beams", params.num_beams, "beam search with so many; 1: off")
      ->group(group);
  parser
      .add_option("--length-penalty", params.length_penalty,
                  "beams: scores are divided by length to this power")
      ->group(group);
  parser
      .add_option("--early-stopping", early_stopping,
                  "beams: true ends at the first num-beams that end, never waits for all that may "
                  "be better")
      ->capture_default_str()
      ->check(CLI::IsMember({"false", "true", "never"}))
      ->group(group);
  const char* guided = "Guided output (one of them)";
  auto* of_schema =
      parser.add_option("--json-schema", schema, "JSON that this schema allows")->group(guided);
  auto* of_file = parser.add_option("--json-schema-file", schema_file, "the schema in a file")
                      ->excludes(of_schema)
                      ->group(guided);
  auto* of_regex =
      parser.add_option("--regex", regex, "text that this regular expression describes")
          ->excludes(of_schema)
          ->excludes(of_file)
          ->group(guided);
  auto* of_choice =
      parser.add_option("--choice", choices, "one of these texts (given again for each)")
          ->expected(1)
          ->take_all()
          ->excludes(of_schema)
          ->excludes(of_file)
          ->excludes(of_regex)
          ->group(guided);
  parser.add_flag("--json-object", is_json, "any JSON object")
      ->excludes(of_schema)
      ->excludes(of_file)
      ->excludes(of_regex)
      ->excludes(of_choice)
      ->group(guided);
  parser.add_flag("--ignore-eos", params.ignore_eos, "go on past the end-of-text token")
      ->group(group);
}

sampling::SamplingParams SamplingFlags::checked() const {
  sampling::SamplingParams out = params;
  out.early_stopping = early_stopping == "true"    ? sampling::EarlyStopping::kAtOnce
                       : early_stopping == "never" ? sampling::EarlyStopping::kNever
                                                   : sampling::EarlyStopping::kHeuristic;
  using sampling::GuideKind;
  if (!schema_file.empty())
    out.guide = {GuideKind::kJsonSchema, read_text(schema_file, kMostSettingsBytes), {}};
  else if (!schema.empty())
    out.guide = {GuideKind::kJsonSchema, schema, {}};
  else if (!regex.empty())
    out.guide = {GuideKind::kRegex, regex, {}};
  else if (!choices.empty())
    out.guide = {GuideKind::kChoice, {}, choices};
  else if (is_json)
    out.guide.kind = GuideKind::kJson;
  out.seed = seed;
  out.has_seed = seed_option_ && seed_option_->count() > 0;
  sampling::validate(out);
  return out;
}

}  // namespace sluice::tools
