#include "src/model/foreign/marlin.h"

#include <fmt/format.h>

namespace sluice {

namespace {
// A thread of a warp holds, of each of two neighbouring 8 x 8 blocks of outputs, the four inputs
// that its lane of mma.m16n8k16 multiplies; four such fragments lie together.
constexpr int64_t kLanes = 32, kFragments = 4;

// Of the words' codes those of even places first, as the kernels take a word apart.
int64_t interleaved(int64_t at, int64_t bits) {
  const int64_t each = 32 / bits;
  const int64_t place = at % each;
  return at / each * each + (place < each / 2 ? 2 * place : 2 * (place - each / 2) + 1);
}

class DenseDecoder final : public MarlinDecoder {
 public:
  DenseDecoder(const MarlinTiles& tiles, const Layout& layout, const ForeignRun& run,
               const ForeignBytes& parts)
      : MarlinDecoder(tiles, layout, run, parts) {}

 private:
  int64_t code(int64_t row, int64_t col) const override { return tiles_.code(parts_[0], col, row); }
  // Scales lie in the order in which lanes need them: of groups 64 at a time, of whole rows 32.
  int64_t place_of_scale(int64_t row) const override {
    if (layout_.are_shuffled) return row / 64 * 64 + row % 8 * 8 + row % 64 / 8;
    const int64_t within = row % 32;  // pairs of neighbours, a pair of each 8 beside the next one's
    return row / 32 * 32 + within % 8 / 2 * 8 + within / 8 * 2 + within % 2;
  }
};
}  // namespace

MarlinTiles::MarlinTiles(bool is_sparse, int64_t bits, int64_t outputs)
    : bits_(bits), outputs_(outputs) {
  std::array<int64_t, kRun> order{};  // [place] before the words' own order
  size_t at = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const int64_t pair = 2 * (lane % 4), col = lane / 4;
    for (int64_t fragment = 0; fragment < kFragments; ++fragment)
      for (const int64_t block : {0, 1})
        for (const int64_t input : {pair, pair + 1, pair + 8, pair + 9})
          order[at++] = is_sparse
                            ? 16 * input + col / 2 * 256 + 8 * (col % 2) + 4 * block + fragment
                            : 16 * input + col + 8 * block + 256 * fragment;
  }
  for (int64_t place = 0; place < kRun; ++place)
    place_of_[static_cast<size_t>(order[static_cast<size_t>(interleaved(place, bits))])] =
        static_cast<uint16_t>(place);
}

void MarlinDecoder::values(int64_t row, float* out) const {
  for (int64_t col = 0; col < run_.cols; ++col)
    out[col] = scale_of(row, col) * static_cast<float>(code(row, col) - middle());
}

bool MarlinDecoder::codes(int64_t row, int64_t group, uint8_t* out, float& scale_out,
                          float& zero_out) const {
  for (int64_t i = 0; i < layout_.ours; ++i)
    out[i] = static_cast<uint8_t>(code(row, group * layout_.ours + i));
  return scale(row, group, scale_out, zero_out);
}

bool MarlinDecoder::scale(int64_t row, int64_t group, float& scale_out, float& zero_out) const {
  scale_out = scale_of(row, group * layout_.ours);
  zero_out = static_cast<float>(middle());
  return true;
}

// Groups are counted from the run's first, whose columns may begin within it.
float MarlinDecoder::scale_of(int64_t row, int64_t col) const {
  const int64_t group = (run_.first_col + col) / layout_.group - run_.first_col / layout_.group;
  return f16_to_f32(element<uint16_t>(parts_[1], group * layout_.rows + place_of_scale(row)));
}

ForeignMatrix marlin_matrix(const PartFinder& parts, const char* codes, const char* scales,
                            int64_t rows, int64_t cols, int64_t group) {
  const int64_t whole = group > 0 ? group : cols;
  const auto ours = group_within(whole, cols);
  if (!ours || rows % 64 != 0 || cols % MarlinTiles::kTile != 0)
    parts.refuse(codes, fmt::format("is packed for Marlin, of {} x {} in groups of {}: rows are "
                                    "multiples of 64, groups of 32 columns",
                                    rows, cols, whole));
  ForeignMatrix out;
  out.rows = rows;
  out.cols = cols;
  out.format = {Encoding::kInt4, DType::kBF16, *ours};
  out.parts = {parts.need(codes, {DType::kI32}, {cols / MarlinTiles::kTile, rows * 2}),
               parts.need(scales, {DType::kF16}, {cols / whole, rows})};
  out.cut = ForeignMatrix::Cut::kColumns;
  out.multiple = *ours;
  out.steps = {{MarlinTiles::kTile, rows * 8}, {whole, rows * 2}};
  const MarlinDecoder::Layout layout{rows, 4, whole, *ours, whole < cols};
  out.decoder = [tiles = MarlinTiles(false, 4, rows), layout](const ForeignBytes& bytes,
                                                              const ForeignRun& run) {
    return std::make_unique<DenseDecoder>(tiles, layout, run, bytes);
  };
  return out;
}

}  // namespace sluice
