#pragma once
// The weights of a run: resident row shards, vectors, resident table rows, shards in host memory
// below a device (some that the CPU multiplies, others that are sent up), and the rings through
// which the streamed rows of each sublayer pass. All are multiplied as they lie in the checkpoint.
// Loading happens once on the caller's thread; transfers
// are started by their lanes; the compute lanes only look.
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "io/async/file_engine.h"
#include "kernels/linear.h"
#include "policy/plan.h"
#include "src/base/arena.h"
#include "src/device/device.h"
#include "src/engine/stores/foreign_arrivals.h"
#include "src/model/bound_model.h"
#include "src/schedule/schedule.h"

namespace sluice {

/// Some consecutive rows, at any alignment of one element.
struct StreamedRows {
  const std::byte* data = nullptr;
  int64_t rows = 0;
};

/// Rows [0, resident_rows) are where they are computed; then come inplace_rows that the host
/// multiplies in this class of pass; the rest follow in `streamed`, in order.
struct MatrixView {
  WeightFormat format;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t resident_rows = 0;
  const std::byte* resident = nullptr;
  int64_t inplace_rows = 0;
  const std::byte* inplace = nullptr;  ///< in host memory
  std::vector<StreamedRows> streamed;
  int64_t expert_rows = 0;   ///< of experts' matrices: of each, and bytes from one to the next,
  int64_t expert_bytes = 0;  ///< wherever they lie
  /// Of a layer whose experts have slots, instead of all that: [expert] where it is; null: it is
  /// in no slot, and was not loaded.
  std::vector<const std::byte*> experts;
  std::vector<bool> are_inplace;  ///< [expert] of these, those that the host multiplies

  /// One expert's matrix, wherever it lies.
  MatrixView expert(int64_t index) const;
};

/// How much of the resident weights is there.
struct LoadProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  double seconds = 0;
};

/// Who reads the checkpoint's files; they outlive the store.
struct WeightReaders {
  io::FileEngine& engine;
  io::FileEngine& gather;            ///< single table rows, beside the streaming
  io::FileEngine* direct = nullptr;  ///< into device memory, where the plan says so
  int repack_threads = 1;            ///< for rows that another tool has packed, as they come
};

class WeightStore {
 public:
  /// Reserves all memory; arenas as KvStore. Errors: kResource, kFile.
  WeightStore(const BoundModel& model, const policy::Plan& plan, const WeightReaders& readers,
              Device* device, Arena& compute_memory, Arena& host_memory);
  ~WeightStore();

  /// [sublayer][slot]: experts; empty of sublayers whose experts have no slots.
  using HeldLists = std::vector<std::vector<int32_t>>;
  /// Reads everything resident, through `staging` (at least load_staging_bytes of the model).
  /// Weights that other tools have packed become ours here. Errors: kFile, kCancelled.
  void load_resident(std::span<std::byte> staging, const HeldLists& held,
                     const std::function<void(const LoadProgress&)>& progress,
                     std::stop_token cancel);

  /// Of that, experts into their slots; `loaded` is told bytes. The same errors.
  void load_slots(const HeldLists& held, const std::function<void(int64_t)>& loaded,
                  const std::stop_token& cancel);

  std::span<std::byte> resident_memory() const noexcept { return resident_.span(); }
  std::span<std::byte> slot_memory() const noexcept { return experts_.slots.span(); }  ///< host's
  std::span<std::byte> inplace_memory() const noexcept { return host_.inplace.span(); }
  std::span<std::byte> host_memory() const noexcept { return host_.rows.span(); }

  /// Starts reading a part of a sublayer's streamed rows to its place in the ring that the disk
  /// fills: the host's below a device, the device's where the disk reaches it.
  void read_part(const Task& task, io::Completion done);
  /// Copies a part from host memory (its home, or the host's ring) to the device's ring.
  void copy_part(const Task& task, const Device::Copy& copy) const;
  /// What really moves for a part: no more than the plan's size.
  int64_t moved_bytes(const Task& task) const noexcept;
  int64_t ring_bytes() const noexcept { return ring_.size(); }
  int64_t host_ring_bytes() const noexcept { return host_.ring.size(); }

