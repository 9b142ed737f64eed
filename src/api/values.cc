#include "src/api/values.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace sluice {

WeightFormat weights_of(const std::string& weights) {
  const auto format = parse_weight_format(weights);
  if (!format || format->is_only_read())
    throw Error(ErrorKind::kUser, fmt::format("`weights` is \"{}\"", weights),
                "write f32, f16, bf16, int8, int4, nf4, fp8, mxfp4, q4_0, iq4 or q2_k to q6_k");
  return *format;
}

std::optional<KvFormat> kv_dtype_of(const std::string& kv_dtype) {
  const auto format = parse_kv_format(kv_dtype);
  if (!kv_dtype.empty() && !format)
    throw Error(ErrorKind::kUser, fmt::format("`kv_dtype` is \"{}\"", kv_dtype),
                "write f32, f16, bf16, int8, k8v4 or int4");
  return format;
}

sampling::SamplingParams params_of(const Sampling& sampling) {
  sampling::SamplingParams out;
  out.temperature = sampling.temperature;
  out.top_k = sampling.top_k;
  out.top_p = sampling.top_p;
  out.min_p = sampling.min_p;
  out.typical_p = sampling.typical_p;
  out.top_n_sigma = sampling.top_n_sigma;
  out.xtc_probability = sampling.xtc_probability;
  out.xtc_threshold = sampling.xtc_threshold;
  out.mirostat = sampling.mirostat;
  out.mirostat_tau = sampling.mirostat_tau;
  out.mirostat_eta = sampling.mirostat_eta;
  out.dry_multiplier = sampling.dry_multiplier;
  out.dry_base = sampling.dry_base;
  out.dry_allowed_length = sampling.dry_allowed_length;
  out.dry_penalty_last_n = sampling.dry_penalty_last_n;
  out.dry_sequence_breakers = sampling.dry_sequence_breakers;
  out.dry_breaker_tokens = sampling.dry_breaker_tokens;
  out.repetition_penalty = sampling.repetition_penalty;
  out.presence_penalty = sampling.presence_penalty;
  out.frequency_penalty = sampling.frequency_penalty;
  out.seed = sampling.seed;
  out.has_seed = true;
  out.max_tokens = sampling.max_tokens;
  out.min_tokens = sampling.min_tokens;
  out.ignore_eos = sampling.ignores_end;
  out.stop_token_ids = sampling.stop_tokens;
  out.logprobs = sampling.logprobs;
  out.logit_bias = sampling.logit_bias;
  sampling::validate(out);
  return out;
}

Choice choice_of(const sampling::Choice& choice) {
  Choice out{choice.token, choice.logprob, {}};
  for (const sampling::TokenLogprob& other : choice.top)
    out.top.push_back({other.token, other.logprob});
  return out;
}

}  // namespace sluice
