// Weights that other tools have packed: as they are loaded, some rows at a time or whole, repacked
// by all cores and put where the plan wants them; and as they stream.
#include <algorithm>
#include <future>
#include <memory>

#include "kernels/elementwise.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/base/mutex.h"
#include "src/engine/stores/background_read.h"
#include "src/engine/stores/foreign_import.h"
#include "src/engine/stores/panel_quantiser.h"
#include "src/engine/stores/weight_store.h"

namespace sluice {

namespace {
constexpr int64_t kReadAlign = io::kDirectAlignment;

// Rows that are read and repacked together while loading: at least a granule, about 8 MiB.
int64_t rows_at_a_time(const ForeignMatrix& matrix) {
  const int64_t rows =
      round_down(8 * kMiB / std::max<int64_t>(matrix.file_row_bytes, 1), kernels::kRowGranule);
  return std::min(std::max(rows, kernels::kRowGranule), matrix.rows);
}

// Room for so many, wherever they begin, and for what they become.
int64_t staged_run_bytes(const ForeignMatrix& matrix) {
  const int64_t rows = rows_at_a_time(matrix);
  const int64_t read =
      std::min(matrix.rows, rows + 2 * matrix.row_multiple) * matrix.file_row_bytes;
  return round_up(read, kReadAlign) + 2 * kReadAlign +
         round_up(imported_row_bytes(matrix, rows), kReadAlign);
}

// Where the parts of a matrix and what becomes of them lie in staging.
struct RepackLayout {
  std::vector<io::Window> windows;  // [part] in its file
  std::vector<int64_t> places;      // [part]
  int64_t made = 0;
  int64_t made_bytes = 0;

  explicit RepackLayout(const ForeignMatrix& matrix)
      : made_bytes(imported_bytes(matrix, matrix.format)) {
    for (const io::TensorEntry* part : matrix.parts) {
      windows.push_back(io::aligned_window(part->offset, part->bytes));
      places.push_back(made);
      made += round_up(windows.back().bytes, kReadAlign);
    }
  }
  int64_t bytes() const { return made + round_up(made_bytes, kReadAlign); }
};

// Completes a group of reads with the first error.
class Joined {
 public:
  Joined(int64_t reads, io::Completion done) : left_(reads), done_(std::move(done)) {}
  void read_done(std::exception_ptr error) {
    MutexLock lock(mutex_);
    if (error && !error_) error_ = std::move(error);
    if (--left_ > 0) return;
    const std::exception_ptr first = error_;
    lock.unlock();
    done_(first);
  }

 private:
  Mutex mutex_;
  int64_t left_ SLUICE_GUARDED_BY(mutex_);
  std::exception_ptr error_ SLUICE_GUARDED_BY(mutex_);
  io::Completion done_;
};

// Rows [row, row + rows) of a weight by whose they are: one visit for each expert that has any,
// with its first of these and how many.
template <typename Visit>
void for_each_expert(const WeightShape& weight, int64_t row, int64_t rows, const Visit& visit) {
  const int64_t of_one = weight.expert_rows();
  for (int64_t at = row, count = 0; at < row + rows; at += count) {
    count = std::min(of_one - at % of_one, row + rows - at);
    visit(static_cast<size_t>(at / of_one), at % of_one, count);
  }
}

// A matrix of the model: of experts', one's.
struct Repacked {
  size_t sublayer, weight;
  int64_t expert;
};

template <typename Visit>
void for_each_repacked(const BoundModel& model, const Visit& visit) {
  const ModelShape& shape = model.shape();
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) {
      const WeightShape& weight = shape.sublayers[i].weights[w];
      if (weight.shares_table) continue;
      for (int64_t expert = 0; expert < weight.tensors(); ++expert)
        if (const ForeignMatrix* matrix = model.foreign(i, w, static_cast<size_t>(expert)))
          visit(Repacked{i, w, expert}, *matrix);
    }
}
}  // namespace

int64_t WeightStore::load_staging_bytes(const BoundModel& model) {
  int64_t most = load_staging_bytes(model.shape());
  for_each_repacked(model, [&](const Repacked&, const ForeignMatrix& matrix) {
    most = std::max(
        most, matrix.file_row_bytes > 0 ? staged_run_bytes(matrix) : RepackLayout(matrix).bytes());
  });
  return most;
}

