#pragma once
// What a pass does with the experts of a mixture: how many it goes to, which of these it finds
// where they are computed, and what is moved for the others. Expected numbers by the routing model,
// the same that the cost model charges. Pure.
#include <cstdint>
#include <span>

#include "policy/pass_model.h"

namespace sluice::policy {

/// Experts of all layers with a router, in one pass. Where they are loaded when they are asked for,
/// each micro-batch asks for its own; else what is loaded serves all of a pass.
struct ExpertTraffic {
  int64_t layers = 0;        ///< with routed experts
  double asked = 0;          ///< experts that some token goes to, of all layers
  double asked_bytes = 0;    ///< theirs, as they are computed with
  double found_bytes = 0;    ///< of these, where they are computed: in slots, resident
  double inplace_bytes = 0;  ///< of asked_bytes, in host memory, and multiplied there by the CPU
  double read_bytes = 0;     ///< that the disk reads, whole blocks
  double up_bytes = 0;       ///< that the link to a device carries
  int64_t slots = 0;         ///< of the layer with the fewest; 0: none has any
  bool demands = false;      ///< it loads what is asked for and in no slot; else all in none

  /// Share of what is asked for that needs no move; 1 where nothing is asked for.
  double found_share() const noexcept {
    return asked_bytes > 0 ? (found_bytes + inplace_bytes) / asked_bytes : 1;
  }
};

/// Experts of a layer with slots that a pass loads: what its micro-batches ask for and is in no
/// slot, or all that are in none.
double loaded_experts(const ModelShape& model, const ScheduleExperts& layer, bool demands,
                      std::span<const BatchWork> batches) noexcept;

/// Where experts have slots, by the fitted router; else by even routing. A model without experts
/// has no layers.
ExpertTraffic expert_traffic(const ModelShape& model, const Plan& plan, const PassWork& pass);

/// Bytes of an expert of this sublayer, all its matrices; 0: it has none.
int64_t expert_bytes(const ModelShape& model, size_t sublayer) noexcept;

}  // namespace sluice::policy
