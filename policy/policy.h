#pragma once
// A policy: where weights, KV and activations live, and how a block is cut into micro-batches. A
// small plain value that a person can write by hand as JSON (docs/formats/policy.md) or as
// FlexGen's six percentages.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/kv_format.h"

namespace sluice::policy {

/// Shares of one kind of bytes on each tier, each in [0, 1], together 1.
struct TierShares {
  double device = 1;
  double host = 0;
  double disk = 0;

  bool operator==(const TierShares&) const = default;
};

/// Where the attention over KV that lives off the device is computed.
enum class AttentionPlace : uint8_t {
  kDevice,  ///< its pages are brought up for every pass
  kHost     ///< queries go down, outputs come up (FlexGen section 4.1: CPU delegation)
};

struct Policy {
  TierShares weights;
  TierShares kv;
  TierShares activations;
  /// Of all weights' bytes: rows at home in host memory that the CPU multiplies there instead of
  /// sending them up; at most weights.host. Needs a device.
  double inplace_host_fraction = 0;
  AttentionPlace attention = AttentionPlace::kDevice;
  int64_t micro_batch_sequences = 1;  ///< sequences computed together (FlexGen: gpu batch size)
  int64_t micro_batches =
      1;  ///< micro-batches that share one trip of the weights (FlexGen: num gpu batches)
  int64_t micro_batch_tokens =
      512;  ///< at most so many tokens in one micro-batch; longer prompts are cut in chunks
  int64_t pass_tokens = 0;  ///< at most so many tokens in one pass; 0: as many as the block has
  int64_t page_tokens = 0;  ///< tokens of one KV page; 0: page_tokens_of() the KV's format

  int64_t block_sequences() const noexcept { return micro_batch_sequences * micro_batches; }
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
