#include "policy/search_space.h"

#include <algorithm>

#include "policy/expert_traffic.h"
#include "policy/plan_rows.h"

namespace sluice::policy {

namespace {
// Experts of a layer that take a smaller share of memory than this may as well pass through a ring.
constexpr double kRingShare = 1.0 / 16;
// Memory of so many times the weights' bytes has room for all of them whatever else is there.
constexpr double kRoomBeside = 1.25;

// Whether the ring that a layer's experts pass through takes a good part of the device's memory,
// which could hold experts instead.
bool has_large_ring(const PlanInput& input) {
  int64_t largest = 0;
  for (size_t i = 0; i < input.model->sublayers.size(); ++i)
    largest = std::max(largest, input.model->num_experts * expert_bytes(*input.model, i));
  return static_cast<double>(largest) >=
         kRingShare * static_cast<double>(input.device_budget_bytes);
}
}  // namespace

std::vector<int64_t> counts_up_to(int64_t most) {
  std::vector<int64_t> out;
  for (int64_t base = 1; base <= most; base *= 2)
    for (const int64_t value : {base, base + base / 2})
      if (value <= most && (out.empty() || out.back() < value)) out.push_back(value);
  if (out.empty() || out.back() != most) out.push_back(most);
  return out;
}

std::vector<int64_t> even_blocks(int64_t sequences, int64_t most) {
  std::vector<int64_t> out;
  constexpr int64_t kMostRounds = 12;  // of more, sizes apart by powers of two do as well
  for (int64_t rounds = 1; rounds <= sequences && rounds <= kMostRounds; ++rounds) {
    const int64_t block = (sequences + rounds - 1) / rounds;
    if (block <= most && (out.empty() || out.back() != block)) out.push_back(block);
  }
  for (int64_t block : counts_up_to(std::min(sequences, most)))
    if (std::find(out.begin(), out.end(), block) == out.end()) out.push_back(block);
  return out;
}

std::vector<int64_t> demands_of(const SearchRequest& request) {
  const PlanInput& input = request.input;
  std::vector<int64_t> out{request.start.demand_tokens};
  // Rings, KV and work spaces want room beside the weights.
  const auto memory = static_cast<double>(input.device_budget_bytes) +
                      static_cast<double>(input.memory_budget_bytes);
  const bool is_whole =
      !input.has_disk || kRoomBeside * static_cast<double>(input.model->weight_bytes()) <= memory;
  if (out.front() >= 0 || input.model->num_experts <= 1 || is_whole) return out;
  // Beside a device experts may lie as other weights do, which the host multiplies for large
  // passes too: better for large blocks.
  const bool has_device = input.device_budget_bytes > 0;
  if (has_device) out.push_back(0);
  if (!has_device || has_large_ring(input)) out.push_back(kAlwaysDemands);
  return out;
}

}  // namespace sluice::policy
