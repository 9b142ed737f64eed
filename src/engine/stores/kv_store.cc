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

KvStore::KvStore(const policy::Plan& plan, io::FileEngine& engine, const std::string& offload_dir,
                 int64_t swap_bytes, Arena& compute, Arena& host, Arena& disk)
    : engine_(engine),
      disk_(disk),
      path_(plan.paths.state),
      page_tokens_(plan.policy.page_tokens),
      slot_bytes_(plan.kv_slot_bytes()),
      host_slot_bytes_(plan.host_kv_slot_bytes()),
      fresh_pages_(plan.fresh_pages),
      kept_fresh_pages_(plan.kept_fresh_pages),
      groups_(plan.kv.size()) {
  int64_t all_pages = 0;
  for (const policy::KvPlan& kv : plan.kv) all_pages += kv.bytes_of(kv.pages());
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].plan = plan.kv[i];
    // What is swapped together fills the spaces alike.
    const int64_t own = plan.kv[i].bytes_of(plan.kv[i].pages());
    const double share =
        static_cast<double>(own) / static_cast<double>(std::max<int64_t>(all_pages, 1));
    place(groups_[i],
          groups_.size() == 1 ? swap_bytes
                              : static_cast<int64_t>(static_cast<double>(swap_bytes) * share),
          offload_dir, compute, host);
  }
  fresh_ = compute.allocate(fresh_pages_ * plan.most_page_bytes(), "KV of fresh prompts");
  staging_ = compute.allocate(slot_bytes_ * policy::kKvSlots, "KV staging");
  host_staging_ = host.allocate(host_slot_bytes_ * policy::kKvSlots, "KV staging");
  is_registered_ = std::any_of(groups_.begin(), groups_.end(),
                               [](const Group& group) { return group.file >= 0; });
  if (is_registered_) engine.register_memory(read_staging().span());
}

void KvStore::place(Group& group, int64_t swap_bytes, const std::string& offload_dir,
                    Arena& compute, Arena& host) {
  const policy::KvPlan& kv = group.plan;
  group.pages = compute.allocate(kv.bytes_of(kv.memory_pages), "KV pages");
  group.host_pages = host.allocate(kv.bytes_of(kv.host_pages), "KV pages");
  group.fresh = compute.allocate(kept_fresh_pages_ * kv.page_bytes * std::ssize(kv.read_layers),
                                 "KV of fresh prompts");
  group.block_page_bytes = round_up(kv.page_bytes, policy::kDiskBlock);
  group.swap_pages = swap_bytes / (kv.num_layers * group.block_page_bytes);
  const int64_t swapped = group.swap_pages * kv.num_layers * group.block_page_bytes;
  const auto on_disk = [&](int64_t bytes, const char* what) {
    disk_.charge(bytes, what);
    disk_charge_ += bytes;
    return io::OffloadFile::create(offload_dir, bytes, what).give_to(engine_);
  };
  if (swaps_to_memory())
    group.swap = host.allocate(swapped, "KV swap space");
  else if (swapped > 0)
    group.swap_file = on_disk(swapped, "KV swap space");
  if (kv.disk_pages > 0)
    group.file = on_disk(kv.num_layers * kv.disk_pages * group.block_page_bytes, "KV pages");
}

KvStore::~KvStore() {
  for (const Group& group : groups_) {
    if (group.swap_file >= 0) engine_.close(group.swap_file);
    if (group.file >= 0) engine_.close(group.file);
  }
  disk_.discharge(disk_charge_);
  if (is_registered_) engine_.unregister_memory(read_staging().span());
}

bool KvStore::has_lower_pages() const noexcept {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return group.plan.lower_pages() > 0; });
}

std::vector<std::span<std::byte>> KvStore::memory() const {
  std::vector<std::span<std::byte>> out;
  for (const Group& group : groups_) out.push_back(group.pages.span());
  return out;
}

std::vector<std::span<std::byte>> KvStore::host_memory() const {
  std::vector<std::span<std::byte>> out;
  for (const Group& group : groups_) out.push_back(group.host_pages.span());
  return out;
}

std::vector<std::span<std::byte>> KvStore::swap_memory() const {
  std::vector<std::span<std::byte>> out;
  for (const Group& group : groups_) out.push_back(group.swap.span());
  return out;
}

