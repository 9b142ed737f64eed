#pragma once
// Builds a Checkpoint from a path: finds which files make it up, reads their headers and checks
// them against each other. Private to checkpoint.cc and checkpoint_opener.cc; used once and thrown
// away.
#include <filesystem>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/gguf.h"
#include "io/checkpoint/shard_index.h"

namespace sluice::io {

class CheckpointOpener {
 public:
  explicit CheckpointOpener(const std::filesystem::path& path) : path_(path) {}
  Checkpoint open();
  /// Checkpoint::describe.
  Checkpoint describe(std::vector<TensorEntry> tensors, std::string config_text);

 private:
  void open_folder();
  void open_lone_file();
  bool open_safetensors_folder();
  bool open_torch_folder();
  bool open_gguf_folder();
  void open_gguf(const std::filesystem::path& path);
  void open_packed_store();
  void open_index(const std::filesystem::path& index_path, CheckpointFormat format);
  void open_unindexed(const std::vector<std::filesystem::path>& paths);
  void refuse_missing_shards(const ShardIndex& index,
                             const std::filesystem::path& index_path) const;
  void refuse_broken_promises(const ShardIndex& index,
                              const std::filesystem::path& index_path) const;
  void add_file(const std::filesystem::path& path);
  void add_gguf_file(const std::filesystem::path& path, GgufHeader header);
  void add_tensors(const std::filesystem::path& path, std::vector<TensorEntry> tensors);
  void finish();
  void index_names();

  std::filesystem::path path_;
  Checkpoint result_;
};

}  // namespace sluice::io
