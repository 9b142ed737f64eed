#pragma once
// Reads the header of a safetensors file: 8 bytes of length, that many bytes of JSON, then tensor
// data. Tensor data is never read. Tensors cover the data exactly, as the format demands: a gap,
// an overlap or a byte too many is refused. Used by Checkpoint; the bytes come from anywhere, so
// every number is checked against the file's size. Functions share nothing and are thread safe.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/tensor_entry.h"

namespace sluice::io {

constexpr int64_t kMaxSafetensorsHeader =
    100 << 20;  // as the official library; larger ones are taken for corruption

/// What a file says before its tensors' data.
struct SafetensorsHeader {
  std::vector<TensorEntry>
      tensors;  // ordered by offset; offsets from the start of the file; file_index is 0
  std::map<std::string, std::string> metadata;
  int64_t data_offset = 0;  // where tensor data begin
};

/// `json`: the header text. `data_offset`: 8 + its length. `file_bytes`: size of the file. `path`
/// is for errors only. Errors: kFile (not JSON, duplicate names, unknown dtype, bad shape, byte
/// range outside the file, of the wrong length or not where the tensor before it ends, bytes after
/// the last) with tensor, offsets and mend.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_offset,
                                           int64_t file_bytes, const std::string& path);

/// Reads the header of a file. Errors: kFile; also for Git LFS pointers and empty files.
SafetensorsHeader read_safetensors_header(const std::filesystem::path& path);

/// A tensor as a header lists it.
struct HeaderTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // from the start of the data
  int64_t end = 0;
};

/// The first bytes of a safetensors file: length and JSON, padded with spaces so that data begin at
/// a multiple of `alignment` (8 as the official library does, or 4096).
std::string format_safetensors_header(const std::vector<HeaderTensor>& tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      int64_t alignment);

}  // namespace sluice::io