int64_t WeightStore::repacked_bytes() const {
  int64_t bytes = 0;
  for_each_repacked(model_, [&](const Repacked& at, const ForeignMatrix& matrix) {
    bytes += imported_row_bytes(matrix, home_rows(at.sublayer, at.weight, at.expert));
  });
  return bytes;
}

void WeightStore::load_repacked(std::span<std::byte> staging,
                                const std::function<void(int64_t)>& loaded,
                                const std::stop_token& cancel) {
  for_each_repacked(model_, [&](const Repacked& at, const ForeignMatrix& matrix) {
    if (cancel.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped while loading weights");
    if (matrix.file_row_bytes > 0)
      repack_by_rows(at.sublayer, at.weight, at.expert, staging);
    else
      repack(at.sublayer, at.weight, at.expert, staging);
    loaded(imported_row_bytes(matrix, home_rows(at.sublayer, at.weight, at.expert)));
  });
}

void WeightStore::repack(size_t sublayer, size_t weight, int64_t expert,
                         std::span<std::byte> staging) {
  const auto index = static_cast<size_t>(expert);
  const ForeignMatrix& matrix = *model_.foreign(sublayer, weight, index);
  const RepackLayout layout(matrix);
  SLUICE_ASSERT(layout.bytes() <= std::ssize(staging), "the plan sizes the staging");
  std::vector<io::Extent> extents;
  ForeignBytes parts;
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    const io::TensorEntry& part = *matrix.parts[i];
    const io::Window& window = layout.windows[i];
    const int64_t skipped = part.offset - window.offset;
    std::byte* to = staging.data() + layout.places[i];
    extents.push_back({file(part), window.offset, window.bytes, to, skipped + part.bytes});
    parts.push_back({to + skipped, static_cast<size_t>(part.bytes)});
  }
  BackgroundRead read;
  read.start(engine_, extents);
  read.wait();
  const std::span<std::byte> made =
      staging.subspan(static_cast<size_t>(layout.made), static_cast<size_t>(layout.made_bytes));
  import_matrix(model_.tensor(sublayer, weight, index).name, matrix, matrix.format,
                panel_quantiser(kernels::RangeSearch::kClip), 0, parts, made);
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  if (shape.kind == WeightKind::kVector) return take_rows(sublayer, weight, 0, 1, made.data());
  SLUICE_ASSERT(shape.experts == 0 || !has_slots(sublayer),
                "without a disk all experts have homes");
  const policy::RowSplit& split = weights_[sublayer][weight].split;
  const int64_t first = expert * shape.expert_rows(), last = first + shape.expert_rows();
  int64_t home = 0;
  for (const int64_t rows : {split.resident, split.inplace, split.host}) {
    const int64_t begin = std::max(home, first), end = std::min(home + rows, last);
    if (begin < end)
      take_rows(sublayer, weight, begin, end - begin,
                made.data() + (begin - first) * model_.shape().row_bytes(shape));
    home += rows;
  }
}

// Rows that are loaded once. A vector, or a column of a value a row, is one row of the weight.
int64_t WeightStore::home_rows(size_t sublayer, size_t weight, int64_t expert) const noexcept {
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  if (shape.kind == WeightKind::kVector) return model_.foreign(sublayer, weight)->rows;
  const int64_t before = expert * shape.expert_rows();  // homes come before the disk
  return std::clamp<int64_t>(shape.rows - loaded_rows(sublayer, weight).disk - before, 0,
                             shape.expert_rows());
}

void WeightStore::repack_by_rows(size_t sublayer, size_t weight, int64_t expert,
                                 std::span<std::byte> staging) {
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  if (shape.kind == WeightKind::kVector) return repack(sublayer, weight, 0, staging);
  const auto index = static_cast<size_t>(expert);
  const ForeignMatrix& matrix = *model_.foreign(sublayer, weight, index);
  const io::TensorEntry& part = *matrix.parts.front();
  const policy::RowSplit split = loaded_rows(sublayer, weight);
  const int64_t step = rows_at_a_time(matrix);
  const int64_t first = expert * shape.expert_rows(), last = first + shape.expert_rows();
  int64_t begin = 0;
  for (const int64_t home : {split.resident, split.inplace, split.host}) {
    const int64_t end = std::min(begin + home, last);
    for (int64_t row = std::max(begin, first); row < end; row += step) {
      // A table's homes begin anywhere, and its rows are plain.
      const int64_t rows = std::min(step, end - row);
      const ForeignMatrix::Run run = matrix.run_of(row - first, rows);
      const io::Window window = io::aligned_window(run.offset, run.bytes);
      const int64_t made = imported_row_bytes(matrix, rows);
      SLUICE_ASSERT(round_up(window.bytes, kReadAlign) + made <= std::ssize(staging),
                    "the plan sizes the staging");
      const io::Extent extent{file(part), window.offset, window.bytes, staging.data(),
                              run.offset + run.bytes - window.offset};
      BackgroundRead read;
      read.start(engine_, {&extent, 1});
      read.wait();
      std::byte* const to = staging.data() + round_up(window.bytes, kReadAlign);
      import_rows(model_.tensor(sublayer, weight, index).name, matrix, row - first, rows,
                  panel_quantiser(kernels::RangeSearch::kClip), 0,
                  {staging.data() + (run.offset - window.offset), static_cast<size_t>(run.bytes)},
                  {to, static_cast<size_t>(made)});
      take_rows(sublayer, weight, row, rows, to);
    }
    begin += home;
  }
}

