#pragma once
// A policy: where weights, KV and activations live, and how a block is cut into micro-batches. A
// small plain value that a person can write by hand as JSON (docs/formats/policy.md) or as
// FlexGen's six percentages.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/kv_format.h"

namespace sluice::policy {

/// Shares of one kind of bytes on each tier, each in [0, 1], together 1.
struct TierShares {
  double device = 1;
  double host = 0;
  double disk = 0;

  bool operator==(const TierShares&) const = default;
};

/// Policy::guess_slots that a plan takes by itself, at most.
constexpr int64_t kMostGuessSlots = 16;

/// Policy::demand_tokens under which no pass is too large to load only what it asks for.
constexpr int64_t kAlwaysDemands = 1 << 20;

/// Where the attention over KV that lives off the device is computed.
enum class AttentionPlace : uint8_t {
  kDevice,  ///< its pages are brought up for every pass
  kHost     ///< queries go down, outputs come up (FlexGen section 4.1: CPU delegation)
};

/// How passes of one class compute: passes have the same bytes at the same homes, and a class
/// says who computes with them.
struct PassExecution {
  int64_t from_tokens = 0;  ///< the least tokens of a pass (its rows) of the class
  /// Of all weights' bytes: rows at home in host memory that the CPU multiplies there instead of
  /// sending them up; at most weights.host. Needs a device.
  double inplace_host_fraction = 0;
  AttentionPlace attention = AttentionPlace::kDevice;
  int64_t micro_batch_tokens = 0;  ///< as the policy's, and no more than that; 0: as many

  bool operator==(const PassExecution&) const = default;
};

/// Classes of passes, at most.
constexpr size_t kMostPassClasses = 8;

struct Policy {
  TierShares weights;
  TierShares kv;
  TierShares activations;
  double inplace_host_fraction = 0;                    ///< PassExecution's, of small passes
  AttentionPlace attention = AttentionPlace::kDevice;  ///< likewise
  /// With attention on the host: runs of more new tokens of one sequence are attended on the device
  /// all the same, their pages come up; 0: none.
  int64_t host_attention_tokens = 0;
  /// Passes of more tokens that compute otherwise, by rising from_tokens; empty: all compute alike.
  std::vector<PassExecution> larger_passes;
  int64_t micro_batch_sequences = 1;  ///< sequences computed together (FlexGen: gpu batch size)
  int64_t micro_batches =
      1;  ///< micro-batches that share one trip of the weights (FlexGen: num gpu batches)
  int64_t micro_batch_tokens =
      512;  ///< at most so many tokens in one micro-batch; longer prompts are cut in chunks
  int64_t pass_tokens = 0;  ///< at most so many tokens in one pass; 0: as many as the block has
  int64_t page_tokens = 0;  ///< tokens of one KV page; 0: page_tokens_of() the KV's format
  /// Of a mixture with weights on disk: passes of at most so many tokens (without a device:
  /// independent tokens, policy/routing_model.h) load the experts that are asked for, when they
  /// are, into slots of host memory (and with a device multiply them there); others load ahead all
  /// that are in none. 0: all passes do that, and experts lie as other weights do; kAlwaysDemands:
  /// none does, no ring holds a layer's experts, and each layer has a slot at least; -1: as
  /// most_demanding_tokens() says (policy/routing_model.h).
  int64_t demand_tokens = -1;
  /// Where experts have slots: room for so many experts beside these, that the next layer is
  /// guessed to be asked for and that load ahead of its route; 0: nothing is guessed; -1:
  /// kMostGuessSlots, but no more than a sixteenth of the slots.
  int64_t guess_slots = -1;

  int64_t block_sequences() const noexcept { return micro_batch_sequences * micro_batches; }
  size_t pass_classes() const noexcept { return larger_passes.size() + 1; }
  /// The class of passes of so many tokens, by from_tokens alone.
  size_t pass_class_of(int64_t tokens) const noexcept;
  /// How passes of a class compute, with every field filled in.
  PassExecution execution(size_t pass_class) const noexcept;
  /// The largest share that any class multiplies in place.
  double most_inplace() const noexcept;
  /// Whether any class attends on the host, and whether any does on the device.
  bool any_attends_on(AttentionPlace place) const noexcept;

  bool operator==(const Policy&) const = default;
};

/// Reads a policy from JSON text. `origin` (a path) appears in errors. Unknown keys are refused.
/// Errors: kUser with the key, its value and what it may be.
Policy parse_policy(std::string_view json_text, std::string_view origin);

/// The same JSON, one line.
std::string policy_to_json(const Policy& policy);

/// FlexGen's --percent wg wc cg cc hg hc (0..100; the rest of each pair is on disk). Errors: kUser.
void apply_percent(Policy& policy, const std::array<double, 6>& percent);

/// Errors: kUser naming the first field that is out of range.
void validate(const Policy& policy);

/// The policy's page_tokens; where it names none KvFormat::page_tokens(), but of quantised KV no
/// more than the longest sequence takes, in whole 16s.
int64_t page_tokens_of(const Policy& policy, const KvFormat& kv, int64_t max_total_tokens) noexcept;

/// "device" or "host".
const char* attention_name(AttentionPlace place) noexcept;

/// "weights 42% memory 58% disk; KV 100% memory; ...; block 8 sequences x 4 micro-batches"; with a
/// device in three tiers, and what the CPU computes.
std::string describe(const Policy& policy, bool has_device = false);

}  // namespace sluice::policy
