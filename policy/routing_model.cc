#include "policy/routing_model.h"

#include <algorithm>
#include <cmath>

namespace sluice::policy {

namespace {
// Passes that ask for more of what is in no slot load all of it.
constexpr double kDemandedShare = 0.7;

// A text's next tokens ask for nearly as much as other texts' would, and later ones for less: by
// this power of its length, over so many tokens.
constexpr double kTextPower = 0.4;
constexpr double kTextTokens = 3;

// Misses of one sequence, over the experts that a token asks for: slots keep what it uses.
double missed_alone(double held) { return std::exp(-3.7 * std::pow(held, 0.6)); }

// Over the rate of uniform choices, where the slots have what many sequences like.
double liked_rate(double held) { return 1 - 0.85 * std::sqrt(held); }
}  // namespace

double independent_tokens(int64_t run) noexcept {
  if (run <= 0) return 0;
  const auto tokens = static_cast<double>(run);
  return tokens / std::pow(1 + (tokens - 1) / kTextTokens, kTextPower);
}

int64_t longest_run(double tokens, int64_t most) noexcept {
  int64_t least = 0;
  while (least < most) {
    const int64_t run = least + (most - least + 1) / 2;
    if (independent_tokens(run) <= tokens)
      least = run;
    else
      most = run - 1;
  }
  return least;
}

double missing_share(const ExpertShare& layer, double tokens) noexcept {
  const auto experts = static_cast<double>(layer.experts);
  const auto away = static_cast<double>(layer.experts - layer.slots);
  if (away <= 0 || tokens <= 0) return 0;
  const double chosen = layer.chosen;
  const double held = static_cast<double>(layer.slots) / experts;
  const double together = chosen / experts * liked_rate(held);
  const double alone = std::min(chosen * missed_alone(held) / away, together);
  const double rate = together * std::pow(alone / together, 1 / tokens);
  return 1 - std::pow(1 + rate * tokens / 2, -2);
}

double asked_experts(const ExpertShare& layer, double tokens) noexcept {
  if (tokens <= 0) return 0;
  const double all =
      static_cast<double>(layer.experts) * missing_share({layer.experts, layer.chosen, 0}, tokens);
  const double missing =
      static_cast<double>(layer.experts - layer.slots) * missing_share(layer, tokens);
  return std::max({all, missing, layer.chosen});
}

ExpertShare share_in_turns(const ScheduleExperts& layer, int64_t chosen) noexcept {
  const double others = static_cast<double>(layer.others()) / static_cast<double>(layer.experts);
  return {layer.others(), static_cast<double>(chosen) * others, layer.slots};
}

AskedExperts asked_experts(const ScheduleExperts& layer, int64_t chosen, double tokens) noexcept {
  AskedExperts out;
  if (tokens <= 0) return out;
  const ExpertShare turns = share_in_turns(layer, chosen);
  out.missing = static_cast<double>(layer.others() - layer.slots) * missing_share(turns, tokens);
  out.held = asked_experts(turns, tokens) - out.missing;
  const auto of_token = static_cast<double>(chosen);
  const double least = of_token / static_cast<double>(layer.experts);
  out.resident = static_cast<double>(layer.resident) *
                 std::max(missing_share({layer.experts, of_token, 0}, tokens), least);
  return out;
}

double even_share(const ExpertShare& layer, double tokens) noexcept {
  const double one = layer.chosen / static_cast<double>(layer.experts);
  return 1 - std::pow(1 - one, tokens);
}

int64_t most_demanding_tokens(const ExpertShare& layer) noexcept {
  if (layer.slots <= 0 || layer.slots >= layer.experts) return 0;
  constexpr int64_t kMost = 1 << 16;
  int64_t least = 0, most = kMost;  // the first is one of them, what follows the last is not
  while (least < most) {
    const int64_t tokens = (least + most + 1) / 2;
    if (missing_share(layer, static_cast<double>(tokens)) <= kDemandedShare)
      least = tokens;
    else
      most = tokens - 1;
  }
  return least;
}

}  // namespace sluice::policy
