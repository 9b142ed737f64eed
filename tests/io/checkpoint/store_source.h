#pragma once
// A small source checkpoint for conversion tests, with the groups that a model's code would ask
// for, and comparison of a store with what it was made from.
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "io/checkpoint/element_conversion.h"
#include "io/checkpoint/packed_store.h"
#include "io/convert/convert.h"
#include "io/convert/safetensors_writer.h"
#include "tests/io/checkpoint/files.h"

namespace sluice::io {

/// Writes f16 tensors "embed", "layers.<i>.{weight,bias}", "head" and config files; `layers` layers
/// of `weight_elements`.
inline void write_source(const std::filesystem::path& folder, int layers, int64_t weight_elements) {
  std::vector<NewTensor> tensors = {{"embed", DType::kF16, {37, 3}}};
  for (int i = 0; i < layers; ++i) {
    tensors.push_back({"layers." + std::to_string(i) + ".weight", DType::kF16, {weight_elements}});
    tensors.push_back({"layers." + std::to_string(i) + ".bias", DType::kF32, {5}});
  }
  tensors.push_back({"head", DType::kBF16, {11, 2}});
  const TensorGenerator generate = [](size_t tensor, int64_t first, std::span<std::byte> to) {
    // Any bit pattern but those of NaN, which conversion makes quiet.
    for (size_t i = 0; i < to.size(); ++i)
      to[i] = static_cast<std::byte>(((static_cast<size_t>(first) + i) * 37 + tensor * 11) & 0x3b);
  };
  write_sharded_safetensors(folder, tensors, generate, {.max_shard_bytes = 4096, .threads = 1});
  write_all(folder / "config.json", "{\"model_type\": \"fixture\"}");
  write_all(folder / "tokenizer.json", "{\"fixture\": true}");
}

/// One group for the embedding, one a layer, one for the head; weights to `to` where it is given.
inline std::vector<StoreGroup> make_groups(int layers, std::optional<DType> to = std::nullopt) {
  std::vector<StoreGroup> groups = {{"embed", {{"embed", "embed", to}}}};
  for (int i = 0; i < layers; ++i) {
    const std::string name = "layers." + std::to_string(i);
    groups.push_back({"layer-" + std::to_string(i),
                      {{name + ".bias", name + ".bias", {}}, {name + ".weight", name + ".w", to}}});
  }
  groups.push_back({"head", {{"head", "head", to}}});
  return groups;
}

inline std::vector<std::byte> read_tensor(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
  InputFile(checkpoint.files().at(static_cast<size_t>(tensor.file_index)).path)
      .read(tensor.offset, bytes, "tensor");
  return bytes;
}

/// Every tensor of the store has the bytes that converting the source's gives, at an aligned place,
/// in the order asked.
inline void expect_store_holds(const std::filesystem::path& folder, const Checkpoint& source,
                               const std::vector<StoreGroup>& groups) {
  const Checkpoint store = Checkpoint::open(folder);
  EXPECT_EQ(store.format(), CheckpointFormat::kPackedStore);
  ASSERT_EQ(store.files().size(), groups.size());
  size_t position = 0;
  for (size_t g = 0; g < groups.size(); ++g)
    for (const StoreTensor& wanted : groups[g].tensors) {
      SCOPED_TRACE(wanted.store_name);
      const TensorEntry& from = *source.find(wanted.source_name);
      ASSERT_LT(position, store.tensors().size());
      const TensorEntry& to = store.tensors()[position++];
      EXPECT_EQ(to.name, wanted.store_name);
      EXPECT_EQ(to.file_index, static_cast<int32_t>(g));
      EXPECT_EQ(to.offset % kStoreAlignment, 0);
      EXPECT_EQ(to.shape, from.shape);
      EXPECT_EQ(to.dtype, wanted.to ? wanted.to->dtype : from.dtype);
      std::vector<std::byte> expected(static_cast<size_t>(to.bytes));
      convert_elements_portable(from.dtype, read_tensor(source, from), to.dtype, expected);
      EXPECT_TRUE(read_tensor(store, to) == expected);
    }
  EXPECT_EQ(position, store.tensors().size());
}

/// Both folders have the same files with the same bytes.
inline void expect_same_folders(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto names = [](const std::filesystem::path& folder) {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      found.insert(entry.path().filename().string());
    return found;
  };
  EXPECT_EQ(names(a), names(b));
  for (const std::string& name : names(a))
    EXPECT_TRUE(read_all(a / name) == read_all(b / name)) << name;
}

}  // namespace sluice::io
