#pragma once
// The bytes of the KV cache: pages where the tokens are computed, pages in host memory below a
// device, pages in an offload file, and the staging slots through which the lower ones pass; and
// the swap space, where pages wait that nobody reads: host memory below a device, else a file. A
// page of one layer is [num_kv_heads][K, V][page_tokens][head_dim] of the KV element type. Which
// pages there are is PagePool's business. Transfers run on their lanes, page pointers are read on
// the compute lanes; the schedule keeps them apart.
#include <memory>
#include <string>
#include <vector>

#include "io/async/file_engine.h"
#include "io/files/aligned_memory.h"
#include "policy/plan.h"
#include "src/base/arena.h"
#include "src/device/device.h"
#include "src/engine/passes/pass_plan.h"

namespace sluice {

class KvStore {
 public:
  /// Reserves everything; `compute` is the memory of what computes, `host` the same arena without a
  /// device. Errors: kResource (memory or disk space), kFile (offload folder).
  KvStore(const ModelShape& model, const policy::Plan& plan, io::FileEngine& engine,
          const std::string& offload_dir, int64_t swap_bytes, Arena& compute, Arena& host,
          Arena& disk);
  ~KvStore();

  PagePool& pool() noexcept { return pool_; }
  /// Per layer, what a micro-batch reads from and writes to disk.
  int64_t load_bytes(const MicroBatch& batch) const noexcept;
  int64_t store_bytes(const MicroBatch& batch) const noexcept;
  /// Per layer, what it sends up to the device and down again; 0 when the host attends.
  int64_t up_bytes(const MicroBatch& batch) const noexcept;
  int64_t down_bytes(const MicroBatch& batch) const noexcept;

  void load(const MicroBatch& batch, int64_t layer, int32_t slot, io::Completion done);
  void store(const MicroBatch& batch, int64_t layer, int32_t slot, io::Completion done);
  /// Copies between the device's staging slot and where the pages live in host memory (their own
  /// place, or the host's staging slot for those on disk).
  void copy_up(const MicroBatch& batch, int64_t layer, int32_t slot,
               const Device::Copy& copy) const;
  void copy_down(const MicroBatch& batch, int64_t layer, int32_t slot,
                 const Device::Copy& copy) const;

  /// Addresses of the chunk's pages in `layer`, appended to `out`, for attention on the device (all
  /// of those below in staging slot `slot`) or on the host (those on disk in the host's slot).
  void page_addresses(const MicroBatch& batch, const Chunk& chunk, int64_t layer, int32_t slot,
                      bool on_host, std::vector<std::byte*>& out) const;
  /// How far apart a page's layers are, of pages that live where the device computes.
  int64_t layer_bytes() const noexcept { return pages_count_.compute * page_bytes_; }
  /// Addresses of `pages` pages for fresh prompts, from the `first`th on.
  void fresh_addresses(int64_t first, int64_t pages, std::vector<std::byte*>& out) const;

  /// Copies a page's tokens of every layer into another page, wherever both are. Between passes: no
  /// store may be under way. `device` as the arenas given. Errors: kFile, kDevice.
  void copy_page(const PageRef& from, const PageRef& to, Device* device);
  int64_t swap_pages() const noexcept { return swap_pages_; }
  /// Whether some pages live below what computes.
  bool has_lower_pages() const noexcept { return pages_count_.host + pages_count_.disk > 0; }

  std::span<std::byte> memory() const noexcept { return pages_.span(); }
  std::span<std::byte> host_memory() const noexcept { return host_pages_.span(); }
  std::span<std::byte> swap_memory() const noexcept { return swap_.span(); }

 private:
  // Layers [first, first + count) of a page, one behind the other in blocks of the disk.
  void read_layers(const PageRef& page, int64_t first, int64_t count, std::byte* to,
                   Device* device);
  void write_layers(const PageRef& page, int64_t first, int64_t count, const std::byte* from,
                    Device* device);
  bool is_in_host_memory(const PageRef& page) const noexcept;
  // What the disk fills: the staging slots at the end of its hop.
  const Buffer& read_staging() const noexcept {
    return path_.stops_between() > 0 ? host_staging_ : staging_;
  }
  // Below a link there is memory that nobody computes in.
  bool swaps_to_memory() const noexcept { return path_.crosses_link(); }
  std::byte* own_address(const PageRef& page, int64_t layer) const noexcept;
  io::Extent extent_of(const PageRef& page, int64_t layer, std::byte* memory) const noexcept;
  std::byte* staged_address(int32_t slot, int64_t index) const noexcept;
  std::byte* lower_address(const StagedPage& page, int64_t layer, int32_t slot) const noexcept;
  int64_t count(const MicroBatch& batch, bool StagedPage::*flag, bool only_disk) const noexcept;
  std::vector<io::Extent> extents(const MicroBatch& batch, bool StagedPage::*flag, int64_t layer,
                                  int32_t slot) const;

  io::FileEngine& engine_;
  Arena& disk_;
  PagePool pool_;
  Path path_;  // from disk to where it is computed
  int64_t num_layers_;
  int64_t page_tokens_;
  int64_t page_bytes_;
  int64_t staged_page_bytes_;  // as they lie in staging slots and in the file
  PageCounts pages_count_;
  int64_t slot_pages_;
  int64_t host_slot_pages_;
  int64_t fresh_pages_;
  int64_t disk_charge_ = 0;  // of the pages and the swap space
  Buffer pages_;             // [layer][page]
  Buffer staging_;           // [slot][page in micro-batch]
  Buffer fresh_;             // [page]
  Buffer host_pages_;        // [layer][page]
  Buffer host_staging_;      // [slot][page on disk in micro-batch]
  io::FileId file_ = -1;
  int64_t block_page_bytes_;  // a page in whole blocks of the disk
  int64_t swap_pages_ = 0;
  Buffer swap_;  // [page][layer], where it is host memory
  io::FileId swap_file_ = -1;
  io::AlignedMemory between_;  // what passes from one place to another
};

}  // namespace sluice
