// Weights that other tools have packed: as they are loaded, some rows at a time or whole, repacked
// by all cores and put where the plan wants them; and as they stream.
#include <algorithm>
#include <future>
#include <memory>

#include "kernels/elementwise.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/stores/background_read.h"
#include "src/engine/stores/foreign_import.h"
#include "src/engine/stores/joined_reads.h"
#include "src/engine/stores/panel_quantiser.h"
#include "src/engine/stores/weight_store.h"

namespace sluice {

namespace {
constexpr int64_t kReadAlign = io::kDirectAlignment;

// A piece that is read and repacked while loading: past 8 MiB a bigger one reads no faster.
int64_t loaded_piece_bytes(const ForeignMatrix& matrix) {
  const int64_t all = matrix.bytes(matrix.whole()) + 2 * kReadAlign * std::ssize(matrix.parts);
  return round_up(std::max(std::min(all, 8 * kMiB), smallest_piece_bytes(matrix)), kReadAlign);
}

// Room for one, and for the rows that it becomes, or the matrix that it is columns of.
int64_t staged_bytes(const ForeignMatrix& matrix) {
  const int64_t read = loaded_piece_bytes(matrix);
  return read + round_up(imported_row_bytes(matrix, most_piece_rows(matrix, read)), kReadAlign);
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

bool is_whole(const ForeignMatrix& matrix) { return matrix.cut == ForeignMatrix::Cut::kWhole; }

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
    most = std::max(most, is_whole(matrix) ? RepackLayout(matrix).bytes() : staged_bytes(matrix));
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
    const WeightKind kind = model_.shape().sublayers[at.sublayer].weights[at.weight].kind;
    if (is_whole(matrix) || kind == WeightKind::kVector)
      repack(at.sublayer, at.weight, at.expert, staging);
    else if (matrix.cut == ForeignMatrix::Cut::kRows)
      repack_by_rows(at.sublayer, at.weight, at.expert, staging);
    else
      repack_by_columns(at.sublayer, at.weight, at.expert, staging);
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
  if (model_.shape().sublayers[sublayer].weights[weight].kind == WeightKind::kVector)
    return take_rows(sublayer, weight, 0, 1, made.data());
  take_matrix(sublayer, weight, expert, made.data());
}

// A whole matrix, of experts' one's: its rows to their homes.
void WeightStore::take_matrix(size_t sublayer, size_t weight, int64_t expert,
                              const std::byte* made) {
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  const policy::RowSplit split = loaded_rows(sublayer, weight);
  const int64_t first = expert * shape.expert_rows(), last = first + shape.expert_rows();
  int64_t home = 0;
  for (const int64_t rows : {split.resident, split.inplace, split.host}) {
    const int64_t begin = std::max(home, first), end = std::min(home + rows, last);
    if (begin < end)
      take_rows(sublayer, weight, begin, end - begin,
                made + (begin - first) * model_.shape().row_bytes(shape));
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

// Reads a piece to the begin of staging.
ForeignBytes WeightStore::read_piece(const ForeignMatrix& matrix, const ForeignRun& piece,
                                     std::span<std::byte> staging) {
  std::vector<io::Extent> extents;
  ForeignBytes parts;
  int64_t place = 0;
  const std::vector<ForeignMatrix::Range> ranges = matrix.ranges(matrix.run_of(piece));
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto [offset, bytes] = ranges[i];
    const io::Window window = io::aligned_window(offset, bytes);
    std::byte* const to = staging.data() + place;
    extents.push_back(
        {file(*matrix.parts[i]), window.offset, window.bytes, to, offset + bytes - window.offset});
    parts.push_back({to + (offset - window.offset), static_cast<size_t>(bytes)});
    place += window.bytes;
  }
  SLUICE_ASSERT(place <= std::ssize(staging), "the plan sizes the staging");
  BackgroundRead read;
  read.start(engine_, extents);
  read.wait();
  return parts;
}

void WeightStore::repack_by_rows(size_t sublayer, size_t weight, int64_t expert,
                                 std::span<std::byte> staging) {
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  const auto index = static_cast<size_t>(expert);
  const ForeignMatrix& matrix = *model_.foreign(sublayer, weight, index);
  const policy::RowSplit split = loaded_rows(sublayer, weight);
  const int64_t room = loaded_piece_bytes(matrix);
  const int64_t first = expert * shape.expert_rows(), last = first + shape.expert_rows();
  int64_t before = 0;
  for (const int64_t rows : {split.resident, split.inplace, split.host}) {
    const int64_t begin = std::max(before, first), end = std::min(before + rows, last);
    before += rows;
    if (begin >= end) continue;
    // A table's homes begin anywhere, and its rows are plain.
    for (const ForeignRun& piece : pieces_of(matrix, begin - first, end - begin, room)) {
      const auto made = static_cast<size_t>(imported_row_bytes(matrix, piece.rows));
      SLUICE_ASSERT(room + static_cast<int64_t>(made) <= std::ssize(staging),
                    "the plan sizes the staging");
      const std::span<std::byte> to = staging.subspan(static_cast<size_t>(room), made);
      import_piece(model_.tensor(sublayer, weight, index).name, matrix, piece,
                   panel_quantiser(kernels::RangeSearch::kClip), 0,
                   read_piece(matrix, piece, staging.first(static_cast<size_t>(room))), to);
      take_rows(sublayer, weight, first + piece.first_row, piece.rows, to.data());
    }
  }
}

void WeightStore::repack_by_columns(size_t sublayer, size_t weight, int64_t expert,
                                    std::span<std::byte> staging) {
  if (home_rows(sublayer, weight, expert) == 0) return;
  const auto index = static_cast<size_t>(expert);
  const ForeignMatrix& matrix = *model_.foreign(sublayer, weight, index);
  const int64_t room = loaded_piece_bytes(matrix);
  const auto made = static_cast<size_t>(imported_bytes(matrix, matrix.format));
  SLUICE_ASSERT(room + static_cast<int64_t>(made) <= std::ssize(staging),
                "the plan sizes the staging");
  const std::span<std::byte> to = staging.subspan(static_cast<size_t>(room), made);
  for (const ForeignRun& piece : pieces_of(matrix, 0, matrix.rows, room))
    import_piece(model_.tensor(sublayer, weight, index).name, matrix, piece,
                 panel_quantiser(kernels::RangeSearch::kClip), 0,
                 read_piece(matrix, piece, staging.first(static_cast<size_t>(room))), to);
  take_matrix(sublayer, weight, expert, to.data());
}

WeightStore::Part WeightStore::packed_part(const policy::PlanPart& planned, size_t sublayer,
                                           int64_t slot_bytes) const {
  const auto weight = static_cast<size_t>(planned.weight);
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  Part part{weight, planned.rows, true, false, 0};
  for_each_expert(shape, planned.row, planned.rows, [&](size_t expert, int64_t row, int64_t rows) {
    part.bytes += ForeignArrivals::read_bytes(*model_.foreign(sublayer, weight, expert), row, rows,
                                              slot_bytes);
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
  const auto joined = std::make_shared<JoinedReads>(arrivals, std::move(done));
  for_each_expert(shape, part.packed_row, part.rows, [&](size_t expert, int64_t row, int64_t rows) {
    const ForeignMatrix& matrix = *model_.foreign(sublayer, part.weight, expert);
    const auto bytes = static_cast<size_t>(imported_row_bytes(matrix, rows));
    arrivals_->read({&model_.tensor(sublayer, part.weight, expert).name,
                     &matrix,
                     row,
                     rows,
                     files_,
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
  const auto joined = std::make_shared<JoinedReads>(slots, [loaded](std::exception_ptr error) {
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
  const ForeignBytes parts{{row, static_cast<size_t>(matrix.row_bytes())}};
  matrix.decoder(parts, {0, 1, 0, matrix.cols})->values(0, out);
  kernels::convert(DType::kF32, out, matrix.format.dtype, made.data(), matrix.cols);
  kernels::convert(matrix.format.dtype, made.data(), DType::kF32, out, matrix.cols);
}

}  // namespace sluice
