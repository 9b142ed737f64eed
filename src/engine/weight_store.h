#pragma once
// The weights of a run: resident row shards (packed for the kernels), vectors, resident table rows,
// and the ring through which the streamed rows of each sublayer pass. Streamed rows are multiplied
// as they lie in the checkpoint. Loading happens once on the caller's thread; ring reads are
// started by the disk lane; the compute lane only looks.
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "io/file_engine.h"
#include "kernels/linear.h"
#include "policy/plan.h"
#include "src/base/arena.h"
#include "src/model/bound_model.h"
#include "src/schedule/task.h"

namespace sluice {

/// Some consecutive rows, plain, at any alignment of one element.
struct PlainRows {
  const std::byte* data = nullptr;
  int64_t rows = 0;
};

/// Rows [0, resident_rows) are packed or plain in memory; the rest follow in `streamed`, in order.
struct MatrixView {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t resident_rows = 0;
  const std::byte* packed = nullptr;    ///< packed resident rows, or null
  const std::byte* resident = nullptr;  ///< plain resident rows (a tied table), or null
  std::vector<PlainRows> streamed;
};

struct LoadProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  double seconds = 0;
};

class WeightStore {
 public:
  /// Reserves all memory. `gather` reads single table rows beside the streaming. Errors: kResource,
  /// kFile.
  WeightStore(const BoundModel& model, const policy::Plan& plan, kernels::Compute compute,
              io::FileEngine& engine, io::FileEngine& gather, Arena& memory);
  ~WeightStore();

  /// Reads and packs everything resident, through `staging` (at least load_staging_bytes). Errors:
  /// kFile, kCancelled.
  void load_resident(std::span<std::byte> staging,
                     const std::function<void(const LoadProgress&)>& progress,
                     std::stop_token cancel);

  std::span<std::byte> resident_memory() const noexcept { return resident_.span(); }

  /// Starts reading a part of a sublayer's streamed rows to its place in the ring.
  void read_part(const Task& task, io::Completion done);
  /// Bytes that each part of the sublayer takes in the ring.
  std::vector<int64_t> part_bytes(size_t sublayer) const;
  int64_t ring_bytes() const noexcept { return ring_.size(); }

  /// The matrix; the sublayer's parts lie in the ring at `part_offsets`.
  MatrixView matrix(size_t sublayer, size_t weight, std::span<const int64_t> part_offsets) const;
  /// The vector in f32.
  const float* vector(size_t sublayer, size_t weight) const;
  /// out [count, cols] f32 = rows `ids` of the table. `staging` for rows on disk
  /// (gather_staging_bytes).
  void gather(size_t sublayer, size_t weight, std::span<const int32_t> ids, float* out,
              std::span<std::byte> staging);

  int64_t gathered_bytes() const noexcept { return gathered_bytes_; }
  static int64_t gather_staging_bytes(const ModelShape& model);
  /// Two halves that each take a granule of the widest rows, and up to 8 MiB.
  static int64_t load_staging_bytes(const ModelShape& model);

  /// Table rows that are read at a time, at most.
  static constexpr int64_t kGatherStagingRows = 64;

 private:
  struct Part {  // rows of one matrix, read as one aligned range of its file
    size_t weight;
    int64_t rows;
    io::FileId file;
    int64_t offset;
    int64_t bytes;
    int64_t skipped_bytes;   // before the first row
    int64_t required_bytes;  // up to the end of the last row
  };
  struct Piece {  // rows that are read and packed together
    size_t sublayer, weight;
    int64_t row, rows;
    int64_t offset, bytes;  // in the file
  };
  struct Weight {
    int64_t resident_rows = 0;
    int64_t memory_offset =
        0;  // in resident_, of packed or plain rows; in vectors_ (floats) for vectors
  };

  void reserve(const policy::Plan& plan, Arena& memory);
  void lay_out_parts(size_t sublayer);
  std::vector<Piece> resident_pieces(int64_t piece_bytes) const;
  void take_rows(size_t sublayer, size_t weight, int64_t row, int64_t rows,
                 const std::byte* source);
  io::FileId file(const io::TensorEntry& tensor) const {
    return files_[static_cast<size_t>(tensor.file_index)];
  }

  const BoundModel& model_;
  kernels::Compute compute_;
  io::FileEngine& engine_;
  io::FileEngine& gather_engine_;
  std::vector<io::FileId> files_;
  std::vector<io::FileId> gather_files_;
  std::vector<std::vector<Weight>> weights_;
  std::vector<std::vector<Part>> parts_;  // [sublayer], weight by weight, rows rising
  Buffer resident_;
  Buffer vectors_;
  Buffer ring_;
  int64_t gathered_bytes_ = 0;
};

}  // namespace sluice
