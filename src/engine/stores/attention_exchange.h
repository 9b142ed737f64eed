#pragma once
// What goes between the device and the host for attention on the host: per slot and side one row of
// q, k, v and output for each row of a micro-batch, f32. Rows lie at their number in the
// micro-batch; only rows of sequences whose KV is below the device move.
#include <cstdint>
#include <vector>

#include "policy/plan.h"
#include "src/base/arena.h"
#include "src/device/device.h"
#include "src/engine/passes/pass_plan.h"

namespace sluice {

class AttentionExchange {
 public:
  enum class Side : uint8_t { kDevice, kHost };
  /// Errors: kResource.
  AttentionExchange(const ModelShape& model, const policy::Plan& plan, Arena& device, Arena& host);

  /// Rows of a layer of a group.
  struct Slot {
    float* q;
    float* k;
    float* v;
    float* out;
    float* kept;  ///< of all rows, on the device
    int64_t q_cols;
    int64_t k_cols;
    int64_t v_cols;  ///< 0: keys are the values
  };
  Slot at(Side side, int32_t group, int32_t slot) const noexcept;

  /// Queries of chunks that the host attends, keys and values of all chunks below the device.
  /// Of a layer that reads what another keeps no keys and values.
  ExchangedBytes bytes(const MicroBatch& batch, int32_t group, bool is_reader) const noexcept;
  void copy_down(const MicroBatch& batch, const StatePlace& place, int32_t slot,
                 const Device::Copy& copy) const;
  void copy_up(const MicroBatch& batch, int32_t group, int32_t slot,
               const Device::Copy& copy) const;

 private:
  struct Columns {
    int64_t q = 0;
    int64_t k = 0;
    int64_t v = 0;
  };

  std::vector<Columns> columns_;  // by group
  int64_t rows_;
  int64_t slot_floats_;
  // Each kind of row is a block of its own: [slot][q rows | k rows | v rows | output rows | kept].
  Buffer device_;
  Buffer host_;
};

}  // namespace sluice
