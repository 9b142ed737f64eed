// Weights that other tools have packed, as they are loaded: read whole, repacked by all cores, put
// where the plan wants their rows.
#include <algorithm>

#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/engine/stores/background_read.h"
#include "src/engine/stores/foreign_import.h"
#include "src/engine/stores/panel_quantiser.h"
#include "src/engine/stores/weight_store.h"

namespace sluice {

namespace {
constexpr int64_t kReadAlign = io::kDirectAlignment;

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

template <typename Visit>
void for_each_repacked(const BoundModel& model, const Visit& visit) {
  const ModelShape& shape = model.shape();
  for (size_t i = 0; i < shape.sublayers.size(); ++i)
    for (size_t w = 0; w < shape.sublayers[i].weights.size(); ++w) {
      if (shape.sublayers[i].weights[w].shares_table) continue;
      if (const ForeignMatrix* matrix = model.foreign(i, w)) visit(i, w, *matrix);
    }
}
}  // namespace

int64_t WeightStore::load_staging_bytes(const BoundModel& model) {
  int64_t most = load_staging_bytes(model.shape());
  for_each_repacked(model, [&](size_t, size_t, const ForeignMatrix& matrix) {
    most = std::max(most, RepackLayout(matrix).bytes());
  });
  return most;
}

int64_t WeightStore::repacked_bytes() const {
  int64_t bytes = 0;
  for_each_repacked(model_, [&](size_t, size_t, const ForeignMatrix& matrix) {
    bytes += imported_bytes(matrix, matrix.format);
  });
  return bytes;
}

void WeightStore::load_repacked(std::span<std::byte> staging,
                                const std::function<void(int64_t)>& loaded,
                                const std::stop_token& cancel) {
  for_each_repacked(model_, [&](size_t i, size_t w, const ForeignMatrix& matrix) {
    if (cancel.stop_requested())
      throw Error(ErrorKind::kCancelled, "stopped while loading weights");
    repack(i, w, staging);
    loaded(imported_bytes(matrix, matrix.format));
  });
}

void WeightStore::repack(size_t sublayer, size_t weight, std::span<std::byte> staging) {
  const ForeignMatrix& matrix = *model_.foreign(sublayer, weight);
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
  import_matrix(model_.tensor(sublayer, weight).name, matrix, matrix.format,
                panel_quantiser(kernels::RangeSearch::kClip), 0, parts, made);
  const WeightShape& shape = model_.shape().sublayers[sublayer].weights[weight];
  if (shape.kind == WeightKind::kVector) return take_rows(sublayer, weight, 0, 1, made.data());
  const policy::RowSplit& split = weights_[sublayer][weight].split;
  int64_t row = 0;
  for (const int64_t rows : {split.resident, split.inplace, split.host}) {
    if (rows > 0)
      take_rows(sublayer, weight, row, rows, made.data() + row * model_.shape().row_bytes(shape));
    row += rows;
  }
}

}  // namespace sluice
