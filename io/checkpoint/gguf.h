#pragma once
// Reads the header of a GGUF file (versions 2 and 3, little-endian): keys with values, then the
// tensors' names, shapes, types and places. Tensor data is never read, arrays are passed over. The
// bytes come from anywhere, so every length is checked against the file's size before anything is
// allocated. Functions share nothing and are thread safe.
#include <filesystem>
#include <vector>

#include "io/checkpoint/gguf_metadata.h"
#include "io/checkpoint/tensor_entry.h"

namespace sluice::io {

/// What a file says before its tensors' data.
struct GgufHeader {
  GgufMetadata metadata;
  /// Ordered by offset, from the start of the file; rows before columns, as everywhere here (the
  /// file has them the other way). file_index is 0.
  std::vector<TensorEntry> tensors;
};

/// Errors: kFile with path, tensor or key, and mend: no GGUF, another version, lengths past the end
/// of the file, a type that is not read, tensors outside the file or over each other.
GgufHeader read_gguf_header(const std::filesystem::path& path);
/// Whether a file begins as a GGUF file does, whatever its name. Errors: kFile when the system does
/// not say.
bool is_gguf(const std::filesystem::path& path);

}  // namespace sluice::io
