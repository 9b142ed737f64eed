#pragma once
// model.safetensors.index.json and pytorch_model.bin.index.json: which shard of a checkpoint holds
// which tensor. Private to the checkpoint readers; a value without behaviour.
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::io {

struct ShardIndex {
  std::map<std::string, std::vector<std::string>>
      tensors_by_shard;  // shard file name -> tensors promised in it
};

/// Parses "weight_map". `path` is for errors. Errors: kFile (no JSON, no weight_map, a shard's name
/// that leaves the folder, no tensors).
ShardIndex parse_shard_index(std::string_view json, const std::string& path);

}  // namespace sluice::io
