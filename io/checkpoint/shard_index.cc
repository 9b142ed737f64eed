#include "io/checkpoint/shard_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "io/checkpoint/json_file.h"
#include "io/checkpoint/tensor_entry.h"
#include "src/base/error.h"

namespace sluice::io {

namespace {

// Decided by the text alone: shards are often links to files elsewhere (Hugging Face's cache), and
// that is fine.
bool stays_inside(const std::string& file) {
  const std::filesystem::path path(file);
  if (file.empty() || file.find('\0') != std::string::npos || path.is_absolute() ||
      !path.has_filename())
    return false;
  for (const std::filesystem::path& part : path)
    if (part == ".." || part == ".") return false;
  return true;
}

}  // namespace

ShardIndex parse_shard_index(std::string_view text, const std::string& path) {
  const auto fail = [&](const std::string& problem) {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", path, problem), "download the index again");
  };
  const nlohmann::json root = parse_json(text, path);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object())
    fail("has no \"weight_map\" that says which file holds which tensor");
  ShardIndex index;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    if (!file.is_string())
      fail(fmt::format("the file of tensor {} is not a name", in_quotes(tensor)));
    const auto& name = file.get_ref<const std::string&>();
    if (!stays_inside(name))
      fail(fmt::format("tensor {} is said to be in {}, which is not a file inside the folder",
                       in_quotes(tensor), in_quotes(name)));
    index.tensors_by_shard[name].push_back(tensor);
  }
  if (index.tensors_by_shard.empty()) fail("names no tensors");
  return index;
}

}  // namespace sluice::io
