#pragma once
// Reads the pickle inside a PyTorch checkpoint without executing anything: an interpreter of its
// own for the opcodes of protocols 2 to 5 that knows a fixed list of names (the tensor rebuilders,
// storage classes, OrderedDict, torch.Size); any other name in the file is refused by name. Time,
// stack, memo and memory are bounded by the pickle's size and by kMaxPickleNodes, and nothing
// recurses. Thread safe; shares nothing.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/dtype.h"

namespace sluice::io {

constexpr int64_t kMaxPickleBytes = 64 << 20;  // real checkpoints have under 10 MB a file
constexpr int64_t kMaxPickleNodes =
    4'000'000;  // values made, some 20 a tensor; under 100 bytes of memory each

/// A tensor that the pickle describes.
struct PickledTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string storage_key;       // names the record that holds the elements
  int64_t storage_offset = 0;    // elements into the storage
  int64_t storage_elements = 0;  // as the pickle declares, counted in `dtype`
};

/// The tensors of a state dict: of the pickled dict itself, or of the dict under "state_dict",
/// "model_state_dict", "model" or "module" in it, or of the only dict in it that holds tensors.
/// Values that are no tensors are ignored. Checked: shapes, contiguity, storage range. `where` is
/// for errors. Errors: kFile (refused name, malformed pickle with offset, tensor that is not
/// contiguous or outside its storage, duplicate name, no tensors).
std::vector<PickledTensor> read_torch_pickle(std::span<const std::byte> pickle,
                                             const std::string& where);

}  // namespace sluice::io
