#include "src/sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/error.h"
#include "src/sampling/philox.h"
#include "src/sampling/row.h"

namespace sluice::sampling {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

constexpr const char* kDamagedMend =
    "its weights are damaged or overflowed when they were saved: download the model again (sluice "
    "inspect STORE --verify finds what has happened to a packed store)";

[[noreturn]] void refuse_logits(std::span<const float> logits, size_t position) {
  for (size_t token = 0; token < logits.size(); ++token) {
    if (logits[token] <= std::numeric_limits<float>::max()) continue;
    throw Error(
        ErrorKind::kFile,
        fmt::format("the model produced {} at token {} of {} (output position {})",
                    std::isnan(logits[token]) ? "NaN" : "+inf", token, logits.size(), position),
        kDamagedMend);
  }
  throw Error(
      ErrorKind::kFile,
      fmt::format("the model gave no token a finite logit: all {} are -inf (output position {})",
                  logits.size(), position),
      kDamagedMend);
}

// The largest logit, checked: no NaN, no +inf, not all -inf.
float checked_max(std::span<const float> logits, size_t position) {
  const Largest found = largest(logits);
  if (found.has_unusable || found.value == kNothing) refuse_logits(logits, position);
  return found.value;
}

// The largest logit after bias, penalties and masks, and its lowest index. `raw_max`: of the logits
// that `adjusted` still is when nothing was to adjust.
TokenLogprob best_of(std::span<const float> adjusted, std::span<const float> logits, float raw_max,
                     size_t position) {
  const float best = adjusted.data() == logits.data() ? raw_max : largest(adjusted).value;
  if (!std::isfinite(best)) {
    throw Error(ErrorKind::kUser,
                fmt::format("{} at output position {}",
                            best < 0 ? "logit_bias, min_tokens and masks leave no token to choose"
                                     : "logit_bias and penalties push a logit to +inf",
                            position),
                "loosen logit_bias, repetition_penalty or min_tokens");
  }
  const auto first = std::find(adjusted.begin(), adjusted.end(), best);
  return {static_cast<int32_t>(first - adjusted.begin()), best};
}

// The `count` largest logits, largest first, among equals the lowest token; logprob holds the
// logit.
std::vector<TokenLogprob> likeliest(std::span<const float> logits, size_t count) {
  std::vector<TokenLogprob> top;
  top.reserve(count + 1);
  for (size_t token = 0; token < logits.size(); ++token) {
    const float logit = logits[token];
    if (top.size() == count && logit <= top.back().logprob) continue;
    const auto after =
        std::upper_bound(top.begin(), top.end(), logit,
                         [](float a, const TokenLogprob& b) { return a > b.logprob; });
    top.insert(after, {static_cast<int32_t>(token), logit});
    if (top.size() > count) top.pop_back();
  }
  return top;
}

Choice with_logprobs(int32_t token, std::span<const float> logits, float max, int alternatives) {
  const double normaliser = log_sum_exp(logits, max);
  Choice choice{token, static_cast<float>(logits[static_cast<size_t>(token)] - normaliser), {}, 0};
  if (alternatives > 0) choice.top = likeliest(logits, static_cast<size_t>(alternatives));
  for (TokenLogprob& one : choice.top) one.logprob = static_cast<float>(one.logprob - normaliser);
  return choice;
}

int32_t draw(std::span<const int32_t> tokens, std::span<const float> weights,
             double target) noexcept {
  double sum = 0;
  size_t last = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    sum += weights[i];
    if (sum > target) return tokens[i];
    if (weights[i] > 0) last = i;  // rounding may leave the sum just short of the target
  }
  return tokens[last];
}

}  // namespace

int64_t Workspace::bytes() const noexcept {
  return changes_.bytes() + static_cast<int64_t>((adjusted_.capacity() + selection_.capacity() +
                                                  weights_.capacity() + logprobs_.capacity()) *
                                                     sizeof(float) +
                                                 tokens_.capacity() * sizeof(int32_t) +
                                                 ranked_.capacity() * sizeof(Ranked) +
                                                 shifted_.capacity() * sizeof(Shifted));
}

