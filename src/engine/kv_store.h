#pragma once
// The bytes of the KV cache: pages in memory, pages in an offload file, and staging slots through
// which the latter pass. A page of one layer is [K, V][num_kv_heads][page_tokens][head_dim] of the
// KV element type. Which pages there are is PagePool's business. Transfers run on the disk lanes,
// page pointers are read on the compute lane; the schedule keeps them apart.
#include <memory>
#include <string>
#include <vector>

#include "io/file_engine.h"
#include "policy/plan.h"
#include "src/base/arena.h"
#include "src/engine/pass_plan.h"

namespace sluice {

class KvStore {
 public:
  /// Reserves everything. Errors: kResource (memory or disk space), kFile (offload folder).
  KvStore(const ModelShape& model, const policy::Plan& plan, io::FileEngine& engine,
          const std::string& offload_dir, Arena& memory, Arena& disk);
  ~KvStore();

  PagePool& pool() noexcept { return pool_; }
  /// Per layer, what a micro-batch reads from and writes to disk.
  int64_t load_bytes(const MicroBatch& batch) const noexcept;
  int64_t store_bytes(const MicroBatch& batch) const noexcept;

  void load(const MicroBatch& batch, int64_t layer, int32_t slot, io::Completion done);
  void store(const MicroBatch& batch, int64_t layer, int32_t slot, io::Completion done);

  /// Addresses of the chunk's pages in `layer`, appended to `out`; those on disk are in staging
  /// slot `slot`.
  void page_addresses(const MicroBatch& batch, const Chunk& chunk, int64_t layer, int32_t slot,
                      std::vector<std::byte*>& out) const;

  std::span<std::byte> memory() const noexcept { return pages_.span(); }

 private:
  std::byte* staged_address(int32_t slot, int64_t index) const noexcept;

  io::FileEngine& engine_;
  Arena& disk_;
  PagePool pool_;
  int64_t page_tokens_;
  int64_t page_bytes_;
  int64_t disk_page_bytes_;
  int64_t memory_pages_;
  int64_t disk_pages_;
  int64_t slot_bytes_;
  int64_t disk_charge_ = 0;
  Buffer pages_;    // [layer][memory page]
  Buffer staging_;  // [slot][page in micro-batch]
  io::FileId file_ = -1;
};

}  // namespace sluice
