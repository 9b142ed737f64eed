#include "src/engine/stores/hidden_store.h"

#include <algorithm>
#include <cmath>

#include "io/async/offload_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

HiddenStore::HiddenStore(const ModelShape& model, const policy::Plan& plan, io::FileEngine& engine,
                         const std::string& offload_dir, Arena& compute, Arena& host, Arena& disk)
    : engine_(engine),
      disk_(disk),
      path_(plan.paths.state),
      hidden_size_(model.hidden_size),
      carried_(model.carried_columns),
      memory_rows_(plan.hidden_memory_rows()),
      host_rows_count_(plan.activation_host_rows),
      host_share_(plan.placed(plan.policy.activations).host),
      disk_share_(plan.policy.activations.disk),
      slot_bytes_(plan.activation_slot_bytes) {
  memory_ = compute.allocate(memory_rows_ * row_bytes(), "hidden states");
  staging_ = compute.allocate(slot_bytes_ * policy::kActivationSlots, "activation staging");
  host_rows_ = host.allocate(host_rows_count_ * row_bytes(), "hidden states");
  if (disk_share_ <= 0) return;
  if (path_.stops_between() > 0)
    host_staging_ = host.allocate(slot_bytes_ * policy::kActivationSlots, "activation staging");
  const int64_t bytes = round_up(plan.activation_disk_bytes, policy::kDiskBlock);
  disk.charge(bytes, "activations");
  disk_charge_ = bytes;
  file_ = io::OffloadFile::create(offload_dir, bytes, "activation offload").give_to(engine);
}

HiddenStore::~HiddenStore() {
  if (file_ < 0) return;
  engine_.close(file_);
  disk_.discharge(disk_charge_);
}

void HiddenStore::begin_pass(std::span<const std::unique_ptr<MicroBatch>> batches) {
  placements_.clear();
  int64_t row = 0;
  int64_t lower_rows = 0;
  int64_t disk_rows = 0;
  int64_t disk_offset = 0;
  const auto up_to = [](double share, int64_t rows) {
    return static_cast<int64_t>(std::ceil(share * static_cast<double>(rows) - 1e-9));
  };
  for (const auto& batch : batches) {
    const int64_t host_before = lower_rows - disk_rows;
    const int64_t memory_before = row - lower_rows;
    row += batch->rows();
    const int64_t lower = std::min(
        std::max(up_to(host_share_ + disk_share_, row) - lower_rows, int64_t{0}), batch->rows());
    const int64_t on_disk =
        std::min(std::max(up_to(disk_share_, row) - disk_rows, int64_t{0}), lower);
    placements_.push_back(
        {memory_before, batch->rows() - lower, host_before, lower - on_disk, on_disk, disk_offset});
    lower_rows += lower;
    disk_rows += on_disk;
    disk_offset += round_up(on_disk * row_bytes(), policy::kDiskBlock);
  }
  SLUICE_ASSERT((row - lower_rows) * row_bytes() <= memory_.size(), "the plan sizes hidden states");
  SLUICE_ASSERT((lower_rows - disk_rows) * row_bytes() <= host_rows_.size(),
                "the plan sizes hidden states in host memory");
  SLUICE_ASSERT(disk_offset <= disk_charge_, "the plan sizes the activation file");
}

int64_t HiddenStore::disk_bytes(size_t batch) const noexcept {
  return round_up(placements_[batch].disk_rows * row_bytes(), policy::kDiskBlock);
}

int64_t HiddenStore::up_bytes(size_t batch) const noexcept {
  const Placement& placement = placements_[batch];
  return path_.crosses_link() ? (placement.host_rows + placement.disk_rows) * row_bytes() : 0;
}

io::Extent HiddenStore::extent(size_t batch, int32_t slot) const {
  SLUICE_ASSERT(disk_bytes(batch) <= slot_bytes_, "the plan sizes the staging slots");
  return {file_, placements_[batch].disk_offset, disk_bytes(batch),
          (path_.stops_between() > 0 ? host_staging_ : staging_).data() + slot * slot_bytes_};
}

void HiddenStore::load(size_t batch, int32_t slot, io::Completion done) {
  if (disk_bytes(batch) == 0) return done(nullptr);
  const io::Extent one = extent(batch, slot);
  engine_.read({&one, 1}, std::move(done));
}

void HiddenStore::store(size_t batch, int32_t slot, io::Completion done) {
  if (disk_bytes(batch) == 0) return done(nullptr);
  const io::Extent one = extent(batch, slot);
  engine_.write({&one, 1}, std::move(done));
}

// Staged rows: those of host memory first, then those of the disk.
template <typename Copy>
void HiddenStore::copy_rows(size_t batch, int32_t slot, const Copy& copy) const {
  const Placement& placement = placements_[batch];
  float* staged = reinterpret_cast<float*>(staging_.data() + slot * slot_bytes_);
  float* below = reinterpret_cast<float*>(host_staging_.data() + slot * slot_bytes_);
  const auto move = [&](float* to, float* from, int64_t floats) {
    if (floats > 0)
      copy(reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte*>(from), floats * 4);
  };
  const auto move_columns = [&](float* to, float* host, float* disk, int64_t cols) {
    move(to, host + placement.host_row * cols, placement.host_rows * cols);
    move(to + placement.host_rows * cols, disk, placement.disk_rows * cols);
  };
  move_columns(staged, host_rows_.as<float>(), below, hidden_size_);
  move_columns(staged + (placement.host_rows + placement.disk_rows) * hidden_size_,
               host_rows_.as<float>() + host_rows_count_ * hidden_size_,
               below + placement.disk_rows * hidden_size_, carried_);
}

void HiddenStore::copy_up(size_t batch, int32_t slot, const Device::Copy& copy) const {
  copy_rows(batch, slot, copy);
}

void HiddenStore::copy_down(size_t batch, int32_t slot, const Device::Copy& copy) const {
  copy_rows(batch, slot,
            [&](std::byte* device, std::byte* host, int64_t bytes) { copy(host, device, bytes); });
}

std::vector<HiddenStore::Piece> HiddenStore::pieces(size_t batch, int32_t slot) const {
  const Placement& placement = placements_[batch];
  std::vector<Piece> out;
  if (placement.memory_rows > 0)
    out.push_back(
        {memory_.as<float>() + placement.memory_row * hidden_size_, placement.memory_rows,
         memory_.as<float>() + memory_rows_ * hidden_size_ + placement.memory_row * carried_});
  const int64_t staged = placement.host_rows + placement.disk_rows;
  if (staged == 0) return out;
  float* first = reinterpret_cast<float*>(staging_.data() + slot * slot_bytes_);
  out.push_back({first, staged, first + staged * hidden_size_});
  return out;
}

}  // namespace sluice
