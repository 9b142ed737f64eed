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

/// Rows [0, resident_rows) are packed or plain in memory; the rest lie plain at `streamed`.
struct MatrixView {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t resident_rows = 0;
  const std::byte* packed = nullptr;    ///< packed resident rows, or null
  const std::byte* resident = nullptr;  ///< plain resident rows (a tied table), or null
  const std::byte* streamed = nullptr;  ///< plain, any alignment of one element
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

  /// Reads and packs everything resident, through `staging` (at least load_staging_bytes), while
  /// `threads` threads give the memory its pages. Errors: kFile, kCancelled.
  void load_resident(std::span<std::byte> staging, int threads,
                     const std::function<void(const LoadProgress&)>& progress,
                     std::stop_token cancel);

  /// Starts reading a slice of a sublayer's streamed rows to its place in the ring.
  void read_slice(const Task& task, io::Completion done);
  /// Bytes that the sublayer takes in the ring.
  int64_t streamed_bytes(size_t sublayer) const noexcept { return streams_[sublayer].bytes; }
  int64_t ring_bytes() const noexcept { return ring_.size(); }

  /// The matrix, its streamed rows at `ring_offset` (of a sublayer in the ring).
  MatrixView matrix(size_t sublayer, size_t weight, int64_t ring_offset) const;
  /// The vector in f32.
  const float* vector(size_t sublayer, size_t weight) const;
  /// out [count, cols] f32 = rows `ids` of the table. `staging` for rows on disk
  /// (kGatherStagingRows windows).
  void gather(size_t sublayer, size_t weight, std::span<const int32_t> ids, float* out,
              std::span<std::byte> staging);

  int64_t gathered_bytes() const noexcept { return gathered_bytes_; }
  static int64_t gather_staging_bytes(const ModelShape& model);
  /// Two halves that each take a granule of the widest rows, and up to 8 MiB.
  static int64_t load_staging_bytes(const ModelShape& model);

  static constexpr int64_t kGatherStagingRows = 64;

 private:
  struct Run {  // a contiguous aligned range of one file
    io::FileId file;
    int64_t offset;
    int64_t bytes;
    int64_t required_bytes;
    int64_t ring_position;
  };
  struct Stream {
    std::vector<Run> runs;
    int64_t bytes = 0;
    std::vector<int64_t> weight_position;  // [weight] of its first streamed row in the stream
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
  void lay_out_stream(size_t sublayer);
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
  std::vector<Stream> streams_;
  Buffer resident_;
  Buffer vectors_;
  Buffer ring_;
  int64_t gathered_bytes_ = 0;
};

}  // namespace sluice
