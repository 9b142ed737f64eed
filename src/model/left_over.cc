#include "src/model/left_over.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "io/files/input_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/model/text_part.h"

namespace sluice {

namespace {

constexpr int64_t kRunBytes = 64 * kKiB;
constexpr int64_t kRuns = 256;  // of a large tensor: 16 MiB, spread evenly

[[noreturn]] void refuse(const io::Checkpoint& checkpoint, const std::string& problem,
                         const std::string& mend) {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", checkpoint.folder().string(), problem), mend);
}

std::vector<std::byte> read_run(const io::Checkpoint& checkpoint, const io::TensorEntry& tensor,
                                int64_t offset, int64_t bytes) {
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  const io::InputFile file(checkpoint.files()[static_cast<size_t>(tensor.file_index)].path);
  file.read(tensor.offset + offset, out, "tensor");
  return out;
}

// Whole tensors of up to 16 MiB, even runs of larger ones: matrices that differ, differ in every
// row.
bool hold_the_same(const io::Checkpoint& checkpoint, const io::TensorEntry& a,
                   const io::TensorEntry& b) {
  if (a.dtype != b.dtype || a.shape != b.shape || a.quantised != b.quantised) return false;
  if (a.file_index == b.file_index && a.offset == b.offset) return true;
  const int64_t runs = std::min((a.bytes + kRunBytes - 1) / kRunBytes, kRuns);
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t offset =
        std::min((a.bytes + runs - 1) / runs * run, std::max<int64_t>(a.bytes - kRunBytes, 0));
    const int64_t bytes = std::min(kRunBytes, a.bytes - offset);
    if (read_run(checkpoint, a, offset, bytes) != read_run(checkpoint, b, offset, bytes))
      return false;
  }
  return true;
}

// The head's logits are products with the table of tokens; then no other matrix may claim to be it.
void refuse_other_output(const io::Checkpoint& checkpoint, const ModelShape& shape) {
  const io::TensorEntry* output = nullptr;
  for (const std::string& head : head_names())
    if (!output) output = checkpoint.find(head + ".weight");
  if (!output || shape.sublayers.empty()) return;
  for (const WeightShape& weight : shape.sublayers.back().weights) {
    if (!weight.shares_table) continue;
    for (const std::string& name : weight.names)
      if (const io::TensorEntry* table = checkpoint.find(name)) {
        if (hold_the_same(checkpoint, *output, *table)) return;
        refuse(checkpoint,
               fmt::format("config.json ties lm_head to the embeddings, but {} is not {}",
                           output->name, name),
               "set \"tie_word_embeddings\" to false in config.json if the file is right, else "
               "remove the tensor");
      }
  }
}

void refuse_other_heads(const io::Checkpoint& checkpoint, const ModelConfig& config) {
  constexpr const char* kMend = "sluice runs language models: use the checkpoint with an lm_head";
  for (const std::string& name : config.texts("architectures"))
    for (const char* kind : {"Classification", "QuestionAnswering", "RewardModel"})
      if (name.find(kind) != std::string::npos)
        refuse(checkpoint, fmt::format("config.json says {}, which is no language model", name),
               kMend);
  for (const io::TensorEntry& tensor : checkpoint.tensors())
    for (const char* head :
         {"score.", "classifier.", "classification_head.", "qa_outputs.", "cls."})
      if (tensor.name.starts_with(head))
        refuse(checkpoint,
               fmt::format("tensor {} is the head of a classifier", io::in_quotes(tensor.name)),
               kMend);
}

bool is_zero(const io::Checkpoint& checkpoint, const io::TensorEntry& tensor) {
  if (tensor.bytes > 4 * kMiB) return false;  // no bias of a layer is so large
  for (const std::byte byte : read_run(checkpoint, tensor, 0, tensor.bytes))
    if (byte != std::byte{0} && byte != std::byte{0x80}) return false;  // -0 is none either
  return true;
}

// A layer's bias that the family does not add. Some tools write ones that are all zero.
void refuse_unused_bias(const io::Checkpoint& checkpoint, const io::TensorEntry& tensor,
                        const std::set<std::string_view>& used) {
  constexpr std::string_view kEnd = ".bias";
  const bool is_in_layer =
      tensor.name.find("layers.") != std::string::npos ||
      (checkpoint.format() == io::CheckpointFormat::kGguf && tensor.name.starts_with("blk."));
  if (!tensor.name.ends_with(kEnd) || !is_in_layer) return;
  const std::string stem = tensor.name.substr(0, tensor.name.size() - kEnd.size());
  const bool is_of_layer = used.contains(stem + ".weight") || used.contains(stem + ".qweight") ||
                           used.contains(stem + ".weight_packed");
  if (!is_of_layer || is_zero(checkpoint, tensor)) return;
  refuse(checkpoint,
         fmt::format("tensor {} is not zero, but config.json has the model without it",
                     io::in_quotes(tensor.name)),
         "set \"attention_bias\" or \"mlp_bias\" to true in config.json if the model has biases");
}

// What a GGUF file's matrix is multiplied with: it has been where the matrix is of NVFP4.
bool is_scale_in_use(const io::Checkpoint& checkpoint, const io::TensorEntry& tensor) {
  constexpr std::string_view kEnd = ".scale";
  if (checkpoint.format() != io::CheckpointFormat::kGguf || !tensor.name.ends_with(kEnd))
    return false;
  const std::string stem = tensor.name.substr(0, tensor.name.size() - kEnd.size());
  const io::TensorEntry* matrix = checkpoint.find(stem + ".weight");
  if (matrix && matrix->blocks != BlockType::kNVFP4)
    refuse(checkpoint,
           fmt::format("tensor {} scales a matrix that is not of NVFP4, which is not done",
                       io::in_quotes(tensor.name)),
           "download a file of the model in another type");
  return matrix != nullptr;
}

bool is_head(const std::string& name) {
  return std::any_of(head_names().begin(), head_names().end(),
                     [&](const std::string& head) { return name == head + ".weight"; });
}

// Filling, what is compared above, and what other tools write though sizes and settings say it.
bool is_known_to_be_idle(const std::string& name) {
  return name.starts_with("__pad") || is_head(name) || name == "rope_freqs.weight" ||
         name.starts_with("rope_factors_") || name.ends_with(".input_scale") ||
         name.ends_with("rotary_emb.inv_freq") || name.ends_with(".weight_shape");
}

}  // namespace

std::string judge_left_over(const io::Checkpoint& checkpoint, const ModelConfig& config,
                            const std::string& whole, const ModelShape& shape,
                            const std::set<std::string_view>& used) {
  refuse_other_heads(checkpoint, config);
  refuse_other_output(checkpoint, shape);
  int64_t unused = 0;
  std::string first;
  for (const io::TensorEntry& tensor : checkpoint.tensors()) {
    if (used.contains(tensor.name) || is_known_to_be_idle(tensor.name) ||
        is_scale_in_use(checkpoint, tensor))
      continue;
    refuse_unused_bias(checkpoint, tensor, used);
    if (unused++ == 0) first = tensor.name;
  }
  if (!whole.empty()) {
    const std::string rest =
        unused == 0 ? ""
                    : fmt::format(" ({} tensors of the checkpoint are not used, as {})", unused,
                                  io::in_quotes(first));
    return fmt::format("this is the text part of {}: images and sound are not read{}",
                       io::in_quotes(whole), rest);
  }
  if (unused == 0) return {};
  return fmt::format(
      "{} tensors of the checkpoint are not part of the {} architecture and are not used, as {}",
      unused, shape.family, io::in_quotes(first));
}

}  // namespace sluice
