#include "io/checkpoint/checkpoint_opener.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_set>

#include "io/checkpoint/convert_journal.h"
#include "io/checkpoint/gguf.h"
#include "io/checkpoint/gguf_parts.h"
#include "io/checkpoint/json_file.h"
#include "io/checkpoint/packed_store.h"
#include "io/checkpoint/safetensors.h"
#include "io/checkpoint/torch_zip.h"
#include "io/files/input_file.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::io {

namespace {

namespace fs = std::filesystem;

constexpr const char* kNoModelMend =
    "give a Hugging Face model folder, a packed store (sluice convert), or one .safetensors, .gguf "
    "or PyTorch file";

bool has_extension(const fs::path& path, std::initializer_list<std::string_view> extensions) {
  return std::find(extensions.begin(), extensions.end(), path.extension().string()) !=
         extensions.end();
}

// A dangling link counts: opening it says what is wrong.
bool is_named(const fs::path& path) {
  std::error_code problem;
  return fs::exists(fs::symlink_status(path, problem)) || is_there(path);
}

std::string optional_text(const fs::path& path) {
  return read_file_if_there(path, kMostSettingsBytes).value_or(std::string());
}

std::vector<fs::path> files_with_extension(const fs::path& folder, std::string_view extension) {
  std::vector<fs::path> paths = folder_entries(folder);
  std::erase_if(paths, [&](const fs::path& path) { return path.extension() != extension; });
  return paths;
}

// The part after "-of-" in "model-00001-of-00003.safetensors", or 0: how many shards there should
// be.
int64_t promised_shards(const fs::path& path) {
  const std::string stem = path.stem().string();
  const size_t at = stem.rfind("-of-");
  if (at == std::string::npos) return 0;
  const std::string digits = stem.substr(at + 4);
  const bool is_number =
      !digits.empty() && digits.size() < 8 &&
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? std::stoll(digits) : 0;
}

}  // namespace

Checkpoint CheckpointOpener::open() {
  const PathKind kind = path_kind(path_);
  if (kind == PathKind::kMissing)
    throw Error(ErrorKind::kFile, fmt::format("{}: no such file or folder", path_.string()),
                kNoModelMend);
  if (kind == PathKind::kFolder) {
    open_folder();
  } else {
    open_lone_file();
  }
  finish();
  return std::move(result_);
}

Checkpoint CheckpointOpener::describe(std::vector<TensorEntry> tensors, std::string config_text) {
  result_.format_ = CheckpointFormat::kGenerated;
  result_.config_text_ = std::move(config_text);
  for (TensorEntry& tensor : tensors) {
    tensor.file_index = static_cast<int32_t>(result_.files_.size());
    tensor.offset = 0;
    result_.files_.push_back({tensor.name, tensor.bytes, {}});
  }
  result_.tensors_ = std::move(tensors);
  finish();
  return std::move(result_);
}

void CheckpointOpener::open_folder() {
  result_.folder_ = path_;
  result_.config_text_ = optional_text(path_ / "config.json");
  result_.generation_config_text_ = optional_text(path_ / "generation_config.json");
  if (is_packed_store(path_)) return open_packed_store();
  // Its finished weight files would look like a checkpoint of which the rest is missing.
  if (is_named(path_ / kJournalName))
    throw Error(ErrorKind::kFile, fmt::format("{}: an unfinished conversion", path_.string()),
                "run the same sluice convert command again to finish it");
  if (open_safetensors_folder() || open_torch_folder() || open_gguf_folder()) return;
  throw Error(
      ErrorKind::kFile,
      fmt::format("{}: no model weights here (looked for {}, model.safetensors, *.safetensors, "
                  "pytorch_model.bin and their index files, *.gguf)",
                  path_.string(), kStoreIndexName),
      kNoModelMend);
}