int64_t KvStore::count(const MicroBatch& batch, int32_t group, bool StagedPage::*flag,
                       bool only_disk) noexcept {
  int64_t pages = 0;
  for (const StagedPage& page : batch.staged[static_cast<size_t>(group)].pages)
    if (page.*flag && (!only_disk || page.tier == PageTier::kDisk)) ++pages;
  return pages;
}

int64_t KvStore::load_bytes(const MicroBatch& batch, int32_t group) const noexcept {
  return count(batch, group, &StagedPage::has_history, true) * of(group).block_page_bytes;
}

int64_t KvStore::store_bytes(const MicroBatch& batch, int32_t group) const noexcept {
  return count(batch, group, &StagedPage::is_changed, true) * of(group).block_page_bytes;
}

int64_t KvStore::up_bytes(const MicroBatch& batch, int32_t group) const noexcept {
  if (stays_below(batch, group)) return 0;
  return count(batch, group, &StagedPage::has_history, false) * of(group).plan.page_bytes;
}

int64_t KvStore::shared_load_bytes(const MicroBatch& batch, int32_t group) const noexcept {
  return count(batch, group, &StagedPage::is_read, true) * of(group).block_page_bytes;
}

int64_t KvStore::shared_up_bytes(const MicroBatch& batch, int32_t group) const noexcept {
  if (stays_below(batch, group)) return 0;
  return count(batch, group, &StagedPage::is_read, false) * of(group).plan.page_bytes;
}

int64_t KvStore::down_bytes(const MicroBatch& batch, int32_t group) const noexcept {
  if (stays_below(batch, group)) return 0;
  return count(batch, group, &StagedPage::is_changed, false) * of(group).plan.page_bytes;
}

int64_t KvStore::layer_bytes(int32_t group) const noexcept {
  const policy::KvPlan& kv = of(group).plan;
  return kv.memory_pages * kv.page_bytes;
}

// Where a page lives that is not on disk.
std::byte* KvStore::own_address(const Group& group, const PageRef& page, int64_t layer) noexcept {
  const policy::KvPlan& kv = group.plan;
  return page.tier == PageTier::kCompute
             ? group.pages.data() + (layer * kv.memory_pages + page.slot) * kv.page_bytes
             : group.host_pages.data() + (layer * kv.host_pages + page.slot) * kv.page_bytes;
}

io::Extent KvStore::extent_of(const Group& group, const PageRef& page, int64_t layer,
                              std::byte* memory) noexcept {
  return {group.file, (layer * group.plan.disk_pages + page.slot) * group.block_page_bytes,
          group.block_page_bytes, memory};
}

bool KvStore::is_in_host_memory(const PageRef& page) const noexcept {
  return page.tier == PageTier::kHost || (page.tier == PageTier::kCompute && !path_.crosses_link());
}

void KvStore::read_layers(const Group& group, const PageRef& page, int64_t first, int64_t count,
                          std::byte* to, Device* device) {
  const int64_t bytes = group.plan.page_bytes;
  const auto for_each = [&](const auto& take) {
    for (int64_t i = 0; i < count; ++i) take(first + i, to + i * group.block_page_bytes);
  };
  if (page.tier == PageTier::kDisk) {
    std::vector<io::Extent> extents;
    for_each([&](int64_t layer, std::byte* one) {
      extents.push_back(extent_of(group, page, layer, one));
    });
    engine_.read_now(extents);
  } else if (is_in_host_memory(page)) {
    for_each([&](int64_t layer, std::byte* one) {
      std::memcpy(one, own_address(group, page, layer), static_cast<size_t>(bytes));
    });
  } else {
    device->transfer(Direction::kDown, count * bytes, [&](const Device::Copy& copy) {
      for_each([&](int64_t layer, std::byte* one) {
        copy(one, own_address(group, page, layer), bytes);
      });
    });
  }
}

void KvStore::write_layers(const Group& group, const PageRef& page, int64_t first, int64_t count,
                           const std::byte* from, Device* device) {
  const int64_t bytes = group.plan.page_bytes;
  const auto for_each = [&](const auto& take) {
    for (int64_t i = 0; i < count; ++i) take(first + i, from + i * group.block_page_bytes);
  };
  if (page.tier == PageTier::kDisk) {
    std::vector<io::Extent> extents;
    for_each([&](int64_t layer, const std::byte* one) {
      extents.push_back(extent_of(group, page, layer, const_cast<std::byte*>(one)));
    });
    engine_.write_now(extents);
  } else if (is_in_host_memory(page)) {
    for_each([&](int64_t layer, const std::byte* one) {
      std::memcpy(own_address(group, page, layer), one, static_cast<size_t>(bytes));
    });
  } else {
    device->transfer(Direction::kUp, count * bytes, [&](const Device::Copy& copy) {
      for_each([&](int64_t layer, const std::byte* one) {
        copy(own_address(group, page, layer), one, bytes);
      });
    });
  }
}

