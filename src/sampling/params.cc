#include "src/sampling/params.h"

#include <fmt/format.h>

#include <cmath>

#include "src/base/error.h"
#include "src/sampling/philox.h"

namespace sluice::sampling {

namespace {

constexpr size_t kMostGuideBytes = size_t{1} << 20, kMostChoices = 10'000;

template <typename Value>
[[noreturn]] void refuse(const char* field, Value value, const std::string& range) {
  throw Error(ErrorKind::kUser, fmt::format("{} is {}", field, value),
              fmt::format("allowed is {}", range));
}

void check_range(const char* field, float value, float low, float high) {
  if (!(value >= low && value <= high)) refuse(field, value, fmt::format("{} to {}", low, high));
}

void check_stop(const SamplingParams& params) {
  if (params.stop.size() > kMaxStopStrings) {
    refuse("the number of stop strings", params.stop.size(),
           fmt::format("0 to {}", kMaxStopStrings));
  }
  for (size_t i = 0; i < params.stop.size(); ++i) {
    if (params.stop[i].empty() || params.stop[i].size() > kMaxStopBytes) {
      throw Error(ErrorKind::kUser, fmt::format("stop[{}] has {} bytes", i, params.stop[i].size()),
                  fmt::format("allowed is 1 to {}", kMaxStopBytes));
    }
  }
  for (const int32_t token : params.stop_token_ids) {
    if (token < 0) refuse("stop_token_ids: a token id", token, "0 or more");
  }
}

void check_guide(const GuideSpec& guide) {
  size_t bytes = guide.text.size();
  for (const std::string& choice : guide.choices) {
    if (choice.empty()) {
      throw Error(ErrorKind::kUser, "a choice of guided output is empty",
                  "give texts that can be told from nothing");
    }
    bytes += choice.size();
  }
  if (guide.kind == GuideKind::kChoice &&
      (guide.choices.empty() || guide.choices.size() > kMostChoices)) {
    refuse("the number of choices", guide.choices.size(), fmt::format("1 to {}", kMostChoices));
  }
  if (bytes > kMostGuideBytes) {
    refuse("the size of the guide", bytes, fmt::format("at most {} bytes", kMostGuideBytes));
  }
}

void check_dry(const SamplingParams& params) {
  check_range("dry_multiplier", params.dry_multiplier, 0, 100);
  check_range("dry_base", params.dry_base, 1, 100);
  if (params.dry_allowed_length < 0)
    refuse("dry_allowed_length", params.dry_allowed_length, "0 or more");
  if (params.dry_penalty_last_n < -1)
    refuse("dry_penalty_last_n", params.dry_penalty_last_n, "-1 (all tokens), 0 (off) or more");
  for (const size_t count : {params.dry_sequence_breakers.size(), params.dry_breaker_tokens.size()})
    if (count > kMaxDryBreakers)
      refuse("dry_sequence_breakers: their number", count, fmt::format("0 to {}", kMaxDryBreakers));
  for (const std::string& breaker : params.dry_sequence_breakers)
    if (breaker.empty() || breaker.size() > kMaxDryBreakerBytes)
      refuse("dry_sequence_breakers: the length of a text", breaker.size(),
             fmt::format("1 to {} bytes", kMaxDryBreakerBytes));
  for (const std::vector<int32_t>& breaker : params.dry_breaker_tokens) {
    if (breaker.empty() || breaker.size() > kMaxDryBreakerTokens)
      refuse("dry_sequence_breakers: the tokens of one", breaker.size(),
             fmt::format("1 to {}", kMaxDryBreakerTokens));
    for (const int32_t token : breaker)
      if (token < 0) refuse("dry_sequence_breakers: a token id", token, "0 or more");
  }
}

void check_mirostat(const SamplingParams& params) {
  if (params.mirostat < 0 || params.mirostat > 2)
    refuse("mirostat", params.mirostat, "0 (off), 1 or 2");
  check_range("mirostat_tau", params.mirostat_tau, 0, 100);
  check_range("mirostat_eta", params.mirostat_eta, 0, 10);
  if (params.mirostat != 0 && params.num_beams > 1)
    throw Error(ErrorKind::kUser, "mirostat is given with beam search",
                "beams are not drawn: use num_beams 1, or mirostat 0");
}

}  // namespace

bool is_for_host(const SamplingParams& params) noexcept {
  return params.temperature > 0 && (params.typical_p < 1 || params.top_n_sigma > 0 ||
                                    params.xtc_probability > 0 || params.mirostat != 0);
}

void validate(const SamplingParams& params) {
  check_range("temperature", params.temperature, 0, kMaxTemperature);
  if (params.top_k < 0) refuse("top_k", params.top_k, "0 (off) or more");
  check_range("top_p", params.top_p, 0, 1);
  check_range("min_p", params.min_p, 0, 1);
  check_range("typical_p", params.typical_p, 0, 1);
  check_range("top_n_sigma", params.top_n_sigma, 0, 100);
  check_range("xtc_probability", params.xtc_probability, 0, 1);
  check_range("xtc_threshold", params.xtc_threshold, 0, 1);
  check_mirostat(params);
  check_dry(params);
  if (!(params.repetition_penalty > 0 && params.repetition_penalty <= 100)) {
    refuse("repetition_penalty", params.repetition_penalty, "above 0, to 100");
  }
  check_range("presence_penalty", params.presence_penalty, -2, 2);
  check_range("frequency_penalty", params.frequency_penalty, -2, 2);
  if (params.max_tokens < 1) refuse("max_tokens", params.max_tokens, "1 or more");
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    refuse("min_tokens", params.min_tokens, fmt::format("0 to max_tokens ({})", params.max_tokens));
  }
  if (params.logprobs < -1 || params.logprobs > kMaxLogprobs) {
    refuse("logprobs", params.logprobs, fmt::format("-1 (none) to {}", kMaxLogprobs));
  }
  check_stop(params);
  if (params.num_beams < 1 || params.num_beams > kMaxBeams) {
    refuse("num_beams", params.num_beams, fmt::format("1 (off) to {}", kMaxBeams));
  }
  check_guide(params.guide);
  check_range("length_penalty", params.length_penalty, -100, 100);
  if (params.num_beams > 1 && !params.stop.empty()) {
    throw Error(ErrorKind::kUser, "stop strings are given with beam search",
                "beams end at tokens: use stop_token_ids, or num_beams 1");
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0) refuse("logit_bias: a token id", token, "0 or more");
    check_range("logit_bias: a bias", bias, -100, 100);
  }
}

uint64_t derive_seed(uint64_t job_seed, uint64_t sequence_index) noexcept {
  // Words 2 and 3 of the counter are 0 in uniform(); a mark there keeps seeds and draws apart.
  constexpr uint32_t kSeedMark = 0x5EED;
  const PhiloxCounter bits =
      philox4x32({static_cast<uint32_t>(sequence_index),
                  static_cast<uint32_t>(sequence_index >> 32), kSeedMark, 0},
                 {static_cast<uint32_t>(job_seed), static_cast<uint32_t>(job_seed >> 32)});
  return (static_cast<uint64_t>(bits[0]) << 32) | bits[1];
}

}  // namespace sluice::sampling
