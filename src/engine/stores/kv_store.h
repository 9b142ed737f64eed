#pragma once
// The bytes of the KV cache: pages where the tokens are computed, pages in host memory below a
// device, pages in an offload file, and the staging slots through which the lower ones pass; and
// the swap space, where pages wait that nobody reads: host memory below a device, else a file. All
// of it by group of layers that keep the same; a page of one layer is
// [KV heads][K, V][page_tokens][width] of the KV element type, or a recurrent state. Staging slots
// are every group's. Which pages there are is StatePools' business. Transfers run on their lanes,
// page pointers are read on the compute lanes; the schedule keeps them apart.
#include <memory>
#include <string>
#include <vector>

#include "io/async/file_engine.h"
#include "policy/plan.h"
#include "src/base/arena.h"
#include "src/device/device.h"
#include "src/engine/passes/pass_plan.h"

namespace sluice {

class KvStore {
 public:
  /// Reserves everything; `compute` is the memory of what computes, `host` the same arena without a
  /// device. Errors: kResource (memory or disk space), kFile (offload folder).
  KvStore(const policy::Plan& plan, io::FileEngine& engine, const std::string& offload_dir,
          int64_t swap_bytes, Arena& compute, Arena& host, Arena& disk);
  ~KvStore();

  /// Per layer of a group, what a micro-batch reads from and writes to disk.
  int64_t load_bytes(const MicroBatch& batch, int32_t group) const noexcept;
  int64_t store_bytes(const MicroBatch& batch, int32_t group) const noexcept;
  /// Likewise what it sends up to the device and down again; of what is attended 0 when the host
  /// does that.
  int64_t up_bytes(const MicroBatch& batch, int32_t group) const noexcept;
  int64_t down_bytes(const MicroBatch& batch, int32_t group) const noexcept;
  /// Likewise of a layer that reads what another of the group keeps: it stores nothing.
  int64_t shared_load_bytes(const MicroBatch& batch, int32_t group) const noexcept;
  int64_t shared_up_bytes(const MicroBatch& batch, int32_t group) const noexcept;

  void load(const MicroBatch& batch, const StatePlace& at, int32_t slot, io::Completion done);
  void store(const MicroBatch& batch, const StatePlace& at, int32_t slot, io::Completion done);
  /// Copies between the device's staging slot and where the pages live in host memory (their own
  /// place, or the host's staging slot for those on disk).
  void copy_up(const MicroBatch& batch, const StatePlace& at, int32_t slot,
               const Device::Copy& copy) const;
  void copy_down(const MicroBatch& batch, const StatePlace& at, int32_t slot,
                 const Device::Copy& copy) const;

  /// Addresses of the chunk's pages in a layer, appended to `out`, for attention on the device (all
  /// of those below in staging slot `slot`) or on the host (those on disk in the host's slot); null
  /// where nothing of the chunk sees a page.
  void page_addresses(const MicroBatch& batch, const Chunk& chunk, const StatePlace& at,
                      int32_t slot, bool on_host, std::vector<std::byte*>& out) const;
  /// Of a layer with a recurrent state: where the chunk's lies before its first token (null: there
  /// is none) and behind its last, and behind its first `kept` tokens too, where a page ends (0:
  /// none does). All where the device computes, those below it in staging slot `slot`.
  struct StatePages {
    std::byte* from = nullptr;
    std::byte* to = nullptr;
    int64_t kept = 0;
    std::byte* kept_to = nullptr;
  };
  StatePages state_pages(const Chunk& chunk, const StatePlace& at, int32_t slot) const;
  /// How far apart a page's layers are, of pages that live where the device computes.
  int64_t layer_bytes(int32_t group) const noexcept;
  /// Whether pages for fresh prompts stay there until a pass has ended, as later layers read them.
  bool keeps_fresh(const StatePlace& at) const noexcept { return kept_fresh(at) != nullptr; }
  /// Addresses of `pages` pages for fresh prompts, from the `first`th on (of the micro-batch; where
  /// they are kept, of the pass).
  void fresh_addresses(const StatePlace& at, int64_t first, int64_t pages,
                       std::vector<std::byte*>& out) const;

