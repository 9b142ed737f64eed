#include "src/sampling/logit_changes.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace sluice::sampling {

LogitChange& LogitChanges::of(int32_t token) {
  int32_t& place = places_[static_cast<size_t>(token)];
  if (place == 0) {
    changes_.push_back({.token = token});
    place = static_cast<int32_t>(changes_.size());
  }
  return changes_[static_cast<size_t>(place) - 1];
}

std::span<const LogitChange> LogitChanges::find(const SamplingParams& params,
                                                std::span<const int32_t> prompt,
                                                std::span<const int32_t> output,
                                                std::span<const int32_t> eos_token_ids,
                                                int64_t vocab_size, const DryBreakers* breakers) {
  changes_.clear();
  const auto is_token = [&](int32_t token) { return token >= 0 && token < vocab_size; };
  for (const auto& [token, bias] : params.logit_bias)
    if (!is_token(token))
      throw Error(ErrorKind::kUser, fmt::format("logit_bias names token {}", token),
                  fmt::format("the model's vocabulary has 0 to {}", vocab_size - 1));
  if (places_.size() < static_cast<size_t>(vocab_size))
    places_.resize(static_cast<size_t>(vocab_size));
  const auto each = [&](std::span<const int32_t> tokens, const auto& change) {
    for (const int32_t token : tokens)
      if (is_token(token)) change(of(token));
  };

  for (const auto& [token, bias] : params.logit_bias) of(token).bias += bias;
  if (params.repetition_penalty != 1.0F) {
    const auto repeat = [&](LogitChange& change) { change.repetition = params.repetition_penalty; };
    each(prompt, repeat);
    each(output, repeat);
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    each(output, [](LogitChange& change) { change.penalty += 1; });  // counted first
    for (LogitChange& change : changes_)
      if (change.penalty > 0)
        change.penalty = params.frequency_penalty * change.penalty + params.presence_penalty;
  }
  if (params.dry_multiplier > 0 && params.dry_penalty_last_n != 0) {
    const DryBreakers none;
    for (const Repeat& repeat : repeats_.find(prompt, output, params.dry_penalty_last_n,
                                              breakers ? *breakers : none, vocab_size)) {
      const float penalty = dry_penalty(params.dry_multiplier, params.dry_base,
                                        params.dry_allowed_length, repeat.length);
      if (penalty > 0) of(repeat.token).penalty += penalty;
    }
  }
  if (std::ssize(output) < params.min_tokens) {
    const auto ban = [](LogitChange& change) { change.is_banned = true; };
    each(eos_token_ids, ban);
    each(params.stop_token_ids, ban);
  }
  for (const LogitChange& change : changes_) places_[static_cast<size_t>(change.token)] = 0;
  return changes_;
}

int64_t LogitChanges::bytes() const noexcept {
  return repeats_.bytes() + static_cast<int64_t>(changes_.capacity() * sizeof(LogitChange) +
                                                 places_.capacity() * sizeof(int32_t));
}

}  // namespace sluice::sampling