  /// The matrix, for a task whose work says where the sublayer's parts lie in the ring, and which
  /// experts are in slots; the host multiplies what was not loaded.
  MatrixView matrix(size_t sublayer, size_t weight, const ComputeWork& work) const;
  /// Whether some of a sublayer's experts are in slots (of all its experts' matrices).
  bool has_slots(size_t sublayer) const noexcept { return experts_.layers[sublayer].experts > 0; }
  size_t pass_classes() const noexcept { return inplace_.size(); }
  /// Whether passes of a class multiply some of a matrix's rows where it is computed, not in place.
  bool has_own_rows(size_t pass_class, size_t sublayer, size_t weight) const noexcept;
  /// The vector in f32.
  const float* vector(size_t sublayer, size_t weight) const;
  /// Rows [0, rows) of a table, where they are computed.
  struct ResidentTable {
    const std::byte* data;
    int64_t rows;
    DType dtype;
  };
  ResidentTable resident_table(size_t sublayer, size_t weight) const;
  /// out [count, cols] f32 = rows `ids` of the table. `staging` for rows on disk
  /// (gather_staging_bytes). With a device whose memory the host can't read: none of the resident.
  void gather(size_t sublayer, size_t weight, std::span<const int32_t> ids, float* out,
              std::span<std::byte> staging);

  /// Of streamed rows that another tool has packed.
  ForeignArrivals::Repacked repacked() const {
    return arrivals_ ? arrivals_->repacked() : ForeignArrivals::Repacked{};
  }
  /// Whether passes read rows from disk: streamed, by experts or by ids of a table.
  bool reads_in_passes() const noexcept;
  /// Errors: kFile where a file was written to since the model was opened: what was computed of it
  /// may be of either state.
  void check_unchanged() const { watched_.check(); }
  int64_t gathered_bytes() const noexcept { return gathered_bytes_; }
  static int64_t gather_staging_bytes(const ModelShape& model);
  /// Two halves that each take a granule of the widest rows, and up to 8 MiB.
  static int64_t load_staging_bytes(const ModelShape& model);
  /// The same, or where weights are repacked as they are loaded the largest piece as it lies and as
  /// it becomes.
  static int64_t load_staging_bytes(const BoundModel& model);

  /// Table rows that are read at a time, at most.
  static constexpr int64_t kGatherStagingRows = 64;

 private:
  struct Range {  // rows that lie together in a file
    size_t file = 0;
    int64_t offset = 0;  // of the aligned range that is read
    int64_t bytes = 0;
    int64_t skipped_bytes = 0;  // before the first row
    int64_t rows = 0;
    int64_t row_bytes = 0;  // of all of them
    int64_t place = 0;      // of what is read, behind that of the range before
    int64_t row_place = 0;  // of the rows alone, behind those before
  };
  struct Part {  // rows of one matrix, moved together
    size_t weight;
    int64_t rows;
    bool from_disk;
    bool is_inplace;              // other classes multiply it where it lies, in host_.inplace
    int64_t bytes;                // that move
    int64_t offset = 0;           // of a part in host memory, there
    int64_t required_bytes = 0;   // of its rows
    int64_t packed_row = -1;      // the first, of rows that arrive as another tool has them
    int32_t expert = -1;          // whose it is, where experts have slots
    std::vector<Range> ranges{};  // of others from disk: several where experts lie apart

    // Before the first row, of one that lies in a slot or a ring as the disk gave it.
    int64_t skipped_bytes() const noexcept {
      return ranges.empty() ? 0 : ranges.front().skipped_bytes;
    }
  };
  const Part& part_of(const Task& task) const {
    return parts_[static_cast<size_t>(task.sublayer)][static_cast<size_t>(task.part_load().part)];
  }
  struct Piece {  // rows that are read and taken together, all with one home
    size_t sublayer, weight;
    int64_t row, rows;
    io::FileId file;
    int64_t offset, bytes;  // there
  };
  struct Weight {
    policy::RowSplit split;
    int64_t resident_offset = 0;  // in resident_; in vectors_ (floats)
    int64_t inplace_offset = 0;   // in host_.inplace
    int64_t host_offset = 0;      // in host_.rows
    int64_t slots_offset = 0;     // in experts_.slots: of the first
    int64_t slot_bytes = 0;       // of each
    size_t first_part = 0;        // of the first expert that takes turns in slots
  };

