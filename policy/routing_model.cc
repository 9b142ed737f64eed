#include "policy/routing_model.h"

#include <algorithm>
#include <cmath>

namespace sluice::policy {

namespace {
// Passes that ask for more of what is in no slot load all of it.
constexpr double kDemandedShare = 0.7;

// Misses of one sequence, over the experts that a token asks for: slots keep what it uses.
double missed_alone(double held) { return std::exp(-3.7 * std::pow(held, 0.6)); }

// Over the rate of uniform choices, where the slots have what many sequences like.
double liked_rate(double held) { return 1 - 0.85 * std::sqrt(held); }
}  // namespace

double missing_share(const ExpertShare& layer, int64_t tokens) noexcept {
  const auto experts = static_cast<double>(layer.experts);
  const auto away = static_cast<double>(layer.experts - layer.slots);
  if (away <= 0 || tokens <= 0) return 0;
  const auto chosen = static_cast<double>(layer.chosen);
  const double held = static_cast<double>(layer.slots) / experts;
  const double together = chosen / experts * liked_rate(held);
  const double alone = std::min(chosen * missed_alone(held) / away, together);
  const auto count = static_cast<double>(tokens);
  const double rate = together * std::pow(alone / together, 1 / count);
  return 1 - std::pow(1 + rate * count / 2, -2);
}

double asked_experts(const ExpertShare& layer, int64_t tokens) noexcept {
  if (tokens <= 0) return 0;
  const double all =
      static_cast<double>(layer.experts) * missing_share({layer.experts, layer.chosen, 0}, tokens);
  const double missing =
      static_cast<double>(layer.experts - layer.slots) * missing_share(layer, tokens);
  return std::max({all, missing, static_cast<double>(layer.chosen)});
}

double even_share(const ExpertShare& layer, int64_t tokens) noexcept {
  const double one = static_cast<double>(layer.chosen) / static_cast<double>(layer.experts);
  return 1 - std::pow(1 - one, static_cast<double>(tokens));
}

int64_t most_demanding_tokens(const ExpertShare& layer) noexcept {
  if (layer.slots <= 0 || layer.slots >= layer.experts) return 0;
  constexpr int64_t kMost = 1 << 16;
  int64_t least = 0, most = kMost;  // the first is one of them, what follows the last is not
  while (least < most) {
    const int64_t tokens = (least + most + 1) / 2;
    if (missing_share(layer, tokens) <= kDemandedShare)
      least = tokens;
    else
      most = tokens - 1;
  }
  return least;
}

}  // namespace sluice::policy
