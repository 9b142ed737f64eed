#include "tools/sampling_flags.h"

#include "tools/arguments.h"

namespace sluice::tools {

void FilterFlags::add_to(CLI::App& parser) {
  const char* group = "Sampling, beyond";
  const auto add = [&](const char* names, auto& field, const char* what) {
    parser.add_option(names, field, what)->group(group);
  };
  add("--typical-p,--typical", typical_p,
      "keep the tokens of the most typical information that add up to p; 1: off");
  add("--top-n-sigma,--top-nsigma", top_n_sigma,
      "keep what is less than n standard deviations below the likeliest's logit; 0: off");
  add("--xtc-probability", xtc_probability,
      "how often the likeliest are left out (XTC), all but the least likely of them; 0: off");
  add("--xtc-threshold", xtc_threshold, "XTC: of those that are as probable (default 0.1)");
  add("--mirostat", mirostat,
      "1 or 2: Mirostat of that version, in the place of all filters; 0: off");
  add("--mirostat-tau,--mirostat-ent", mirostat_tau, "bits of surprise it aims at (default 5)");
  add("--mirostat-eta,--mirostat-lr", mirostat_eta, "how fast it gets there (default 0.1)");
  add("--dry-multiplier", dry_multiplier,
      "DRY: what would go on with a repetition costs multiplier * base^(length - allowed); 0: off");
  add("--dry-base", dry_base, "(default 1.75)");
  add("--dry-allowed-length", dry_allowed_length,
      "tokens: shorter repetitions cost nothing (default 2)");
  add("--dry-penalty-last-n", dry_penalty_last_n,
      "tokens that are looked through; -1: prompt and output (default)");
  parser
      .add_option("--dry-sequence-breaker", dry_sequence_breakers,
                  "text over which no repetition goes, in the place of the four that are there "
                  "(may be given again)")
      ->expected(1)
      ->take_all()
      ->group(group);
}

void FilterFlags::apply(sampling::SamplingParams& params) const {
  const auto set = [](const auto& given, auto& field) {
    if (given) field = *given;
  };
  set(typical_p, params.typical_p);
  set(top_n_sigma, params.top_n_sigma);
  set(xtc_probability, params.xtc_probability);
  set(xtc_threshold, params.xtc_threshold);
  set(mirostat, params.mirostat);
  set(mirostat_tau, params.mirostat_tau);
  set(mirostat_eta, params.mirostat_eta);
  set(dry_multiplier, params.dry_multiplier);
  set(dry_base, params.dry_base);
  set(dry_allowed_length, params.dry_allowed_length);
  set(dry_penalty_last_n, params.dry_penalty_last_n);
  set(dry_sequence_breakers, params.dry_sequence_breakers);
}

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
  filters.add_to(parser);
  parser.add_flag("--ignore-eos", params.ignore_eos, "go on past the end-of-text token")
      ->group(group);
  add_guides_to(parser);
}

void SamplingFlags::add_guides_to(CLI::App& parser) {
  const std::vector<CLI::Option*> ways{
      parser.add_option("--json-schema", schema, "JSON that this schema allows"),
      parser.add_option("--json-schema-file", schema_file, "the schema in a file"),
      parser.add_option("--regex", regex, "text that this regular expression describes"),
      parser.add_option("--grammar", grammar,
                        "text that this grammar describes (llama.cpp's GBNF)"),
      parser.add_option("--grammar-file", grammar_file, "the grammar in a file"),
      parser.add_option("--choice", choices, "one of these texts (given again for each)")
          ->expected(1)
          ->take_all(),
      parser.add_flag("--json-object", is_json, "any JSON object")};
  for (size_t way = 0; way < ways.size(); ++way) {
    ways[way]->group("Guided output (one of them)");
    for (size_t other = 0; other < way; ++other) ways[way]->excludes(ways[other]);
  }
}

sampling::SamplingParams SamplingFlags::checked() const {
  sampling::SamplingParams out = params;
  filters.apply(out);
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
  else if (!grammar_file.empty())
    out.guide = {GuideKind::kGrammar, read_text(grammar_file, kMostSettingsBytes), {}};
  else if (!grammar.empty())
    out.guide = {GuideKind::kGrammar, grammar, {}};
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