  void reserve(const policy::Plan& plan, Arena& compute_memory, Arena& host_memory);
  void lay_out_parts(const policy::Plan& plan, size_t sublayer);
  Part host_part(const policy::PlanPart& planned, size_t sublayer) const;
  Part disk_part(const policy::PlanPart& planned, size_t sublayer) const;
  /// A weight's rows, but of experts that have slots those alone that always are where they are
  /// computed.
  policy::RowSplit loaded_rows(size_t sublayer, size_t weight) const noexcept;
  std::vector<Piece> resident_pieces(int64_t piece_bytes) const;
  /// A slot of the sublayer `home`'s, or where that is -1 of the one whose part it is.
  std::byte* slot_of(const Part& part, size_t sublayer, int32_t slot, int32_t home = -1) const;
  const Part& part_of_expert(size_t sublayer, int32_t first_part, int32_t expert) const;
  void place_slots(const policy::Plan& plan, size_t sublayer, size_t weight, int64_t& slot_bytes);
  void add_extents(const Part& part, std::byte* to, std::vector<io::Extent>& extents) const;
  void find_experts(size_t sublayer, size_t weight, const ComputeWork& work,
                    MatrixView& view) const;
  void add_pieces(size_t sublayer, size_t weight, int64_t row, int64_t rows, int64_t piece_bytes,
                  std::vector<Piece>& pieces) const;
  // Weights that other tools have packed (weight_store_foreign.cc).
  int64_t repacked_bytes() const;
  void load_repacked(std::span<std::byte> staging, const std::function<void(int64_t)>& loaded,
                     const std::stop_token& cancel);
  /// Of experts' matrices one's.
  void repack(size_t sublayer, size_t weight, int64_t expert, std::span<std::byte> staging);
  void repack_by_rows(size_t sublayer, size_t weight, int64_t expert, std::span<std::byte> staging);
  void repack_by_columns(size_t sublayer, size_t weight, int64_t expert,
                         std::span<std::byte> staging);
  ForeignBytes read_piece(const ForeignMatrix& matrix, const ForeignRun& piece,
                          std::span<std::byte> staging);
  void take_matrix(size_t sublayer, size_t weight, int64_t expert, const std::byte* made);
  int64_t home_rows(size_t sublayer, size_t weight, int64_t expert) const noexcept;
  Part packed_part(const policy::PlanPart& planned, size_t sublayer, int64_t slot_bytes) const;
  void read_packed(const Part& part, size_t sublayer, std::byte* to, io::Completion done);
  void load_packed_slots(size_t sublayer, int32_t first_part, std::span<const int32_t> held);
  void gather_packed(size_t sublayer, size_t weight, const std::byte* row, float* out) const;
  void take_rows(size_t sublayer, size_t weight, int64_t row, int64_t rows,
                 const std::byte* source);
  void place(std::byte* to, const std::byte* source, int64_t bytes) const;
  io::FileId file(const io::TensorEntry& tensor) const {
    return files_[static_cast<size_t>(tensor.file_index)];
  }
  /// The ring that the disk fills, if host memory.
  const Buffer& read_ring() const noexcept { return device_ ? host_.ring : ring_; }

  const BoundModel& model_;
  io::WatchedFiles watched_;
  io::FileEngine& engine_;
  io::FileEngine& gather_engine_;
  io::FileEngine* direct_engine_;  // null: what goes to a device passes through host_.ring
  std::vector<io::FileId> files_;
  std::vector<io::FileId> gather_files_;
  std::vector<io::FileId> direct_files_;
  std::vector<std::vector<Weight>> weights_;
  std::vector<std::shared_ptr<const policy::InplaceRows>> inplace_;  // [class]
  std::vector<std::vector<Part>> parts_;  // [sublayer], weight by weight, rows rising
  struct {
    SharedList<ScheduleExperts> layers;  // [sublayer]
    Buffer slots;                        // of experts, each as it lies on disk
  } experts_;
  Device* device_;  // null: the CPU itself
  Buffer resident_;
  Buffer vectors_;
  Buffer ring_;
  struct {
    Buffer inplace;
    Buffer rows;
    Buffer ring;
  } host_;  // below a device
  int64_t gathered_bytes_ = 0;
  std::unique_ptr<ForeignArrivals> arrivals_;  // null: all streamed rows come as they are computed
};

}  // namespace sluice