void CheckpointOpener::open_lone_file() {
  result_.folder_ = path_.parent_path();
  if (path_.filename() == kStoreIndexName || path_.filename().string().ends_with(".index.json"))
    throw Error(ErrorKind::kFile, fmt::format("{}: an index, not weights", path_.string()),
                fmt::format("give its folder: {}", path_.parent_path().string()));
  if (has_extension(path_, {".safetensors"})) {
    result_.format_ = CheckpointFormat::kSafetensors;
  } else if (has_extension(path_, {".bin", ".pt", ".pth", ".ckpt"})) {
    result_.format_ = CheckpointFormat::kTorchBin;
  } else if (has_extension(path_, {".gguf"}) || is_gguf(path_)) {
    return open_gguf(path_);
  } else {
    throw Error(ErrorKind::kFile,
                fmt::format("{}: not a kind of weight file that is read", path_.string()),
                kNoModelMend);
  }
  add_file(path_);
}

bool CheckpointOpener::open_safetensors_folder() {
  if (const fs::path index = path_ / "model.safetensors.index.json"; is_named(index)) {
    open_index(index, CheckpointFormat::kSafetensors);
    return true;
  }
  result_.format_ = CheckpointFormat::kSafetensors;
  if (const fs::path single = path_ / "model.safetensors"; is_named(single)) {
    add_file(single);
    return true;
  }
  const std::vector<fs::path> paths = files_with_extension(path_, ".safetensors");
  if (!paths.empty()) open_unindexed(paths);
  return !paths.empty();
}

bool CheckpointOpener::open_torch_folder() {
  if (const fs::path index = path_ / "pytorch_model.bin.index.json"; is_named(index)) {
    open_index(index, CheckpointFormat::kTorchBin);
    return true;
  }
  result_.format_ = CheckpointFormat::kTorchBin;
  const fs::path single = path_ / "pytorch_model.bin";
  if (!is_named(single)) return false;
  add_file(single);
  return true;
}

bool CheckpointOpener::open_gguf_folder() {
  const std::vector<fs::path> paths = files_with_extension(path_, ".gguf");
  if (paths.empty()) return false;
  int64_t parts = std::max<int64_t>(promised_shards(paths.front()), 1);
  if (paths.size() > 1) {
    try {
      const GgufHeader header = read_gguf_header(paths.front());
      if (const auto part = gguf_part(header.metadata, paths.front())) parts = part->count;
    } catch (const Error&) {  // one of several: it is not said yet that this is the one to read
    }
  }
  // Of a split model with parts missing the error is which.
  if (std::ssize(paths) > parts || (parts == 1 && paths.size() > 1))
    throw Error(ErrorKind::kFile,
                fmt::format("{}: {} GGUF files are here", path_.string(), paths.size()),
                fmt::format("give the one to read: {}", paths.front().string()));
  open_gguf(paths.front());
  return true;
}

// One file, or all parts of a split model, whose first has the metadata.
void CheckpointOpener::open_gguf(const fs::path& path) {
  result_.format_ = CheckpointFormat::kGguf;
  GgufHeader header = read_gguf_header(path);
  if (const auto part = gguf_part(header.metadata, path)) {
    for (const fs::path& one : gguf_parts(path, *part)) add_file(one);
    if (part->tensors >= 0 && std::ssize(result_.tensors_) != part->tensors)
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: its {} parts hold {} tensors, and key split.tensors.count says "
                              "{}",
                              path.string(), part->count, result_.tensors_.size(), part->tensors),
                  "the parts are of different downloads: download all of them again");
    return;
  }
  // Files from before there were keys for it.
  const int64_t parts = promised_shards(path);
  if (parts <= 1) return add_gguf_file(path, std::move(header));
  const std::string stem = path.stem().string();
  const size_t end = stem.rfind("-of-");
  if (end < 6 || stem[end - 6] != '-')
    throw Error(ErrorKind::kFile, fmt::format("{}: no name of a part", path.string()),
                "parts are called NAME-00001-of-00003.gguf");
  for (int64_t part = 1; part <= parts; ++part) {
    const fs::path one =
        path.parent_path() /
        fmt::format("{}-{:05}{}.gguf", stem.substr(0, end - 6), part, stem.substr(end));
    if (!is_named(one))
      throw Error(ErrorKind::kFile, fmt::format("{}: this part is missing", one.string()),
                  "download all parts into one folder");
    add_file(one);
  }
}