void KvStore::copy_page(int32_t group_index, const PageRef& from, const PageRef& to,
                        Device* device) {
  const Group& group = of(group_index);
  const int64_t layers = group.plan.num_layers;
  const int64_t block = group.block_page_bytes;
  const bool is_saved = to.tier == PageTier::kSwap, is_restored = from.tier == PageTier::kSwap;
  const bool is_in_memory = (is_saved || is_restored) && swaps_to_memory();
  // In the swap space a page's layers lie one behind the other: one request for many.
  const int64_t together =
      is_in_memory ? layers : std::clamp<int64_t>(kMostBetween / block, 1, layers);
  if (!is_in_memory && between_.size() < together * block) {
    between_ = {};
    const int64_t bytes = round_up(together * block, 4096);
    between_memory_.emplace("memory of pages under way", bytes,
                            device ? device->host_memory_source() : nullptr);
    between_ = between_memory_->allocate(bytes, "pages under way");
  }
  const int64_t swapped = (is_saved ? to.slot : from.slot) * layers * block;
  for (int64_t first = 0; first < layers; first += together) {
    const int64_t count = std::min(together, layers - first);
    const int64_t at = swapped + first * block;
    std::byte* bytes = is_in_memory ? group.swap.data() + at : between_.data();
    const io::Extent in_file{group.swap_file, at, count * block, bytes};
    if (is_restored && !swaps_to_memory()) engine_.read_now({{in_file}});
    if (!is_restored) read_layers(group, from, first, count, bytes, device);
    if (!is_saved) write_layers(group, to, first, count, bytes, device);
    if (is_saved && !swaps_to_memory()) engine_.write_now({{in_file}});
  }
}

std::byte* KvStore::staged_address(const Group& group, int32_t slot, int64_t index) const noexcept {
  return staging_.data() + slot * slot_bytes_ + index * group.plan.staged_page_bytes();
}

// Where the bytes of a page below the device are in host memory.
std::byte* KvStore::lower_address(const Group& group, const StagedPage& page, int64_t layer,
                                  int32_t slot) const noexcept {
  if (page.tier == PageTier::kHost) return own_address(group, {page.tier, page.slot}, layer);
  return host_staging_.data() + slot * host_slot_bytes_ + page.disk_index * group.block_page_bytes;
}

std::vector<io::Extent> KvStore::extents(const MicroBatch& batch, bool StagedPage::*flag,
                                         const StatePlace& at, int32_t slot) const {
  const Group& group = of(at.group);
  const std::vector<StagedPage>& staged = batch.staged[static_cast<size_t>(at.group)].pages;
  std::vector<io::Extent> out;
  for (size_t i = 0; i < staged.size(); ++i) {
    const StagedPage& page = staged[i];
    if (page.tier != PageTier::kDisk || !(page.*flag)) continue;
    std::byte* memory = path_.stops_between() > 0
                            ? lower_address(group, page, at.layer, slot)
                            : staged_address(group, slot, static_cast<int64_t>(i));
    out.push_back(extent_of(group, {page.tier, page.slot}, at.layer, memory));
  }
  return out;
}

void KvStore::load(const MicroBatch& batch, const StatePlace& at, int32_t slot,
                   io::Completion done) {
  const auto pages = extents(batch, loaded_by(at), at, slot);
  if (pages.empty()) return done(nullptr);
  engine_.read(pages, std::move(done));
}

void KvStore::store(const MicroBatch& batch, const StatePlace& at, int32_t slot,
                    io::Completion done) {
  const auto pages = extents(batch, &StagedPage::is_changed, at, slot);
  if (pages.empty()) return done(nullptr);
  engine_.write(pages, std::move(done));
}

void KvStore::copy_up(const MicroBatch& batch, const StatePlace& at, int32_t slot,
                      const Device::Copy& copy) const {
  const Group& group = of(at.group);
  const std::vector<StagedPage>& staged = batch.staged[static_cast<size_t>(at.group)].pages;
  for (size_t i = 0; i < staged.size(); ++i)
    if (staged[i].*loaded_by(at))
      copy(staged_address(group, slot, static_cast<int64_t>(i)),
           lower_address(group, staged[i], at.layer, slot), group.plan.page_bytes);
}

