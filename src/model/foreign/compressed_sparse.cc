// What the compressed-tensors library stores of matrices [rows, cols] with many zeros:
//   sparse-bitmask     X.bitmask u8 [rows, ceil(cols / 8)], a bit of each element that is stored,
//                      the lowest first; X.compressed, these elements of all rows one behind the
//                      other; X.row_offsets i64 [rows], where each row's begin, which the bits say
//   sparse-24-bitmask  the same with two of every four elements: X.compressed [rows, cols / 2]
//   both               elements are plain, or codes of 8 bits with X.weight_scale, one a row or one
//   marlin-24          X.weight_packed i32 [cols / 32, rows bits / 2], the two of every four in the
//                      order of the kernel (marlin.h), plus 2^(bits - 1);
//                      X.meta i16 [cols / 32, 2 rows], which two: four bits for every four columns;
//                      X.scale_packed f16 [groups, rows]; groups of 128, or one
#include <fmt/format.h>

#include <bit>

#include "src/base/error.h"
#include "src/model/foreign/compressed_tensors.h"
#include "src/model/foreign/marlin.h"

namespace sluice {

namespace {
// Elements that are stored, and where.
struct BitmaskLayout {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kBF16;
  bool is_24 = false;
  bool has_scale = false, has_one_scale = false;
  DType scale_dtype = DType::kF32;
  size_t shape = 0, offsets = 0;  // which part, or 0

  int64_t mask_bytes() const { return (cols + 7) / 8; }
};

class BitmaskDecoder final : public ForeignDecoder {
 public:
  BitmaskDecoder(const BitmaskLayout& layout, const ForeignRun& run, const ForeignBytes& parts)
      : layout_(layout), parts_(parts) {
    if (layout.shape > 0) check_shape(parts[layout.shape]);
    const int64_t stored = std::ssize(parts[0]) / dtype_bytes(layout.dtype);
    int64_t first = 0;
    for (int64_t row = 0; row < run.rows; ++row) {
      firsts_.push_back(first);
      if (layout.offsets > 0 && element<int64_t>(parts[layout.offsets], row) != first)
        refuse(fmt::format("has {} elements before row {}, X.row_offsets says {}", first, row,
                           element<int64_t>(parts[layout.offsets], row)));
      const int64_t count = stored_in(row);
      if (layout.is_24 && 2 * count != layout.cols)
        refuse(fmt::format("has {} elements of row {}: two of every four are {}", count,
                           run.first_row + row, layout.cols / 2));
      first += count;
    }
    if (first != stored)
      refuse(fmt::format("has {} elements, X.compressed of the same matrix {}", first, stored));
  }

  void values(int64_t row, float* out) const override {
    int64_t at = firsts_[static_cast<size_t>(row)];
    const float scale = layout_.has_scale ? scale_of(row) : 1;
    for (int64_t col = 0; col < layout_.cols; ++col)
      out[col] = is_stored(row, col) ? scale * stored(at++) : 0;
  }
  bool codes(int64_t row, int64_t, uint8_t* out, float& scale_out, float& zero_out) const override {
    const bool is_fp8 = layout_.dtype == DType::kF8E4M3;
    int64_t at = firsts_[static_cast<size_t>(row)];
    for (int64_t col = 0; col < layout_.cols; ++col) {
      const uint8_t code = is_stored(row, col) ? element<uint8_t>(parts_[0], at++) : 0;
      if (is_fp8 && (code & 0x7f) == 0x7f) return false;
      out[col] = is_fp8 ? code : static_cast<uint8_t>(code ^ 0x80);  // minus 128 as signed
    }
    return scale(row, 0, scale_out, zero_out);
  }
  bool scale(int64_t row, int64_t, float& scale_out, float& zero_out) const override {
    scale_out = scale_of(row);
    zero_out = 128;
    return true;
  }