// Shards without an index: all of them, when their names do not say that some are missing.
void CheckpointOpener::open_unindexed(const std::vector<fs::path>& paths) {
  const int64_t promised = promised_shards(paths.front());
  if (promised > static_cast<int64_t>(paths.size()))
    throw Error(ErrorKind::kFile,
                fmt::format("{}: {} of {} shards are here, and no index", path_.string(),
                            paths.size(), promised),
                "download the missing files again");
  for (const fs::path& path : paths) add_file(path);
}

void CheckpointOpener::open_index(const fs::path& index_path, CheckpointFormat format) {
  result_.format_ = format;
  const ShardIndex index =
      parse_shard_index(read_file(index_path, JsonLimits{}.max_bytes), index_path.string());
  refuse_missing_shards(index, index_path);
  for (const auto& [shard, tensors] : index.tensors_by_shard) add_file(path_ / shard);
  refuse_broken_promises(index, index_path);
}

void CheckpointOpener::refuse_missing_shards(const ShardIndex& index,
                                             const fs::path& index_path) const {
  std::vector<std::string> missing;
  for (const auto& [shard, tensors] : index.tensors_by_shard)
    if (!is_named(path_ / shard)) missing.push_back(shard);
  if (missing.empty()) return;
  throw Error(ErrorKind::kFile,
              fmt::format("{}: {} of {} shards that {} names are missing, the first is {}",
                          path_.string(), missing.size(), index.tensors_by_shard.size(),
                          index_path.filename().string(), in_quotes(missing.front())),
              "re-download the missing files");
}

void CheckpointOpener::refuse_broken_promises(const ShardIndex& index,
                                              const fs::path& index_path) const {
  // files_ follow the order of tensors_by_shard.
  std::vector<std::unordered_set<std::string_view>> present(result_.files_.size());
  for (const TensorEntry& tensor : result_.tensors_)
    present[static_cast<size_t>(tensor.file_index)].insert(tensor.name);
  size_t file = 0;
  for (const auto& [shard, tensors] : index.tensors_by_shard) {
    for (const std::string& tensor : tensors)
      if (!present[file].contains(tensor))
        throw Error(
            ErrorKind::kFile,
            fmt::format("{}: tensor {} is not in {}, though {} says so", path_.string(),
                        in_quotes(tensor), in_quotes(shard), index_path.filename().string()),
            "index and shards are of different downloads: re-download both");
    ++file;
  }
}

void CheckpointOpener::open_packed_store() {
  result_.format_ = CheckpointFormat::kPackedStore;
  const PackedIndex index = read_packed_index(path_);
  for (const PackedGroup& group : index.groups) {
    const size_t first = result_.tensors_.size();
    add_file(path_ / group.file);
    const std::string where = (path_ / group.file).string();
    constexpr const char* kMend =
        "the store was changed after it was written: convert the model again";
    if (result_.files_.back().bytes != group.bytes)
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: {} bytes, but the store's index says {}", where,
                              result_.files_.back().bytes, group.bytes),
                  kMend);
    std::vector<TensorEntry> here(result_.tensors_.begin() + static_cast<std::ptrdiff_t>(first),
                                  result_.tensors_.end());
    const auto is_same = [](const TensorEntry& a, const TensorEntry& b) {
      return std::tie(a.name, a.dtype, a.shape, a.offset, a.bytes) ==
             std::tie(b.name, b.dtype, b.shape, b.offset, b.bytes);
    };
    const auto by_name = [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; };
    std::vector<TensorEntry> promised;
    for (const TensorEntry& tensor : group.tensors) promised.push_back(as_filed(tensor));
    if (!group.repeats.empty()) {  // the index is read: there is such a group, alike but for names
      const auto repeated =
          std::find_if(index.groups.begin(), index.groups.end(),
                       [&](const PackedGroup& other) { return other.name == group.repeats; });
      for (size_t i = 0; i < promised.size(); ++i) promised[i].name = repeated->tensors[i].name;
    }
    std::sort(here.begin(), here.end(), by_name);
    std::sort(promised.begin(), promised.end(), by_name);
    if (!std::equal(here.begin(), here.end(), promised.begin(), promised.end(), is_same))
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: its tensors are not those of the store's index", where), kMend);
    // The index knows more: what is quantised, and the shapes of that.
    std::copy(group.tensors.begin(), group.tensors.end(),
              result_.tensors_.begin() + static_cast<std::ptrdiff_t>(first));
  }
}

