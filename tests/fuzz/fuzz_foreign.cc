// Checkpoints that other tools have quantised, bound to a model and decoded: config.json up to the
// first NUL, the header of a safetensors file up to the next, then tensor data, zeros where they
// end early. What begins with "GGUF" is a GGUF file as it is.
#include "io/files/input_file.h"
#include "src/base/error.h"
#include "src/model/bound_model.h"
#include "tests/fuzz/fuzzing.h"

namespace {
using namespace sluice;

constexpr int64_t kMostData = 1 << 20;  // bytes of tensor data that a header may claim

void decode(const BoundModel& model, const ForeignMatrix& matrix) {
  fuzz::require(matrix.rows > 0 && matrix.cols > 0);
  std::vector<std::vector<std::byte>> bytes;
  for (const io::TensorEntry* part : matrix.parts) {
    const auto& file = model.checkpoint().files()[static_cast<size_t>(part->file_index)];
    bytes.emplace_back(static_cast<size_t>(part->bytes));
    io::InputFile(file.path).read(part->offset, bytes.back(), "a part");
  }
  const ForeignBytes parts(bytes.begin(), bytes.end());
  const auto decoder = matrix.decoder(parts);
  std::vector<float> row(static_cast<size_t>(matrix.cols));
  for (const int64_t at : {int64_t{0}, matrix.rows / 2, matrix.rows - 1}) {
    decoder->values(at, row.data());
    if (!matrix.format.is_quantised()) continue;
    const int64_t group = matrix.format.group_columns(matrix.cols);
    std::vector<uint8_t> codes(static_cast<size_t>(group));
    float scale = 0, zero = 0;
    decoder->codes(at, 0, codes.data(), scale, zero);
    decoder->codes(at, matrix.format.groups(matrix.cols) - 1, codes.data(), scale, zero);
  }
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
