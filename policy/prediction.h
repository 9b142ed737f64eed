#pragma once
// What a policy is expected to do on a profile: the answer of the cost model and of the simulator,
// in one form, so that they can be held against each other and against a measured run.
#include <cstdint>
#include <string>

#include "src/schedule/lanes.h"

namespace sluice::policy {

/// The sequences of a job, as the cost model sees them.
struct JobShape {
  int64_t sequences = 1;          ///< in all; more than a block takes run in rounds
  double prompt_tokens = 512;     ///< mean
  double new_tokens = 32;         ///< mean, the first (from prefill) included
  int64_t max_prompt_tokens = 0;  ///< longest; 0: the mean
  int64_t max_new_tokens = 0;
};

struct Prediction {
  double prefill_seconds = 0;  ///< of one block: passes that hold prompt tokens
  double decode_seconds = 0;   ///< of one block: passes that hold none
  int64_t block_sequences = 0;
  double new_tokens = 0;  ///< of one block
  /// Seconds that each lane is busy in prefill and in decode, of one block.
  PerLane<double> prefill_lanes;
  PerLane<double> decode_lanes;
  /// Seconds that the device's lane is held, by its own work or by rows in place that its tasks
  /// wait for: what the host's lane has of these is not the device's.
  double prefill_held_seconds = 0;
  double decode_held_seconds = 0;
  double prefill_inplace_seconds = 0;  ///< of the host's lane: products of rows in place
  double decode_inplace_seconds = 0;
  /// Seconds that the host's memory is busy for all of them together, beside a device with a memory
  /// of its own: copies, reading and writing the disk, rows multiplied in place, attention on the
  /// host.
  double prefill_host_memory_seconds = 0;
  double decode_host_memory_seconds = 0;

  double seconds() const noexcept { return prefill_seconds + decode_seconds; }
  /// Generated tokens per second, as FlexGen counts: new tokens of the block over its seconds.
  double tokens_per_second() const noexcept { return seconds() > 0 ? new_tokens / seconds() : 0; }
  /// From a block's start to the last token of its sequences.
  double latency_seconds() const noexcept { return seconds(); }
  double lane_seconds(Lane lane) const noexcept { return prefill_lanes[lane] + decode_lanes[lane]; }
  /// Seconds that each lane is taken, whoever computes: rows in place take the device's too. Where
  /// the device computes on the host's cores they take no more than that.
  PerLane<double> taken(bool is_prefill, bool shares_cores) const {
    PerLane<double> out = is_prefill ? prefill_lanes : decode_lanes;
    out[Lane::kDeviceCompute] = is_prefill ? prefill_held_seconds : decode_held_seconds;
    if (shares_cores)
      out[Lane::kHostCompute] -= is_prefill ? prefill_inplace_seconds : decode_inplace_seconds;
    return out;
  }
  double host_memory_seconds() const noexcept {
    return prefill_host_memory_seconds + decode_host_memory_seconds;
  }
  /// The lane with the most busy seconds.
  Lane bottleneck() const noexcept {
    size_t most = 0;
    for (size_t i = 1; i < prefill_lanes.size(); ++i)
      if (lane_seconds(Lane(i)) > lane_seconds(Lane(most))) most = i;
    return Lane(most);
  }
};

}  // namespace sluice::policy