void CheckpointOpener::add_file(const fs::path& path) {
  if (result_.format_ == CheckpointFormat::kTorchBin)
    return add_tensors(path, read_torch_file(path));
  if (result_.format_ == CheckpointFormat::kGguf)
    return add_gguf_file(path, read_gguf_header(path));
  SafetensorsHeader header = read_safetensors_header(path);
  // Filling between a packed store's tensors is spelled out as tensors, because the format allows
  // no gaps.
  if (header.metadata.contains(std::string(kStoreMetadataKey)))
    std::erase_if(header.tensors, [](const TensorEntry& tensor) {
      return tensor.name.starts_with(kStorePadPrefix);
    });
  result_.metadata_.merge(header.metadata);
  add_tensors(path, std::move(header.tensors));
}

void CheckpointOpener::add_gguf_file(const fs::path& path, GgufHeader header) {
  if (result_.files_.empty())
    result_.gguf_metadata_ = std::make_shared<GgufMetadata>(std::move(header.metadata));
  add_tensors(path, std::move(header.tensors));
}

void CheckpointOpener::add_tensors(const fs::path& path, std::vector<TensorEntry> tensors) {
  const auto index = static_cast<int32_t>(result_.files_.size());
  const InputFile file(path);
  result_.files_.push_back({path, file.size(), file.stamp()});
  for (TensorEntry& tensor : tensors) {
    tensor.file_index = index;
    result_.tensors_.push_back(std::move(tensor));
  }
}

void CheckpointOpener::finish() {
  const std::vector<TensorEntry>& tensors = result_.tensors_;
  if (tensors.empty())
    throw Error(ErrorKind::kFile, fmt::format("{}: the checkpoint has no tensors", path_.string()),
                kNoModelMend);
  std::set<std::tuple<int32_t, int64_t, int64_t>> ranges;
  for (const TensorEntry& tensor : tensors)
    if (ranges.emplace(tensor.file_index, tensor.offset, tensor.bytes).second)
      result_.total_bytes_ += tensor.bytes;
  index_names();
}

void CheckpointOpener::index_names() {
  result_.put_in_order();
  const std::vector<TensorEntry>& tensors = result_.tensors_;
  const std::vector<uint32_t>& by_name = result_.by_name_;
  const auto twice = std::adjacent_find(
      by_name.begin(), by_name.end(),
      [&](uint32_t a, uint32_t b) { return tensors[a].name == tensors[b].name; });
  if (twice == by_name.end()) return;
  const auto path_of = [&](uint32_t position) {
    return result_.files_[static_cast<size_t>(tensors[position].file_index)].path.string();
  };
  throw Error(ErrorKind::kFile,
              fmt::format("{}: tensor {} is in {} and again in {}", path_.string(),
                          in_quotes(tensors[*twice].name), path_of(*twice), path_of(*(twice + 1))),
              "remove the file that does not belong to the model, or download its index");
}

}  // namespace sluice::io
