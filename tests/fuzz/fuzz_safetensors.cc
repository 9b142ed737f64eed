// The header of a safetensors file: arbitrary bytes as the JSON, with a file as long as it claims,
// and with one that its last byte chooses. Whatever is accepted must lie inside the file and agree
// with its own shape.
#include "io/checkpoint/safetensors.h"
#include "src/base/error.h"
#include "tests/fuzz/fuzzing.h"

namespace {
void check(std::string_view text, int64_t data_bytes) {
  const auto data_offset = static_cast<int64_t>(8 + text.size());
  const int64_t file_bytes = data_offset + data_bytes;
  try {
    const auto header = sluice::io::parse_safetensors_header(text, data_offset, file_bytes, "fuzz");
    if (!header.tensors.empty()) sluice::fuzz::accepted();
    for (const sluice::io::TensorEntry& tensor : header.tensors) {
      sluice::fuzz::require(tensor.offset >= data_offset &&
                            tensor.offset + tensor.bytes <= file_bytes);
      sluice::fuzz::require(sluice::io::tensor_bytes(tensor.shape, tensor.dtype) == tensor.bytes);
    }
  } catch (const sluice::Error& error) {
    sluice::fuzz::require(error.kind() == sluice::ErrorKind::kFile && !error.text().empty());
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = sluice::fuzz::text_of(data, size);
  check(text, sluice::fuzz::claimed_bytes(text, int64_t{1} << 59));
  check(text, size > 0 ? int64_t{data[size - 1]} * 16 : 0);
  return 0;
}
