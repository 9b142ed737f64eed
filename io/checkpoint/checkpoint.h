#pragma once
// A model's weights as they lie on disk: which tensors there are and where their bytes are. Opens a
// Hugging Face folder (safetensors or PyTorch .bin, sharded or not), a packed store, or one weight
// file; reads headers and indices only, never tensor data, and executes nothing that a file
// contains. Everything is validated by open(). Immutable after open(); safe to share between
// threads.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/gguf_metadata.h"
#include "io/checkpoint/tensor_entry.h"
#include "io/files/watched_files.h"

namespace sluice::io {

/// One file of a checkpoint.
struct CheckpointFile {
  std::filesystem::path path;
  int64_t bytes = 0;
  FileStamp stamp{};  ///< of when it was opened; of one that is made when it is asked for none
};

/// What a checkpoint's files are.
enum class CheckpointFormat { kSafetensors, kTorchBin, kPackedStore, kGguf, kGenerated };

/// "safetensors", "PyTorch", "packed store", "GGUF", "generated".
std::string_view checkpoint_format_name(CheckpointFormat format) noexcept;

/// Some rows of a plain matrix or one in blocks, or elements of a plain vector, under a name of
/// their own.
struct TensorRows {
  std::string name;
  std::string matrix;
  int64_t first_row = 0;
  int64_t rows = 0;
};

class Checkpoint {
 public:
  /// `path`: a folder or one .safetensors / .bin / .pt / .pth / .gguf file; of a split GGUF model
  /// any part. In a folder the first of these wins: a packed store (sluice-store.json),
  /// model.safetensors.index.json, model.safetensors, other *.safetensors files,
  /// pytorch_model.bin.index.json, pytorch_model.bin, the .gguf file when it is the only one.
  /// Errors: kFile with path, tensor, offset, what is wrong, mend.
  static Checkpoint open(const std::filesystem::path& path);
  /// A checkpoint that lies nowhere: its tensors' bytes are made when they are asked for
  /// (ConvertOptions::source_bytes). Each tensor is a "file" of its own, in this order, by its
  /// name. Errors: kFile for repeated names.
  static Checkpoint describe(std::vector<TensorEntry> tensors, std::string config_text);

  /// Adds tensors that are the bytes of rows of others; what find() gave before is no longer valid.
  /// Errors: kFile for a name that is there, a matrix that is not or has not so many rows.
  void add_rows(const std::vector<TensorRows>& added);

  CheckpointFormat format() const noexcept { return format_; }
  const std::vector<CheckpointFile>& files() const noexcept { return files_; }
  /// Ordered by file, then offset, then name. Names are unique; PyTorch files may name one byte
  /// range twice (tied).
  const std::vector<TensorEntry>& tensors() const noexcept { return tensors_; }
  /// The tensor of that name, or null. Valid as long as this object.
  const TensorEntry* find(std::string_view name) const noexcept;
  /// The folder that was opened, or that holds the file.
  const std::filesystem::path& folder() const noexcept { return folder_; }
  /// The text of config.json; empty when the folder has none or a lone file was opened.
  const std::string& config_text() const noexcept { return config_text_; }
  /// The text of generation_config.json; empty likewise.
  const std::string& generation_config_text() const noexcept { return generation_config_text_; }
  /// safetensors' __metadata__ of all files together; the first file to name a key wins.
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  /// Keys and values of a GGUF model's (first) file; else none.
  const GgufMetadata& gguf_metadata() const noexcept { return *gguf_metadata_; }
  /// Bytes of tensor data; a range that several names share counts once.
  int64_t total_bytes() const noexcept { return total_bytes_; }

 private:
  Checkpoint();
  friend class CheckpointOpener;
  /// Sorts the tensors and their names.
  void put_in_order();

  CheckpointFormat format_ = CheckpointFormat::kSafetensors;
  std::vector<CheckpointFile> files_;
  std::vector<TensorEntry> tensors_;
  std::vector<uint32_t> by_name_;  // positions in tensors_, ordered by name
  std::filesystem::path folder_;
  std::string config_text_;
  std::string generation_config_text_;
  std::map<std::string, std::string> metadata_;
  std::shared_ptr<const GgufMetadata> gguf_metadata_;
  int64_t total_bytes_ = 0;
};

/// What `sluice inspect` says of a checkpoint.
struct CheckpointSummary {
  CheckpointFormat format = CheckpointFormat::kSafetensors;
  int64_t file_count = 0;
  int64_t file_bytes = 0;
  int64_t tensor_count = 0;
  int64_t tied_tensor_count = 0;  // names whose byte range an earlier name already has
  int64_t parameters = 0;         // elements; a shared range counts once
  int64_t tensor_bytes = 0;
  std::map<std::string, int64_t> bytes_by_dtype;  // by element_name()
};
CheckpointSummary summarize(const Checkpoint& checkpoint);

}  // namespace sluice::io
