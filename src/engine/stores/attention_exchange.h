#pragma once
// What goes between the device and the host for attention on the host: per slot and side one row of
// q, k, v and output for each row of a micro-batch, f32. Rows lie at their number in the
// micro-batch; only rows of sequences whose KV is below the device move.
#include <cstdint>

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

  float* q(Side side, int32_t slot) const noexcept { return row(side, slot, 0); }
  float* k(Side side, int32_t slot) const noexcept { return row(side, slot, q_cols_); }
  float* v(Side side, int32_t slot) const noexcept { return row(side, slot, q_cols_ + kv_cols_); }
  float* out(Side side, int32_t slot) const noexcept {
    return row(side, slot, q_cols_ + 2 * kv_cols_);
  }
  int64_t q_cols() const noexcept { return q_cols_; }
  int64_t kv_cols() const noexcept { return kv_cols_; }

  /// Queries of chunks that the host attends, keys and values of all chunks below the device.
  int64_t query_bytes(const MicroBatch& batch) const noexcept;
  int64_t output_bytes(const MicroBatch& batch) const noexcept;
  void copy_down(const MicroBatch& batch, int32_t slot, const Device::Copy& copy) const;
  void copy_up(const MicroBatch& batch, int32_t slot, const Device::Copy& copy) const;

 private:
  // Each kind of row is a block of its own: [slot][q rows | k rows | v rows | output rows].
  float* row(Side side, int32_t slot, int64_t cols_before) const noexcept {
    const Buffer& buffer = side == Side::kDevice ? device_ : host_;
    return buffer.as<float>() + slot * slot_floats_ + cols_before * rows_;
  }

  int64_t q_cols_;
  int64_t kv_cols_;
  int64_t rows_;
  int64_t slot_floats_;
  Buffer device_;
  Buffer host_;
};

}  // namespace sluice