 private:
  [[noreturn]] static void refuse(const std::string& problem) {
    throw Error(ErrorKind::kFile, "bitmask of a sparse matrix " + problem, kForeignMend);
  }
  void check_shape(std::span<const std::byte> shape) const {
    const auto rows = element<int64_t>(shape, 0), cols = element<int64_t>(shape, 1);
    if (rows != layout_.rows || cols != layout_.cols)
      refuse(fmt::format("is of {} x {}, X.shape says {} x {}", layout_.rows, layout_.cols, rows,
                         cols));
  }
  int64_t stored_in(int64_t row) const {
    const int64_t bytes = layout_.mask_bytes(), within = layout_.cols % 8;
    int64_t count = 0;
    for (int64_t i = 0; i < bytes; ++i) {
      auto bits = element<uint8_t>(parts_[1], row * bytes + i);
      if (i == bytes - 1 && within > 0) bits &= static_cast<uint8_t>((1 << within) - 1);
      count += std::popcount(bits);
    }
    return count;
  }
  bool is_stored(int64_t row, int64_t col) const {
    const auto bits = element<uint8_t>(parts_[1], row * layout_.mask_bytes() + col / 8);
    return (bits >> (col % 8) & 1) != 0;
  }
  float stored(int64_t at) const {
    if (layout_.dtype == DType::kF8E4M3) return e4m3_to_f32(element<uint8_t>(parts_[0], at));
    if (layout_.dtype == DType::kI8) return element<int8_t>(parts_[0], at);
    return float_element(parts_[0], layout_.dtype, at);
  }
  float scale_of(int64_t row) const {
    return float_element(parts_[2], layout_.scale_dtype, layout_.has_one_scale ? 0 : row);
  }

  BitmaskLayout layout_;
  const ForeignBytes& parts_;
  std::vector<int64_t> firsts_;  // [row] among the stored elements of the run
};

// Where cutlass has the 16 bits of row `row` and of columns 16 col to 16 col + 15, of `rows` rows.
int64_t place_of_meta(int64_t row, int64_t col, int64_t rows) {
  int64_t to = row / 64 * 64 + row % 2 * 2 + row % 8 / 4 + row % 32 % 4 / 2 * 32 + row % 64 / 8 * 4;
  int64_t across = col;
  // Blocks of 2 x 2 are turned; pairs of columns lie one behind the other.
  const int64_t turned = (to % 2 == 0 && col % 2 == 1) - (to % 2 == 1 && col % 2 == 0);
  to += turned;
  across -= turned;
  return across / 2 * rows * 2 + to * 2 + across % 2;
}

class Marlin24Decoder final : public MarlinDecoder {
 public:
  Marlin24Decoder(const MarlinTiles& tiles, const Layout& layout, const ForeignRun& run,
                  const ForeignBytes& parts)
      : MarlinDecoder(tiles, layout, run, parts) {}

