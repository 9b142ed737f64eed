// Weights that other tools have packed: as they are loaded, some rows at a time or whole, repacked
// by all cores and put where the plan wants them; and as they stream.
#include <algorithm>

#include "kernels/elementwise.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
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
      repack_by_rows(at.sublayer, at.weight, staging);
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
  const policy::RowSplit& split = weights_[sublayer][weight].split;
  if (shape.kind == WeightKind::kVector) return model_.foreign(sublayer, weight)->rows;
  const int64_t before = expert * shape.expert_rows();  // homes come before the disk
  return std::clamp<int64_t>(shape.rows - split.disk - before, 0, shape.expert_rows());
}

void WeightStore::repack_by_rows(size_t sublayer, size_t weight, std::span<std::byte> staging) {
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  if (shape.kind == WeightKind::kVector) return repack(sublayer, weight, 0, staging);
  const ForeignMatrix& matrix = *model_.foreign(sublayer, weight);
  const io::TensorEntry& part = *matrix.parts.front();
  const policy::RowSplit& split = weights_[sublayer][weight].split;
  const int64_t step = rows_at_a_time(matrix);
  int64_t begin = 0;
  for (const int64_t home : {split.resident, split.inplace, split.host}) {
    for (int64_t row = begin; row < begin + home; row += step) {
      // A table's homes begin anywhere, and its rows are plain.
      const int64_t rows = std::min(step, begin + home - row);
      const ForeignMatrix::Run run = matrix.run_of(row, rows);
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
      import_rows(model_.tensor(sublayer, weight).name, matrix, row, rows,
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
  const ForeignMatrix& matrix = *model_.foreign(sublayer, weight);
  Part part{weight, planned.rows, true, false,
            ForeignArrivals::window_bytes(matrix, planned.row, planned.rows)};
  part.packed_file = static_cast<size_t>(matrix.parts.front()->file_index);
  part.required_bytes = imported_row_bytes(matrix, planned.rows);
  part.packed_row = planned.row;
  SLUICE_ASSERT(part.required_bytes <= planned.bytes, "the plan leaves room");
  return part;
}

void WeightStore::read_packed(const Task& task, std::byte* to, io::Completion done) {
  const auto sublayer = static_cast<size_t>(task.sublayer);
  const Part& part = part_of(task);
  arrivals_->read({&model_.tensor(sublayer, part.weight).name,
                   model_.foreign(sublayer, part.weight),
                   part.packed_row,
                   part.rows,
                   files_[part.packed_file],
                   {to, static_cast<size_t>(part.required_bytes)}},
                  std::move(done));
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
