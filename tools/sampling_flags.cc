#include "tools/sampling_flags.h"

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
  parser.add_flag("--ignore-eos", params.ignore_eos, "go on past the end-of-text token")
      ->group(group);
}

sampling::SamplingParams SamplingFlags::checked() const {
  sampling::SamplingParams out = params;
  out.seed = seed;
  out.has_seed = seed_option_ && seed_option_->count() > 0;
  sampling::validate(out);
  return out;
}

}  // namespace sluice::tools
