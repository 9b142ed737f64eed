#include "src/engine/kv_store.h"

#include "io/offload_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

KvStore::KvStore(const ModelShape& model, const policy::Plan& plan, io::FileEngine& engine,
                 const std::string& offload_dir, Arena& memory, Arena& disk)
    : engine_(engine),
      disk_(disk),
      pool_(plan.memory_pages, plan.disk_pages),
      page_tokens_(plan.policy.page_tokens),
      page_bytes_(plan.page_bytes),
      disk_page_bytes_(round_up(plan.page_bytes, policy::kDiskBlock)),
      memory_pages_(plan.memory_pages),
      disk_pages_(plan.disk_pages),
      slot_bytes_(plan.kv_slot_bytes) {
  pages_ = memory.allocate(model.num_layers * memory_pages_ * page_bytes_, "KV pages");
  if (disk_pages_ == 0) return;
  staging_ = memory.allocate(slot_bytes_ * policy::kKvSlots, "KV staging");
  const int64_t bytes = model.num_layers * disk_pages_ * disk_page_bytes_;
  disk.charge(bytes, "KV pages");
  disk_charge_ = bytes;
  file_ = io::OffloadFile::create(offload_dir, bytes, "KV offload").give_to(engine);
  engine.register_memory(staging_.span());
}

KvStore::~KvStore() {
  if (file_ < 0) return;
  engine_.unregister_memory(staging_.span());
  engine_.close(file_);
  disk_.discharge(disk_charge_);
}

int64_t KvStore::load_bytes(const MicroBatch& batch) const noexcept {
  int64_t pages = 0;
  for (const StagedPage& page : batch.staged) pages += page.has_history ? 1 : 0;
  return pages * disk_page_bytes_;
}

int64_t KvStore::store_bytes(const MicroBatch& batch) const noexcept {
  int64_t pages = 0;
  for (const StagedPage& page : batch.staged) pages += page.is_changed ? 1 : 0;
  return pages * disk_page_bytes_;
}

std::byte* KvStore::staged_address(int32_t slot, int64_t index) const noexcept {
  return staging_.data() + slot * slot_bytes_ + index * disk_page_bytes_;
}

void KvStore::load(const MicroBatch& batch, int64_t layer, int32_t slot, io::Completion done) {
  std::vector<io::Extent> extents;
  for (size_t i = 0; i < batch.staged.size(); ++i)
    if (batch.staged[i].has_history)
      extents.push_back({file_,
                         (layer * disk_pages_ + batch.staged[i].disk_slot) * disk_page_bytes_,
                         disk_page_bytes_, staged_address(slot, static_cast<int64_t>(i))});
  if (extents.empty()) return done(nullptr);
  engine_.read(extents, std::move(done));
}

void KvStore::store(const MicroBatch& batch, int64_t layer, int32_t slot, io::Completion done) {
  std::vector<io::Extent> extents;
  for (size_t i = 0; i < batch.staged.size(); ++i)
    if (batch.staged[i].is_changed)
      extents.push_back({file_,
                         (layer * disk_pages_ + batch.staged[i].disk_slot) * disk_page_bytes_,
                         disk_page_bytes_, staged_address(slot, static_cast<int64_t>(i))});
  if (extents.empty()) return done(nullptr);
  engine_.write(extents, std::move(done));
}

void KvStore::page_addresses(const MicroBatch&, const Chunk& chunk, int64_t layer, int32_t slot,
                             std::vector<std::byte*>& out) const {
  const int64_t end = int64_t{chunk.first_position} + chunk.count;
  const int64_t pages = (end + page_tokens_ - 1) / page_tokens_;
  int64_t staged = chunk.first_staged;
  for (int64_t page = 0; page < pages; ++page) {
    const PageRef& ref = chunk.sequence->pages[static_cast<size_t>(page)];
    if (ref.is_on_disk) {
      SLUICE_ASSERT(slot >= 0 && (staged + 1) * disk_page_bytes_ <= slot_bytes_,
                    "the plan sizes the staging slots");
      out.push_back(staged_address(slot, staged++));
    } else {
      out.push_back(pages_.data() + (layer * memory_pages_ + ref.slot) * page_bytes_);
    }
  }
}

}  // namespace sluice
