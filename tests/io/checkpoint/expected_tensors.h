#pragma once
// expected.json beside the fixtures: what the real libraries say a checkpoint holds, name by name,
// with the CRC32C of each tensor's bytes. Compares a Checkpoint with it.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/io/checkpoint/files.h"

namespace sluice::io {

struct ExpectedTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint32_t crc32c = 0;
};
using ExpectedTensors = std::map<std::string, ExpectedTensor>;
using ExpectedFiles = std::map<std::string, ExpectedTensors>;

inline ExpectedFiles read_expected(const std::filesystem::path& path) {
  ExpectedFiles files;
  const nlohmann::json root = nlohmann::json::parse(read_all(path));
  for (const auto& [file, tensors] : root.items())
    for (const auto& [name, tensor] : tensors.items())
      files[file][name] = {parse_dtype(tensor["dtype"].get<std::string>()).value(), tensor["shape"],
                           tensor["crc32c"]};
  return files;
}

inline void expect_tensors(const Checkpoint& checkpoint, const ExpectedTensors& expected) {
  EXPECT_EQ(checkpoint.tensors().size(), expected.size());
  for (const auto& [name, wanted] : expected) {
    SCOPED_TRACE(name);
    const TensorEntry* tensor = checkpoint.find(name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(dtype_name(tensor->dtype), dtype_name(wanted.dtype));
    EXPECT_EQ(tensor->shape, wanted.shape);
    EXPECT_EQ(data_checksum(checkpoint, *tensor), wanted.crc32c);
  }
}

}  // namespace sluice::io