 private:
  int64_t code(int64_t row, int64_t col) const override {
    const int64_t at = place_of_meta(row, col / 16, layout_.rows);
    const int bits = element<uint16_t>(parts_[2], at) >> (col / 4 % 4 * 4) & 15;
    const int64_t place = col % 4;
    const bool is_first = place == (bits & 3), is_second = place == bits >> 2;
    if (!is_first && !is_second) return middle();
    return tiles_.code(parts_[0], col / 4 * 2 + (is_first ? 0 : 1), row);
  }
  int64_t place_of_scale(int64_t row) const override {
    constexpr int64_t kPlace[] = {0, 2, 4, 6, 1, 3, 5, 7};  // of each of eight rows
    return layout_.are_shuffled ? row / 8 * 8 + kPlace[row % 8] : row;
  }
};

void add_scale(const PartFinder& parts, BitmaskLayout& layout, ForeignMatrix& out) {
  const io::TensorEntry* scale = parts.look(".weight_scale");
  layout.has_scale = scale != nullptr;
  const bool has_codes = layout.dtype == DType::kI8 || layout.dtype == DType::kF8E4M3;
  if (has_codes != layout.has_scale)
    parts.refuse(".weight_scale",
                 has_codes ? "is missing" : "is there for elements that are plain");
  if (!scale) return;
  layout.has_one_scale = io::element_count(scale->shape) == 1;
  const bool is_flat = scale->shape.size() == 1;
  out.parts.push_back(parts.need(".weight_scale", {DType::kBF16, DType::kF16, DType::kF32},
                                 layout.has_one_scale ? scale->shape
                                 : is_flat            ? std::vector<int64_t>{layout.rows}
                                                      : std::vector<int64_t>{layout.rows, 1}));
  layout.scale_dtype = out.parts.back()->dtype;
  if (parts.look(".weight_zero_point") && layout.dtype == DType::kI8)
    parts.refuse(".weight_zero_point", "of a sparse matrix is not read");
}
// What says the same again.
void add_checks(const PartFinder& parts, BitmaskLayout& layout, ForeignMatrix& out) {
  if (const io::TensorEntry* shape = parts.look(".shape")) {
    layout.shape = out.parts.size();
    out.parts.push_back(parts.need(
        ".shape", {DType::kI64},
        shape->shape.size() == 1 ? std::vector<int64_t>{2} : std::vector<int64_t>{2, 1}));
  }
  if (!layout.is_24 && parts.look(".row_offsets")) {
    layout.offsets = out.parts.size();
    out.parts.push_back(parts.need(".row_offsets", {DType::kI64}, {layout.rows}));
  }
}
}  // namespace

ForeignMatrix bitmask_matrix(const PartFinder& parts, int64_t rows, int64_t cols) {
  const io::TensorEntry* stored = parts.look(".compressed");
  if (!stored) parts.refuse(".compressed", "is missing");
  BitmaskLayout layout;
  layout.rows = rows;
  layout.cols = cols;
  layout.is_24 = stored->shape.size() == 2;
  const std::vector<int64_t> shape =
      layout.is_24 ? std::vector<int64_t>{rows, cols / 2} : stored->shape;
  if (!layout.is_24 && stored->shape.size() != 1)
    parts.refuse(".compressed", fmt::format("has shape {}", io::format_shape(stored->shape)));
  ForeignMatrix out;
  out.rows = rows;
  out.cols = cols;
  out.parts = {
      parts.need(".compressed",
                 {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kI8}, shape),
      parts.need(".bitmask", {DType::kU8}, {rows, layout.mask_bytes()})};
  layout.dtype = stored->dtype;
  add_scale(parts, layout, out);
  out.format = layout.dtype == DType::kF8E4M3 ? WeightFormat{Encoding::kFp8, DType::kBF16, 0}
               : layout.dtype == DType::kI8   ? WeightFormat{Encoding::kInt8, DType::kBF16, 0}
                                              : WeightFormat::plain(layout.dtype);
  add_checks(parts, layout, out);
  out.decoder = [layout](const ForeignBytes& bytes, const ForeignRun& run) {
    return std::make_unique<BitmaskDecoder>(layout, run, bytes);
  };
  if (!layout.is_24) return out;  // how many elements rows have is not known before they are read
  out.cut = ForeignMatrix::Cut::kRows;
  out.steps = {{1, cols / 2 * dtype_bytes(layout.dtype)}, {1, layout.mask_bytes()}};
  if (layout.has_scale && !layout.has_one_scale)
    out.steps.push_back({1, dtype_bytes(layout.scale_dtype)});
  out.steps.resize(out.parts.size());  // whole, unless said
  return out;
}

ForeignMatrix marlin24_matrix(const PartFinder& parts, int64_t rows, int64_t cols) {
  const io::TensorEntry* packed = parts.look(".weight_packed");
  const io::TensorEntry* scales = parts.look(".scale_packed");
  if (!packed || packed->shape.size() != 2)
    parts.refuse(".weight_packed", "is missing or no matrix");
  if (!scales || scales->shape.size() != 2)
    parts.refuse(".scale_packed", "is missing or no matrix");
  if (rows % 64 != 0 || cols % 32 != 0)
    parts.refuse(".weight_packed", fmt::format("is packed for Marlin, of {} x {}: rows are "
                                               "multiples of 64, columns of 32",
                                               rows, cols));
  MarlinDecoder::Layout layout;
  layout.rows = rows;
  layout.bits = packed->shape[1] == rows * 4 ? 8 : 4;
  const int64_t groups = std::max<int64_t>(scales->shape[0], 1);
  layout.group = cols / groups;
  layout.are_shuffled = groups > 1 && layout.group < cols / 2;
  const auto ours = group_within(layout.group, cols);
  if (cols % groups != 0 || !ours)
    parts.refuse(".scale_packed", fmt::format("has {} groups of a row of {}: groups are multiples "
                                              "of 32 columns",
                                              groups, cols));
  layout.ours = *ours;
  ForeignMatrix out;
  out.rows = rows;
  out.cols = cols;
  const bool is_row = layout.bits == 8 && groups == 1;
  out.format = {layout.bits == 8 ? Encoding::kInt8 : Encoding::kInt4, DType::kBF16,
                is_row ? 0 : *ours};
  if (is_row) layout.ours = cols;
  out.parts = {parts.need(".weight_packed", {DType::kI32}, {cols / 32, rows * layout.bits / 2}),
               parts.need(".scale_packed", {DType::kF16}, {groups, rows}),
               parts.need(".meta", {DType::kI16}, {cols / 32, rows * 2})};
  out.cut = ForeignMatrix::Cut::kColumns;
  out.multiple = layout.ours;
  out.steps = {{32, rows * layout.bits * 2}, {layout.group, rows * 2}, {32, rows * 4}};
  out.decoder = [tiles = MarlinTiles(true, layout.bits, rows), layout](const ForeignBytes& bytes,
                                                                       const ForeignRun& run) {
    return std::make_unique<Marlin24Decoder>(tiles, layout, run, bytes);
  };
  return out;
}

}  // namespace sluice
