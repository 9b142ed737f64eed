#pragma once
// One tensor of a checkpoint: what it is called, its shape, and the byte range of a file that holds
// it. Made by the checkpoint readers after validation, so the range is inside its file and bytes ==
// product(shape) * dtype. A plain value; used by the checkpoint readers, the packed store and the
// model code.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/block_type.h"
#include "src/base/dtype.h"
#include "src/base/weight_format.h"

namespace sluice::io {

constexpr size_t kMaxTensorDimensions = 64;  ///< more in a file is damage

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  WeightFormat quantised;               // of a quantised matrix, whose dtype is kU8; else kPlain
  BlockType blocks = BlockType::kNone;  // of a GGUF tensor, whose dtype is then kU8
  std::vector<int64_t> shape;  // row-major, contiguous; empty for a scalar; logical when quantised
  int32_t file_index = 0;      // into Checkpoint::files()
  int64_t offset = 0;          // of the first byte, from the start of the file
  int64_t bytes = 0;
};

/// Product of the dimensions (1 for a scalar); nothing when one is negative or the product
/// overflows int64.
std::optional<int64_t> element_count(std::span<const int64_t> shape) noexcept;
/// element_count * element size; nothing on a negative dimension or overflow.
std::optional<int64_t> tensor_bytes(std::span<const int64_t> shape, DType dtype) noexcept;
/// "bf16", "int4-g64" or "q4_k".
std::string element_name(const TensorEntry& tensor);
/// Bytes of a quantised matrix; nothing when the shape is no matrix or too large for the format.
std::optional<int64_t> quantised_bytes(std::span<const int64_t> shape, const WeightFormat& format);
/// The tensor as a safetensors file holds it: of a quantised one its panels, [panels, panel bytes].
TensorEntry as_filed(const TensorEntry& tensor);
/// "[50272, 768]", for messages.
std::string format_shape(std::span<const int64_t> shape);
/// `text` in double quotes for messages: control characters escaped, cut after 200 bytes. Names
/// come from files.
std::string in_quotes(std::string_view text);

}  // namespace sluice::io
