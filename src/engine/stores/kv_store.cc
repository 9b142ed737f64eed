#include "src/engine/stores/kv_store.h"

#include <algorithm>
#include <cstring>

#include "io/async/offload_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"

namespace sluice {

namespace {
constexpr int64_t kMostBetween = 8 * kMiB;  // of a page on its way from one place to another
}

KvStore::KvStore(const ModelShape& model, const policy::Plan& plan, io::FileEngine& engine,
                 const std::string& offload_dir, int64_t swap_bytes, Arena& compute, Arena& host,
                 Arena& disk)
    : engine_(engine),
      disk_(disk),
      pool_({plan.memory_pages, plan.host_pages, plan.disk_pages}, plan.host_attends()),
      path_(plan.paths.state),
      num_layers_(model.num_layers),
      page_tokens_(plan.policy.page_tokens),
      page_bytes_(plan.page_bytes),
      staged_page_bytes_(plan.disk_pages > 0 ? round_up(plan.page_bytes, policy::kDiskBlock)
                                             : plan.page_bytes),
      pages_count_{plan.memory_pages, plan.host_pages, plan.disk_pages},
      slot_pages_(plan.kv_slot_pages),
      host_slot_pages_(plan.host_kv_slot_pages),
      fresh_pages_(plan.fresh_pages),
      block_page_bytes_(round_up(plan.page_bytes, policy::kDiskBlock)) {
  pages_ = compute.allocate(model.num_layers * pages_count_.compute * page_bytes_, "KV pages");
  fresh_ = compute.allocate(fresh_pages_ * page_bytes_, "KV of fresh prompts");
  staging_ = compute.allocate(slot_pages_ * staged_page_bytes_ * policy::kKvSlots, "KV staging");
  host_pages_ = host.allocate(model.num_layers * pages_count_.host * page_bytes_, "KV pages");
  host_staging_ =
      host.allocate(host_slot_pages_ * staged_page_bytes_ * policy::kKvSlots, "KV staging");
  swap_pages_ = swap_bytes / (num_layers_ * block_page_bytes_);
  const int64_t swapped = swap_pages_ * num_layers_ * block_page_bytes_;
  const auto on_disk = [&](int64_t bytes, const char* what) {
    disk.charge(bytes, what);
    disk_charge_ += bytes;
    return io::OffloadFile::create(offload_dir, bytes, what).give_to(engine);
  };
  if (swaps_to_memory())
    swap_ = host.allocate(swapped, "KV swap space");
  else if (swapped > 0)
    swap_file_ = on_disk(swapped, "KV swap space");
  if (pages_count_.disk == 0) return;
  file_ = on_disk(num_layers_ * pages_count_.disk * staged_page_bytes_, "KV pages");
  engine.register_memory(read_staging().span());
}

KvStore::~KvStore() {
  if (swap_file_ >= 0) engine_.close(swap_file_);
  disk_.discharge(disk_charge_);
  if (file_ < 0) return;
  engine_.unregister_memory(read_staging().span());
  engine_.close(file_);
}

int64_t KvStore::count(const MicroBatch& batch, bool StagedPage::*flag,
                       bool only_disk) const noexcept {
  int64_t pages = 0;
  for (const StagedPage& page : batch.staged)
    if (page.*flag && (!only_disk || page.tier == PageTier::kDisk)) ++pages;
  return pages;
}

int64_t KvStore::load_bytes(const MicroBatch& batch) const noexcept {
  return count(batch, &StagedPage::has_history, true) * staged_page_bytes_;
}

int64_t KvStore::store_bytes(const MicroBatch& batch) const noexcept {
  return count(batch, &StagedPage::is_changed, true) * staged_page_bytes_;
}

int64_t KvStore::up_bytes(const MicroBatch& batch) const noexcept {
  if (!path_.crosses_link() || batch.lower_rows > 0) return 0;  // then the host attends
  return count(batch, &StagedPage::has_history, false) * page_bytes_;
}

int64_t KvStore::down_bytes(const MicroBatch& batch) const noexcept {
  if (!path_.crosses_link() || batch.lower_rows > 0) return 0;  // then the host attends
  return count(batch, &StagedPage::is_changed, false) * page_bytes_;
}

// Where a page lives that is not on disk.
std::byte* KvStore::own_address(const PageRef& page, int64_t layer) const noexcept {
  return page.tier == PageTier::kCompute
             ? pages_.data() + (layer * pages_count_.compute + page.slot) * page_bytes_
             : host_pages_.data() + (layer * pages_count_.host + page.slot) * page_bytes_;
}

io::Extent KvStore::extent_of(const PageRef& page, int64_t layer,
                              std::byte* memory) const noexcept {
  return {file_, (layer * pages_count_.disk + page.slot) * staged_page_bytes_, staged_page_bytes_,
          memory};
}

bool KvStore::is_in_host_memory(const PageRef& page) const noexcept {
  return page.tier == PageTier::kHost || (page.tier == PageTier::kCompute && !path_.crosses_link());
}

void KvStore::read_layers(const PageRef& page, int64_t first, int64_t count, std::byte* to,
                          Device* device) {
  const auto for_each = [&](const auto& take) {
    for (int64_t i = 0; i < count; ++i) take(first + i, to + i * block_page_bytes_);
  };
  if (page.tier == PageTier::kDisk) {
    std::vector<io::Extent> extents;
    for_each(
        [&](int64_t layer, std::byte* one) { extents.push_back(extent_of(page, layer, one)); });
    engine_.read_now(extents);
  } else if (is_in_host_memory(page)) {
    for_each([&](int64_t layer, std::byte* one) {
      std::memcpy(one, own_address(page, layer), static_cast<size_t>(page_bytes_));
    });
  } else {
    device->transfer(Direction::kDown, count * page_bytes_, [&](const Device::Copy& copy) {
      for_each(
          [&](int64_t layer, std::byte* one) { copy(one, own_address(page, layer), page_bytes_); });
    });
  }
}

void KvStore::write_layers(const PageRef& page, int64_t first, int64_t count, const std::byte* from,
                           Device* device) {
  const auto for_each = [&](const auto& take) {
    for (int64_t i = 0; i < count; ++i) take(first + i, from + i * block_page_bytes_);
  };
  if (page.tier == PageTier::kDisk) {
    std::vector<io::Extent> extents;
    for_each([&](int64_t layer, const std::byte* one) {
      extents.push_back(extent_of(page, layer, const_cast<std::byte*>(one)));
    });
    engine_.write_now(extents);
  } else if (is_in_host_memory(page)) {
    for_each([&](int64_t layer, const std::byte* one) {
      std::memcpy(own_address(page, layer), one, static_cast<size_t>(page_bytes_));
    });
  } else {
    device->transfer(Direction::kUp, count * page_bytes_, [&](const Device::Copy& copy) {
      for_each([&](int64_t layer, const std::byte* one) {
        copy(own_address(page, layer), one, page_bytes_);
      });
    });
  }
}

void KvStore::copy_page(const PageRef& from, const PageRef& to, Device* device) {
  const bool is_saved = to.tier == PageTier::kSwap, is_restored = from.tier == PageTier::kSwap;
  const bool is_in_memory = (is_saved || is_restored) && swaps_to_memory();
  // In the swap space a page's layers lie one behind the other: one request for many.
  const int64_t together =
      is_in_memory ? num_layers_
                   : std::clamp<int64_t>(kMostBetween / block_page_bytes_, 1, num_layers_);
  if (!is_in_memory && between_.size() == 0)
    between_ = io::AlignedMemory(together * block_page_bytes_);
  const int64_t swapped = (is_saved ? to.slot : from.slot) * num_layers_ * block_page_bytes_;
  for (int64_t first = 0; first < num_layers_; first += together) {
    const int64_t count = std::min(together, num_layers_ - first);
    const int64_t at = swapped + first * block_page_bytes_;
    std::byte* layers = is_in_memory ? swap_.data() + at : between_.data();
    const io::Extent in_file{swap_file_, at, count * block_page_bytes_, layers};
    if (is_restored && !swaps_to_memory()) engine_.read_now({{in_file}});
    if (!is_restored) read_layers(from, first, count, layers, device);
    if (!is_saved) write_layers(to, first, count, layers, device);
    if (is_saved && !swaps_to_memory()) engine_.write_now({{in_file}});
  }
}

std::byte* KvStore::staged_address(int32_t slot, int64_t index) const noexcept {
  return staging_.data() + (slot * slot_pages_ + index) * staged_page_bytes_;
}

// Where the bytes of a page below the device are in host memory.
std::byte* KvStore::lower_address(const StagedPage& page, int64_t layer,
                                  int32_t slot) const noexcept {
  if (page.tier == PageTier::kHost) return own_address({page.tier, page.slot}, layer);
  return host_staging_.data() + (slot * host_slot_pages_ + page.disk_index) * staged_page_bytes_;
}

std::vector<io::Extent> KvStore::extents(const MicroBatch& batch, bool StagedPage::*flag,
                                         int64_t layer, int32_t slot) const {
  std::vector<io::Extent> out;
  for (size_t i = 0; i < batch.staged.size(); ++i) {
    const StagedPage& page = batch.staged[i];
    if (page.tier != PageTier::kDisk || !(page.*flag)) continue;
    std::byte* memory = path_.stops_between() > 0 ? lower_address(page, layer, slot)
                                                  : staged_address(slot, static_cast<int64_t>(i));
    out.push_back(extent_of({page.tier, page.slot}, layer, memory));
  }
  return out;
}

void KvStore::load(const MicroBatch& batch, int64_t layer, int32_t slot, io::Completion done) {
  const auto pages = extents(batch, &StagedPage::has_history, layer, slot);
  if (pages.empty()) return done(nullptr);
  engine_.read(pages, std::move(done));
}

void KvStore::store(const MicroBatch& batch, int64_t layer, int32_t slot, io::Completion done) {
  const auto pages = extents(batch, &StagedPage::is_changed, layer, slot);
  if (pages.empty()) return done(nullptr);
  engine_.write(pages, std::move(done));
}

void KvStore::copy_up(const MicroBatch& batch, int64_t layer, int32_t slot,
                      const Device::Copy& copy) const {
  for (size_t i = 0; i < batch.staged.size(); ++i)
    if (batch.staged[i].has_history)
      copy(staged_address(slot, static_cast<int64_t>(i)),
           lower_address(batch.staged[i], layer, slot), page_bytes_);
}

void KvStore::copy_down(const MicroBatch& batch, int64_t layer, int32_t slot,
                        const Device::Copy& copy) const {
  for (size_t i = 0; i < batch.staged.size(); ++i)
    if (batch.staged[i].is_changed)
      copy(lower_address(batch.staged[i], layer, slot),
           staged_address(slot, static_cast<int64_t>(i)), page_bytes_);
}

void KvStore::page_addresses(const MicroBatch& batch, const Chunk& chunk, int64_t layer,
                             int32_t slot, bool on_host, std::vector<std::byte*>& out) const {
  const int64_t end = int64_t{chunk.first_position} + chunk.count;
  const int64_t pages = (end + page_tokens_ - 1) / page_tokens_;
  int64_t staged = chunk.first_staged;
  for (int64_t page = 0; page < pages; ++page) {
    const PageRef& ref = chunk.sequence->pages[static_cast<size_t>(page)];
    if (ref.tier == PageTier::kCompute) {
      out.push_back(own_address(ref, layer));
    } else if (on_host) {
      const StagedPage& lower = batch.staged[static_cast<size_t>(staged++)];
      SLUICE_ASSERT(
          lower.tier == PageTier::kHost || (slot >= 0 && lower.disk_index < host_slot_pages_),
          "the plan sizes the staging slots");
      out.push_back(lower_address(lower, layer, slot));
    } else {
      SLUICE_ASSERT(slot >= 0 && staged < slot_pages_, "the plan sizes the staging slots");
      out.push_back(staged_address(slot, staged++));
    }
  }
}

void KvStore::fresh_addresses(int64_t first, int64_t pages, std::vector<std::byte*>& out) const {
  SLUICE_ASSERT(first + pages <= fresh_pages_, "the plan sizes the pages of fresh prompts");
  for (int64_t page = first; page < first + pages; ++page)
    out.push_back(fresh_.data() + page * page_bytes_);
}

}  // namespace sluice
