#pragma once
// The residual stream of every token of a pass, [tokens, hidden_size] f32, kept between sublayers,
// and what is carried beside it ([tokens, ModelShape::carried_columns]; wherever rows lie together,
// behind all of theirs of the residual stream). A policy may put shares of the rows in host memory
// (below a device) and on disk: then each micro-batch's first rows lie where they are computed, and
// the others pass through a staging slot, loaded before and stored after each sublayer.
#include <span>
#include <string>
#include <vector>

#include "io/async/file_engine.h"
#include "policy/plan.h"
#include "src/base/arena.h"
#include "src/device/device.h"
#include "src/engine/passes/pass_plan.h"

namespace sluice {

class HiddenStore {
 public:
  /// Reserves everything. Arenas and errors as KvStore.
  HiddenStore(const ModelShape& model, const policy::Plan& plan, io::FileEngine& engine,
              const std::string& offload_dir, Arena& compute, Arena& host, Arena& disk);
  ~HiddenStore();

  /// Deals the rows of a new pass to the tiers. Each share holds to within one row over the whole
  /// pass.
  void begin_pass(std::span<const std::unique_ptr<MicroBatch>> batches);

  int64_t disk_bytes(size_t batch) const noexcept;
  /// Rows in host memory and on disk, as sent up and down; 0 without a device.
  int64_t up_bytes(size_t batch) const noexcept;
  void load(size_t batch, int32_t slot, io::Completion done);
  void store(size_t batch, int32_t slot, io::Completion done);
  void copy_up(size_t batch, int32_t slot, const Device::Copy& copy) const;
  void copy_down(size_t batch, int32_t slot, const Device::Copy& copy) const;

  /// The micro-batch's rows as up to two contiguous runs, in order.
  struct Piece {
    float* data;
    int64_t rows;
    float* carried;
  };
  std::vector<Piece> pieces(size_t batch, int32_t slot) const;
  /// Whether every micro-batch's rows are one run that stays where it is.
  bool stays_in_memory() const noexcept { return host_share_ + disk_share_ <= 0; }

  std::span<std::byte> memory() const noexcept { return memory_.span(); }

 private:
  struct Placement {
    int64_t memory_row;  // first row in memory_
    int64_t memory_rows;
    int64_t host_row;  // first row in host_rows_
    int64_t host_rows;
    int64_t disk_rows;
    int64_t disk_offset;  // of its region in the file
  };
  int64_t row_bytes() const noexcept { return (hidden_size_ + carried_) * 4; }
  io::Extent extent(size_t batch, int32_t slot) const;
  template <typename Copy>
  void copy_rows(size_t batch, int32_t slot, const Copy& copy) const;

  io::FileEngine& engine_;
  Arena& disk_;
  Path path_;  // from disk to where it is computed
  int64_t hidden_size_;
  int64_t carried_;
  int64_t memory_rows_;
  int64_t host_rows_count_;
  double host_share_;
  double disk_share_;
  int64_t slot_bytes_;
  int64_t disk_charge_ = 0;
  Buffer memory_;
  Buffer staging_;
  Buffer host_rows_;
  Buffer host_staging_;  // of rows on disk, below a device
  io::FileId file_ = -1;
  std::vector<Placement> placements_;
};

}  // namespace sluice