Sampler::Sampler(SamplingParams params, std::vector<int32_t> eos_token_ids)
    : params_(std::move(params)), eos_token_ids_(std::move(eos_token_ids)) {
  validate(params_);
  if (params_.dry_multiplier > 0)
    breakers_ = params_.dry_breakers
                    ? params_.dry_breakers
                    : std::make_shared<const DryBreakers>(params_.dry_breaker_tokens);
}

std::span<const LogitChange> Sampler::changes(const History& history, int64_t vocab_size,
                                              Workspace& workspace) const {
  return workspace.changes_.find(params_, history.prompt, history.output, eos_token_ids_,
                                 vocab_size, breakers_.get());
}

std::span<const float> Sampler::adjust(std::span<const float> logits, const History& history,
                                       Workspace& workspace) const {
  const auto changed = changes(history, std::ssize(logits), workspace);
  if (changed.empty() && history.allowed.empty()) return logits;

  workspace.adjusted_.assign(logits.begin(), logits.end());
  const std::span<float> adjusted(workspace.adjusted_);
  for (const LogitChange& change : changed) {
    float& logit = adjusted[static_cast<size_t>(change.token)];
    logit = change.apply(logit);
  }
  if (!history.allowed.empty()) {
    // Tokens that the mask does not reach are padding of the logits' rows.
    for (size_t token = 0; token < adjusted.size(); ++token) {
      const size_t word = token / 64;
      const bool may_come =
          word < history.allowed.size() && (history.allowed[word] >> token % 64 & 1) != 0;
      if (!may_come) adjusted[token] = kNothing;
    }
  }
  return adjusted;
}

// Fills workspace.tokens_ and weights_ with what temperature and the filters keep; returns the sum
// of weights.
double Sampler::keep(std::span<const float> adjusted, float max_logit, const History& history,
                     Workspace& workspace) const {
  auto& tokens = workspace.tokens_;
  auto& weights = workspace.weights_;
  float threshold = kNothing;
  if (params_.mirostat == 0) {
    if (params_.top_k > 0 && params_.top_k < std::ssize(adjusted))
      threshold = kth_largest(adjusted, params_.top_k, workspace.selection_);
    if (params_.top_n_sigma > 0)
      threshold =
          std::max(threshold, top_sigma_threshold(adjusted, max_logit, params_.top_n_sigma));
  }
  gather(adjusted, threshold, tokens, weights);
  Kept kept{tokens, weights, exponentiate(weights, max_logit, params_.temperature)};
  workspace.mass_ = kept.total;
  if (params_.mirostat != 0)
    keep_mirostat(kept, params_.mirostat, 2.0 * params_.mirostat_tau + history.surprise_drift,
                  std::ssize(adjusted), workspace.ranked_);
  else
    filter(kept, history.output.size(), workspace);
  return kept.total;
}

// Typical, top-p, min-p and XTC.
void Sampler::filter(Kept& kept, size_t position, Workspace& workspace) const {
  if (params_.typical_p < 1.0F) keep_typical(kept, params_.typical_p, workspace.shifted_);
  if (params_.top_p < 1.0F || params_.min_p > 0.0F) {
    auto& [tokens, weights, total] = kept;
    Ranked last{0.0F, std::numeric_limits<int32_t>::max()};
    if (params_.top_p < 1.0F)
      last = last_of_top_p(tokens, weights, total, params_.top_p, workspace.ranked_);
    // The largest weight is 1, but where typical has left it out.
    const float largest_weight = params_.typical_p < 1.0F ? largest(weights).value : 1.0F;
    const float least = params_.min_p * largest_weight;
    size_t filled = 0;
    total = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Ranked one{weights[i], tokens[i]};
      if (last.before(one) || one.weight < least) continue;
      tokens[filled] = one.token;
      weights[filled++] = one.weight;
      total += one.weight;
    }
    tokens.resize(filled);
    weights.resize(filled);
  }
  if (params_.xtc_probability > 0 &&
      uniform(params_.seed, position, Draw::kExclusion) < params_.xtc_probability)
    exclude_top(kept, params_.xtc_threshold);
}

