#include "io/checkpoint/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "io/checkpoint/pickle_machine.h"
#include "io/checkpoint/tensor_entry.h"
#include "src/base/error.h"

namespace sluice::io {

namespace {

constexpr std::array<std::string_view, 4> kWrappers = {"state_dict", "model_state_dict", "model",
                                                       "module"};
constexpr int kMaxWrapping = 4;
constexpr size_t kMaxKeyBytes = 256;  // of a storage's name; copied for every tensor

// Turns the machine's values into tensors; `where` is for errors.
class StateDictReader {
 public:
  StateDictReader(const PickleMachine& machine, const std::string& where)
      : machine_(machine), where_(where) {}

  std::vector<PickledTensor> read(NodeId root) const {
    const Node& dict = unwrap(root);
    std::vector<PickledTensor> tensors;
    std::unordered_set<std::string_view> names;
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const Node& key = machine_.node(dict.items[i]);
      const Node& value = machine_.node(dict.items[i + 1]);
      if (key.kind != NodeKind::kText || value.kind != NodeKind::kTensor) continue;
      if (!names.insert(key.text).second)
        fail(fmt::format("tensor {} appears twice", in_quotes(key.text)));
      tensors.push_back(read_tensor(std::string(key.text), value));
    }
    if (tensors.empty())
      fail("holds no tensors by name (neither at the top nor under \"state_dict\" or \"model\")");
    return tensors;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", where_, problem),
                "save the model's state dict: torch.save(model.state_dict(), path), or convert it "
                "to safetensors");
  }

  bool has_tensor(const Node& dict) const {
    for (size_t i = 1; i < dict.items.size(); i += 2)
      if (machine_.node(dict.items[i]).kind == NodeKind::kTensor) return true;
    return false;
  }

  // The dict to go on with: under one of the usual names, or the only one that holds tensors.
  const Node* wrapped(const Node& dict) const {
    const Node* only = nullptr;
    int count = 0;
    std::unordered_set<NodeId> seen;  // a dict may be there many times: looked through once
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const Node& key = machine_.node(dict.items[i]);
      const Node& value = machine_.node(dict.items[i + 1]);
      if (value.kind != NodeKind::kDict) continue;
      const bool is_usual =
          std::find(kWrappers.begin(), kWrappers.end(), key.text) != kWrappers.end();
      if (key.kind == NodeKind::kText && is_usual) return &value;
      if (!seen.insert(dict.items[i + 1]).second || !has_tensor(value)) continue;
      only = &value;
      ++count;
    }
    return count == 1 ? only : nullptr;
  }

  const Node& unwrap(NodeId root) const {
    const Node* dict = &machine_.node(root);
    if (dict->kind != NodeKind::kDict) fail("holds no dict of tensors");
    for (int level = 0; level < kMaxWrapping && !has_tensor(*dict); ++level) {
      const Node* inner = wrapped(*dict);
      if (inner == nullptr) break;
      dict = inner;
    }
    return *dict;
  }

  std::vector<int64_t> integers(const Node& tuple, const std::string& name,
                                const char* what) const {
    if (tuple.items.size() > kMaxTensorDimensions)
      fail(fmt::format("tensor {}: too many dimensions", in_quotes(name)));
    std::vector<int64_t> values;
    for (const NodeId id : tuple.items) {
      const Node& value = machine_.node(id);
      if (value.kind != NodeKind::kInt || value.integer < 0)
        fail(fmt::format("tensor {}: {} is not a list of whole numbers from 0", in_quotes(name),
                         what));
      values.push_back(value.integer);
    }
    return values;
  }

  // Row-major: each stride is the product of the dimensions after it. Dimensions of 1 may say
  // anything.
  static bool is_contiguous(const std::vector<int64_t>& shape,
                            const std::vector<int64_t>& strides) {
    int64_t expected = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] != 1 && strides[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }

  PickledTensor read_tensor(std::string name, const Node& node) const {
    const Node& storage = machine_.node(node.items[0]);
    if (storage.text.size() > kMaxKeyBytes)
      fail(fmt::format("tensor {}: its storage's name is too long", in_quotes(name)));
    PickledTensor tensor{.name = std::move(name),
                         .dtype = *node.dtype,
                         .storage_key = std::string(storage.text),
                         .storage_offset = machine_.node(node.items[1]).integer};
    tensor.shape = integers(machine_.node(node.items[2]), tensor.name, "its shape");
    const std::vector<int64_t> strides =
        integers(machine_.node(node.items[3]), tensor.name, "its strides");
    // An untyped storage counts bytes.
    tensor.storage_elements =
        storage.dtype ? storage.integer : storage.integer / dtype_bytes(tensor.dtype);
    const std::optional<int64_t> count = element_count(tensor.shape);
    if (strides.size() != tensor.shape.size() || !count ||
        !tensor_bytes(tensor.shape, tensor.dtype))
      fail(fmt::format("tensor {}: shape {} with strides {} makes no sense", in_quotes(tensor.name),
                       format_shape(tensor.shape), format_shape(strides)));
    if (*count > 0 && !is_contiguous(tensor.shape, strides))
      fail(fmt::format(
          "tensor {}: shape {} with strides {} is not contiguous, so it cannot be read in place",
          in_quotes(tensor.name), format_shape(tensor.shape), format_shape(strides)));
    if (tensor.storage_offset < 0 || tensor.storage_offset > tensor.storage_elements ||
        *count > tensor.storage_elements - tensor.storage_offset)
      fail(fmt::format("tensor {}: {} elements from {} on do not lie in its storage of {}",
                       in_quotes(tensor.name), *count, tensor.storage_offset,
                       tensor.storage_elements));
    return tensor;
  }

  const PickleMachine& machine_;
  const std::string& where_;
};

}  // namespace

std::vector<PickledTensor> read_torch_pickle(std::span<const std::byte> pickle,
                                             const std::string& where) {
  if (static_cast<int64_t>(pickle.size()) > kMaxPickleBytes)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: a pickle of {} bytes, more than {} are not read", where,
                            pickle.size(), kMaxPickleBytes),
                "convert the checkpoint to safetensors");
  PickleMachine machine(pickle, where);
  const NodeId root = machine.run();
  return StateDictReader(machine, where).read(root);
}

}  // namespace sluice::io
