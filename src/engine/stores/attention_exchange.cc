#include "src/engine/stores/attention_exchange.h"

namespace sluice {

namespace {
// Rows of chunks that are `wanted`, neighbours together.
template <typename Wanted>
void copy_rows(const MicroBatch& batch, const Wanted& wanted, const Device::Copy& copy, float* to,
               const float* from, int64_t cols) {
  for_each_run(batch, wanted, [&](int64_t first, int64_t count) {
    copy(reinterpret_cast<std::byte*>(to + first * cols),
         reinterpret_cast<const std::byte*>(from + first * cols),
         count * cols * static_cast<int64_t>(sizeof(float)));
  });
}
}  // namespace

AttentionExchange::AttentionExchange(const ModelShape& model, const policy::Plan& plan,
                                     Arena& device, Arena& host)
    : q_cols_(model.num_heads * model.head_dim),
      kv_cols_(model.num_kv_heads * model.head_dim),
      rows_(plan.attention_slot_rows),
      slot_floats_(plan.attention_slot_bytes(model) / 4) {
  const int64_t bytes = plan.attention_slot_bytes(model) * policy::kAttentionSlots;
  if (bytes == 0) return;
  device_ = device.allocate(bytes, "attention exchange");
  host_ = host.allocate(bytes, "attention exchange");
}

int64_t AttentionExchange::query_bytes(const MicroBatch& batch) const noexcept {
  return exchanged_bytes(batch.lower_rows, batch.host_rows, q_cols_, kv_cols_).queries;
}

int64_t AttentionExchange::output_bytes(const MicroBatch& batch) const noexcept {
  return exchanged_bytes(batch.lower_rows, batch.host_rows, q_cols_, kv_cols_).outputs;
}

void AttentionExchange::copy_down(const MicroBatch& batch, int32_t slot,
                                  const Device::Copy& copy) const {
  copy_rows(batch, is_lower_attention, copy, k(Side::kHost, slot), k(Side::kDevice, slot),
            kv_cols_);
  copy_rows(batch, is_lower_attention, copy, v(Side::kHost, slot), v(Side::kDevice, slot),
            kv_cols_);
  copy_rows(batch, is_host_attention, copy, q(Side::kHost, slot), q(Side::kDevice, slot), q_cols_);
}

void AttentionExchange::copy_up(const MicroBatch& batch, int32_t slot,
                                const Device::Copy& copy) const {
  copy_rows(batch, is_host_attention, copy, out(Side::kDevice, slot), out(Side::kHost, slot),
            q_cols_);
}

}  // namespace sluice