void KvStore::copy_down(const MicroBatch& batch, const StatePlace& at, int32_t slot,
                        const Device::Copy& copy) const {
  const Group& group = of(at.group);
  const std::vector<StagedPage>& staged = batch.staged[static_cast<size_t>(at.group)].pages;
  for (size_t i = 0; i < staged.size(); ++i)
    if (staged[i].is_changed)
      copy(lower_address(group, staged[i], at.layer, slot),
           staged_address(group, slot, static_cast<int64_t>(i)), group.plan.page_bytes);
}

void KvStore::page_addresses(const MicroBatch& batch, const Chunk& chunk, const StatePlace& at,
                             int32_t slot, bool on_host, std::vector<std::byte*>& out) const {
  const Group& group = of(at.group);
  const auto index = static_cast<size_t>(at.group);
  const PagesOfRun pages = pages_of_run(chunk.first_position, chunk.count, page_tokens_,
                                        group.plan.state.first_seen(chunk.first_position));
  const PageTable& table = chunk.sequence->pages.groups[index].pages;
  const std::vector<StagedPage>& below = batch.staged[index].pages;
  int64_t staged = chunk.first_staged[index];
  out.insert(out.end(), static_cast<size_t>(pages.begin), nullptr);
  for (int64_t page = pages.begin; page < pages.end; ++page) {
    const PageRef& ref = table[static_cast<size_t>(page)];
    if (ref.tier == PageTier::kCompute) {
      out.push_back(own_address(group, ref, at.layer));
    } else if (on_host) {
      const StagedPage& lower = below[static_cast<size_t>(staged++)];
      SLUICE_ASSERT(lower.tier == PageTier::kHost ||
                        (slot >= 0 && lower.disk_index < group.plan.host_slot_pages),
                    "the plan sizes the staging slots");
      out.push_back(lower_address(group, lower, at.layer, slot));
    } else {
      SLUICE_ASSERT(slot >= 0 && staged < group.plan.slot_pages,
                    "the plan sizes the staging slots");
      out.push_back(staged_address(group, slot, staged++));
    }
  }
}

KvStore::StatePages KvStore::state_pages(const Chunk& chunk, const StatePlace& at,
                                         int32_t slot) const {
  const Group& group = of(at.group);
  const auto index = static_cast<size_t>(at.group);
  const PageTable& table = chunk.sequence->pages.groups[index].pages;
  const int64_t end = int64_t{chunk.first_position} + chunk.count;
  int64_t staged = chunk.first_staged[index];
  StatePages out;
  for_each_page(group.plan.state, chunk.first_position, chunk.count, page_tokens_,
                [&](int64_t page, bool has_history, bool is_changed) {
                  const PageRef& ref = table[static_cast<size_t>(page)];
                  const bool is_here = ref.tier == PageTier::kCompute;
                  SLUICE_ASSERT(is_here || (slot >= 0 && staged < group.plan.slot_pages),
                                "the plan sizes the staging slots");
                  std::byte* address = is_here ? own_address(group, ref, at.layer)
                                               : staged_address(group, slot, staged++);
                  if (has_history) out.from = address;
                  if (!is_changed) return;
                  if ((page + 1) * page_tokens_ >= end) {
                    out.to = address;
                  } else {
                    out.kept = (page + 1) * page_tokens_ - chunk.first_position;
                    out.kept_to = address;
                  }
                });
  return out;
}

std::byte* KvStore::kept_fresh(const StatePlace& at) const noexcept {
  const Group& group = of(at.group);
  const std::vector<int64_t>& layers = group.plan.read_layers;
  const auto found = std::find(layers.begin(), layers.end(), at.layer);
  if (found == layers.end()) return nullptr;
  return group.fresh.data() + (found - layers.begin()) * kept_fresh_pages_ * group.plan.page_bytes;
}

void KvStore::fresh_addresses(const StatePlace& at, int64_t first, int64_t pages,
                              std::vector<std::byte*>& out) const {
  std::byte* const kept = kept_fresh(at);
  SLUICE_ASSERT(first + pages <= (kept ? kept_fresh_pages_ : fresh_pages_),
                "the plan sizes the pages of fresh prompts");
  for (int64_t page = first; page < first + pages; ++page)
    out.push_back((kept ? kept : fresh_.data()) + page * of(at.group).plan.page_bytes);
}

}  // namespace sluice