WeightStore::Part WeightStore::packed_part(const policy::PlanPart& planned, size_t sublayer) const {
  const auto weight = static_cast<size_t>(planned.weight);
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  Part part{weight, planned.rows, true, false, 0};
  for_each_expert(shape, planned.row, planned.rows, [&](size_t expert, int64_t row, int64_t rows) {
    part.bytes +=
        ForeignArrivals::window_bytes(*model_.foreign(sublayer, weight, expert), row, rows);
  });
  part.required_bytes = model_.shape().rows_bytes(shape, planned.rows);
  part.packed_row = planned.row;
  SLUICE_ASSERT(part.required_bytes <= planned.bytes, "the plan leaves room");
  return part;
}

// Of experts one arrival each: they lie as they would in memory, each at a multiple of an
// alignment.
void WeightStore::read_packed(const Part& part, size_t sublayer, std::byte* to,
                              io::Completion done) {
  const ModelShape& model = model_.shape();
  const WeightShape& shape = model.sublayers[sublayer].weights[part.weight];
  int64_t arrivals = 0;
  for_each_expert(shape, part.packed_row, part.rows, [&](size_t, int64_t, int64_t) { ++arrivals; });
  const auto joined = std::make_shared<Joined>(arrivals, std::move(done));
  for_each_expert(shape, part.packed_row, part.rows, [&](size_t expert, int64_t row, int64_t rows) {
    const ForeignMatrix& matrix = *model_.foreign(sublayer, part.weight, expert);
    const auto bytes = static_cast<size_t>(imported_row_bytes(matrix, rows));
    arrivals_->read({&model_.tensor(sublayer, part.weight, expert).name,
                     &matrix,
                     row,
                     rows,
                     file(*matrix.parts.front()),
                     {to, bytes}},
                    [joined](std::exception_ptr error) { joined->read_done(std::move(error)); });
    to += model.rows_bytes(shape, rows);
  });
}

// What a layer's slots hold at first, of one matrix. A failure leaves when all have arrived.
void WeightStore::load_packed_slots(size_t sublayer, int32_t first_part,
                                    std::span<const int32_t> held) {
  const int64_t slots = experts_.layers[sublayer].slots;
  const auto loaded = std::make_shared<std::promise<void>>();
  std::future<void> all = loaded->get_future();
  const auto joined = std::make_shared<Joined>(slots, [loaded](std::exception_ptr error) {
    error ? loaded->set_exception(std::move(error)) : loaded->set_value();
  });
  for (int32_t slot = 0; slot < static_cast<int32_t>(slots); ++slot) {
    const Part& part = part_of_expert(sublayer, first_part, held[static_cast<size_t>(slot)]);
    read_packed(part, sublayer, slot_of(part, sublayer, slot),
                [joined](std::exception_ptr error) { joined->read_done(std::move(error)); });
  }
  all.get();
}

// As a resident row would be: through the table's type.
void WeightStore::gather_packed(size_t sublayer, size_t weight, const std::byte* row,
                                float* out) const {
  const ForeignMatrix& matrix = *model_.foreign(sublayer, weight);
  std::vector<std::byte> made(static_cast<size_t>(imported_row_bytes(matrix, 1)));
  matrix.decoder({{row, static_cast<size_t>(matrix.file_row_bytes)}})->values(0, out);
  kernels::convert(DType::kF32, out, matrix.format.dtype, made.data(), matrix.cols);
  kernels::convert(matrix.format.dtype, made.data(), DType::kF32, out, matrix.cols);
}

}  // namespace sluice
