// Checkpoints that other tools have quantised, bound to a model and decoded: config.json up to the
// first NUL, the header of a safetensors file up to the next, then tensor data, zeros where they
// end early. What begins with "GGUF" is a GGUF file as it is.
#include <cstring>

#include "io/files/input_file.h"
#include "src/base/error.h"
#include "src/model/bound_model.h"
#include "tests/fuzz/fuzzing.h"

namespace {
using namespace sluice;

constexpr int64_t kMostData = 1 << 20;  // bytes of tensor data that a header may claim

// A row that is read without the others, or with some of its columns, is the row.
void decode_run(const ForeignMatrix& matrix, const ForeignBytes& all, const ForeignDecoder& whole) {
  if (matrix.cut == ForeignMatrix::Cut::kWhole) return;
  const int64_t row = matrix.rows / 2;
  const ForeignRun run = matrix.run_of({row, 1, matrix.cols / 2, 1});
  const ForeignBytes parts = matrix.within(all, run);
  const auto decoder = matrix.decoder(parts, run);
  std::vector<float> part(static_cast<size_t>(run.cols)), full(static_cast<size_t>(matrix.cols));
  decoder->values(row - run.first_row, part.data());
  whole.values(row, full.data());
  fuzz::require(
      std::memcmp(part.data(), full.data() + run.first_col, part.size() * sizeof(float)) == 0);
}

void decode(const BoundModel& model, const ForeignMatrix& matrix) {
  fuzz::require(matrix.rows > 0 && matrix.cols > 0);
  std::vector<std::vector<std::byte>> bytes;
  for (const io::TensorEntry* part : matrix.parts) {
    const auto& file = model.checkpoint().files()[static_cast<size_t>(part->file_index)];
    bytes.emplace_back(static_cast<size_t>(part->bytes));
    io::InputFile(file.path).read(part->offset, bytes.back(), "a part");
  }
  const ForeignBytes all(bytes.begin(), bytes.end());
  const ForeignBytes parts = matrix.within(all, matrix.whole());
  const auto decoder = matrix.decoder(parts, matrix.whole());
  std::vector<float> row(static_cast<size_t>(matrix.cols));
  for (const int64_t at : {int64_t{0}, matrix.rows / 2, matrix.rows - 1}) {
    decoder->values(at, row.data());
    if (!matrix.format.is_quantised()) continue;
    const int64_t group = matrix.format.group_columns(matrix.cols);
    std::vector<uint8_t> codes(static_cast<size_t>(group));
    float scale = 0, zero = 0;
    decoder->scale(at, 0, scale, zero);
    decoder->codes(at, 0, codes.data(), scale, zero);
    decoder->codes(at, matrix.format.groups(matrix.cols) - 1, codes.data(), scale, zero);
  }
  decode_run(matrix, all, *decoder);
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder safetensors, gguf;
  const std::string_view text = fuzz::text_of(data, size);
  const bool is_gguf = text.starts_with("GGUF");
  try {
    if (is_gguf) {
      gguf.write("model.gguf", text);
    } else {
      fuzz::write_settings_and_tensors(safetensors, text, "config.json", "model.safetensors",
                                       kMostData);
    }
    const BoundModel model = BoundModel::open((is_gguf ? gguf : safetensors).path());
    if (!model.foreign_method().empty()) fuzz::accepted();
    for (size_t i = 0; i < model.shape().sublayers.size(); ++i)
      for (size_t w = 0; w < model.shape().sublayers[i].weights.size(); ++w)
        for (int64_t e = 0; e < model.shape().sublayers[i].weights[w].tensors(); ++e)
          if (const ForeignMatrix* matrix = model.foreign(i, w, static_cast<size_t>(e)))
            decode(model, *matrix);
  } catch (const Error& error) {
    fuzz::require(error.kind() == ErrorKind::kFile && !error.text().empty());
  }
  return 0;
}