  /// Copies a page's tokens of every layer of a group into another page, wherever both are. Between
  /// passes: no store may be under way. `device` as the arenas given. Errors: kFile, kDevice.
  void copy_page(int32_t group, const PageRef& from, const PageRef& to, Device* device);
  int64_t swap_pages(int32_t group) const noexcept { return of(group).swap_pages; }
  /// Whether some pages live below what computes.
  bool has_lower_pages() const noexcept;

  std::vector<std::span<std::byte>> memory() const;
  std::vector<std::span<std::byte>> host_memory() const;
  std::vector<std::span<std::byte>> swap_memory() const;

 private:
  struct Group {
    policy::KvPlan plan;
    int64_t block_page_bytes = 0;  // a page in whole blocks of the disk
    int64_t swap_pages = 0;
    Buffer pages;       // [layer][page]
    Buffer host_pages;  // [layer][page]
    Buffer swap;        // [page][layer], where it is host memory
    Buffer fresh;       // [layer that is read][page]
    io::FileId file = -1;
    io::FileId swap_file = -1;
  };
  const Group& of(int32_t group) const noexcept { return groups_[static_cast<size_t>(group)]; }
  void place(Group& group, int64_t swap_bytes, const std::string& offload_dir, Arena& compute,
             Arena& host);
  // Layers [first, first + count) of a page, one behind the other in blocks of the disk.
  void read_layers(const Group& group, const PageRef& page, int64_t first, int64_t count,
                   std::byte* to, Device* device);
  void write_layers(const Group& group, const PageRef& page, int64_t first, int64_t count,
                    const std::byte* from, Device* device);
  bool is_in_host_memory(const PageRef& page) const noexcept;
  // What the disk fills: the staging slots at the end of its hop.
  const Buffer& read_staging() const noexcept {
    return path_.stops_between() > 0 ? host_staging_ : staging_;
  }
  // Below a link there is memory that nobody computes in.
  bool swaps_to_memory() const noexcept { return path_.crosses_link(); }
  static std::byte* own_address(const Group& group, const PageRef& page, int64_t layer) noexcept;
  static io::Extent extent_of(const Group& group, const PageRef& page, int64_t layer,
                              std::byte* memory) noexcept;
  std::byte* staged_address(const Group& group, int32_t slot, int64_t index) const noexcept;
  std::byte* lower_address(const Group& group, const StagedPage& page, int64_t layer,
                           int32_t slot) const noexcept;
  bool stays_below(const MicroBatch& batch, int32_t group) const noexcept {
    return !path_.crosses_link() ||
           (batch.lower_rows > 0 && !of(group).plan.state.is_recurrent());  // the host attends
  }
  std::byte* kept_fresh(const StatePlace& at) const noexcept;
  // What a layer's load brings.
  static bool StagedPage::*loaded_by(const StatePlace& at) noexcept {
    return at.is_reader ? &StagedPage::is_read : &StagedPage::has_history;
  }
  static int64_t count(const MicroBatch& batch, int32_t group, bool StagedPage::*flag,
                       bool only_disk) noexcept;
  std::vector<io::Extent> extents(const MicroBatch& batch, bool StagedPage::*flag,
                                  const StatePlace& at, int32_t slot) const;

  io::FileEngine& engine_;
  Arena& disk_;
  Path path_;  // from disk to where it is computed
  int64_t page_tokens_;
  int64_t slot_bytes_;
  int64_t host_slot_bytes_;
  int64_t fresh_pages_;
  int64_t kept_fresh_pages_;
  int64_t disk_charge_ = 0;  // of the pages and the swap space
  std::vector<Group> groups_;
  Buffer staging_;       // [slot][page in micro-batch]
  Buffer fresh_;         // [page]
  Buffer host_staging_;  // [slot][page on disk in micro-batch]
  bool is_registered_ = false;
  // What passes from one place to another: in memory that the device's copies may go from and to.
  std::optional<Arena> between_memory_;
  Buffer between_;
};

}  // namespace sluice
