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
    : rows_(plan.attention_slot_rows), slot_floats_(plan.attention_slot_bytes(model) / 4) {
  for (const StateGroup& group : model.state_groups) {
    const int64_t k = group.state.heads * group.state.width;
    columns_.push_back({model.num_heads * group.state.width, k, group.state.is_latent() ? 0 : k});
  }
  const int64_t bytes = plan.attention_slot_bytes(model) * policy::kAttentionSlots;
  if (bytes == 0) return;
  device_ = device.allocate(bytes, "attention exchange");
  host_ = host.allocate(bytes, "attention exchange");
}

AttentionExchange::Slot AttentionExchange::at(Side side, int32_t group,
                                              int32_t slot) const noexcept {
  const Columns& columns = columns_[static_cast<size_t>(group)];
  float* first = (side == Side::kDevice ? device_ : host_).as<float>() + slot * slot_floats_;
  float* k = first + columns.q * rows_;
  float* v = k + columns.k * rows_;
  float* out = v + columns.v * rows_;
  return {first, k, v, out, out + columns.q * rows_, columns.q, columns.k, columns.v};
}

ExchangedBytes AttentionExchange::bytes(const MicroBatch& batch, int32_t group,
                                        bool is_reader) const noexcept {
  const Columns& columns = columns_[static_cast<size_t>(group)];
  return exchanged_bytes(is_reader ? 0 : batch.lower_rows, batch.host_rows, columns.q,
                         columns.k + columns.v);
}

void AttentionExchange::copy_down(const MicroBatch& batch, const StatePlace& place, int32_t slot,
                                  const Device::Copy& copy) const {
  const Slot from = at(Side::kDevice, place.group, slot);
  const Slot to = at(Side::kHost, place.group, slot);
  if (!place.is_reader) {
    copy_rows(batch, is_lower_attention, copy, to.k, from.k, from.k_cols);
    if (from.v_cols > 0) copy_rows(batch, is_lower_attention, copy, to.v, from.v, from.v_cols);
  }
  copy_rows(batch, is_host_attention, copy, to.q, from.q, from.q_cols);
}

void AttentionExchange::copy_up(const MicroBatch& batch, int32_t group, int32_t slot,
                                const Device::Copy& copy) const {
  const Slot from = at(Side::kHost, group, slot);
  copy_rows(batch, is_host_attention, copy, at(Side::kDevice, group, slot).out, from.out,
            from.q_cols);
}

}  // namespace sluice
