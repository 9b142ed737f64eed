// The header of a safetensors file: arbitrary bytes as the JSON, with sizes that they claim
// themselves. Whatever is accepted must lie inside the file and agree with its own shape.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/safetensors.h"
#include "src/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto data_offset = static_cast<int64_t>(8 + size);
  const int64_t file_bytes = data_offset + (size > 0 ? int64_t{data[size - 1]} * 16 : 0);
  try {
    const auto header = sluice::io::parse_safetensors_header(text, data_offset, file_bytes, "fuzz");
    for (const sluice::io::TensorEntry& tensor : header.tensors) {
      if (tensor.offset < data_offset || tensor.offset + tensor.bytes > file_bytes) std::abort();
      if (sluice::io::tensor_bytes(tensor.shape, tensor.dtype) != tensor.bytes) std::abort();
    }
  } catch (const sluice::Error& error) {
    if (error.kind() != sluice::ErrorKind::kFile) std::abort();
  }
  return 0;
}
