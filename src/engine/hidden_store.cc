#include "src/engine/hidden_store.h"

#include <algorithm>
#include <cmath>

#include "io/offload_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

HiddenStore::HiddenStore(const ModelShape& model, const policy::Plan& plan, io::FileEngine& engine,
                         const std::string& offload_dir, Arena& memory, Arena& disk)
    : engine_(engine),
      disk_(disk),
      hidden_size_(model.hidden_size),
      disk_share_(plan.policy.activations.disk),
      slot_bytes_(plan.activation_slot_bytes) {
  memory_ = memory.allocate(plan.hidden_memory_rows() * hidden_size_ * 4, "hidden states");
  if (disk_share_ <= 0) return;
  staging_ = memory.allocate(slot_bytes_ * policy::kActivationSlots, "activation staging");
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
  int64_t disk_rows = 0;
  int64_t disk_offset = 0;
  for (const auto& batch : batches) {
    row += batch->rows();
    const auto disk_rows_now =
        static_cast<int64_t>(std::ceil(disk_share_ * static_cast<double>(row) - 1e-9));
    const int64_t mine = std::min(disk_rows_now - disk_rows, batch->rows());
    const int64_t memory_row = row - batch->rows() - disk_rows;
    placements_.push_back({memory_row, batch->rows() - mine, mine, disk_offset});
    disk_rows += mine;
    disk_offset += round_up(mine * hidden_size_ * 4, policy::kDiskBlock);
  }
  SLUICE_ASSERT((row - disk_rows) * hidden_size_ * 4 <= std::max<int64_t>(memory_.size(), 0),
                "the plan sizes hidden states");
  SLUICE_ASSERT(disk_offset <= disk_charge_, "the plan sizes the activation file");
}

int64_t HiddenStore::disk_bytes(size_t batch) const noexcept {
  return round_up(placements_[batch].disk_rows * hidden_size_ * 4, policy::kDiskBlock);
}

io::Extent HiddenStore::extent(size_t batch, int32_t slot) const {
  SLUICE_ASSERT(disk_bytes(batch) <= slot_bytes_, "the plan sizes the staging slots");
  return {file_, placements_[batch].disk_offset, disk_bytes(batch),
          staging_.data() + slot * slot_bytes_};
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

std::vector<HiddenStore::Piece> HiddenStore::pieces(size_t batch, int32_t slot) const {
  const Placement& placement = placements_[batch];
  std::vector<Piece> out;
  if (placement.memory_rows > 0)
    out.push_back(
        {memory_.as<float>() + placement.memory_row * hidden_size_, placement.memory_rows});
  if (placement.disk_rows > 0)
    out.push_back(
        {reinterpret_cast<float*>(staging_.data() + slot * slot_bytes_), placement.disk_rows});
  return out;
}

}  // namespace sluice