// Mirostat's bound moves by how much the chosen token surprises the model at this temperature,
// beyond tau. `distance`: of its logit from the largest; `mass`: of all weights.
double Sampler::drift_after(double distance, double mass, const History& history) const {
  const double bits = (std::log(mass) + distance / params_.temperature) / std::log(2.0);
  return history.surprise_drift - params_.mirostat_eta * (bits - params_.mirostat_tau);
}

Choice Sampler::pick(std::span<const float> logits, const History& history,
                     Workspace& workspace) const {
  SLUICE_ASSERT(!logits.empty(), "a model has a vocabulary");
  const size_t position = history.output.size();
  const float raw_max = checked_max(logits, position);
  const std::span<const float> adjusted = adjust(logits, history, workspace);
  const TokenLogprob best = best_of(adjusted, logits, raw_max, position);

  Choice choice{best.token, std::numeric_limits<float>::quiet_NaN(), {}, 0};
  if (params_.temperature > 0) {
    const double total = keep(adjusted, best.logprob, history, workspace);
    choice.token =
        draw(workspace.tokens_, workspace.weights_, uniform(params_.seed, position) * total);
  }
  if (params_.logprobs >= 0)
    choice = with_logprobs(choice.token, logits, raw_max, params_.logprobs);
  if (params_.mirostat != 0 && params_.temperature > 0) {
    const double logit = adjusted[static_cast<size_t>(choice.token)];
    choice.surprise_drift = drift_after(best.logprob - logit, workspace.mass_, history);
  }
  return choice;
}

std::vector<BeamCandidate> Sampler::beam_candidates(std::span<const float> logits,
                                                    const History& history, size_t count,
                                                    Workspace& workspace) const {
  SLUICE_ASSERT(!logits.empty(), "a model has a vocabulary");
  const size_t position = history.output.size();
  const double normaliser = log_sum_exp(logits, checked_max(logits, position));
  workspace.logprobs_.resize(logits.size());
  std::transform(logits.begin(), logits.end(), workspace.logprobs_.begin(), [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - normaliser);
  });
  const std::span<const float> logprobs(workspace.logprobs_);
  const std::span<const float> adjusted = adjust(logprobs, history, workspace);
  best_of(adjusted, logprobs, largest(logprobs).value, position);  // refuses when nothing is left
  std::vector<BeamCandidate> candidates;
  candidates.reserve(count);
  for (const TokenLogprob& one : likeliest(adjusted, count))
    if (one.logprob > kNothing)
      candidates.push_back({one.token, one.logprob, logprobs[static_cast<size_t>(one.token)]});
  return candidates;
}

Choice score_token(std::span<const float> logits, int32_t token, int alternatives) {
  return with_logprobs(token, logits, largest(logits).value, alternatives);
}

std::vector<float> Sampler::distribution(std::span<const float> logits, const History& history,
                                         Workspace& workspace) const {
  SLUICE_ASSERT(!logits.empty(), "a model has a vocabulary");
  const size_t position = history.output.size();
  const float raw_max = checked_max(logits, position);
  const std::span<const float> adjusted = adjust(logits, history, workspace);
  const TokenLogprob best = best_of(adjusted, logits, raw_max, position);

  std::vector<float> probabilities(logits.size(), 0.0F);
  if (params_.temperature == 0) {
    probabilities[static_cast<size_t>(best.token)] = 1.0F;
    return probabilities;
  }
  const double total = keep(adjusted, best.logprob, history, workspace);
  for (size_t i = 0; i < workspace.tokens_.size(); ++i) {
    probabilities[static_cast<size_t>(workspace.tokens_[i])] =
        static_cast<float>(workspace.weights_[i] / total);
  }
  return probabilities;
}

std::vector<float> distribution(std::span<const float> logits, const SamplingParams& params,
                                const History& history, std::span<const int32_t> eos_token_ids) {
  Workspace workspace;
  const Sampler sampler(params, {eos_token_ids.begin(), eos_token_ids.end()});
  return sampler.distribution(logits, history, workspace);
}

}  // namespace sluice::sampling
