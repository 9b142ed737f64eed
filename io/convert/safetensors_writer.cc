#include "io/convert/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "io/checkpoint/parallel_ranges.h"
#include "io/checkpoint/safetensors.h"
#include "io/checkpoint/tensor_entry.h"
#include "io/files/direct_writer.h"
#include "io/files/durable_file.h"
#include "io/files/folder_lock.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::io {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kHeaderAlignment = 8;  // as Hugging Face's library
constexpr int64_t kSmallestRange =
    64 << 10;  // elements a thread makes at least: some 0.1 ms of random numbers
constexpr int64_t kRoomForSmallFiles = 1 << 20;  // the index and folder entries

struct Shard {
  std::string name;
  std::string header;
  size_t first_tensor = 0;
  size_t tensor_count = 0;
  int64_t data_bytes = 0;
  int64_t file_bytes() const { return static_cast<int64_t>(header.size()) + data_bytes; }
};

[[noreturn]] void refuse(const std::string& problem, const char* mend = "") {
  throw Error(ErrorKind::kUser, problem, mend);
}

// Bytes of each tensor, names and shapes checked.
std::vector<int64_t> check_tensors(std::span<const NewTensor> tensors) {
  if (tensors.empty()) refuse("a checkpoint needs at least one tensor");
  std::vector<int64_t> sizes;
  std::unordered_set<std::string_view> names;
  int64_t total = 0;
  for (const NewTensor& tensor : tensors) {
    const std::optional<int64_t> bytes = tensor_bytes(tensor.shape, tensor.dtype);
    if (!bytes || __builtin_add_overflow(total, *bytes, &total))
      refuse(fmt::format("tensor {}: shape {} makes no sense", in_quotes(tensor.name),
                         format_shape(tensor.shape)));
    if (tensor.name.empty() || tensor.name.starts_with("__") || !names.insert(tensor.name).second)
      refuse(fmt::format("tensor {}: an empty, reserved or repeated name", in_quotes(tensor.name)));
    sizes.push_back(*bytes);
  }
  return sizes;
}

class ShardedWriter {
 public:
  ShardedWriter(const fs::path& folder, std::span<const NewTensor> tensors,
                const TensorGenerator& generator, const SafetensorsWriteOptions& options)
      : folder_(folder),
        tensors_(tensors),
        generator_(generator),
        options_(options),
        sizes_(check_tensors(tensors)) {
    plan_shards();
  }

  std::vector<std::string> run() {
    prepare_folder();
    try {
      for (const Shard& shard : shards_) write_shard(shard);
      refuse_stop();
      publish();
    } catch (...) {
      for (const Shard& shard : shards_) {
        std::error_code ignored;
        fs::remove(partial_path(folder_ / shard.name), ignored);
      }
      throw;
    }
    std::vector<std::string> names;
    for (const Shard& shard : shards_) names.push_back(shard.name);
    return names;
  }

 private:
  void plan_shards() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const bool is_full = !shards_.empty() && shards_.back().tensor_count > 0 &&
                           sizes_[i] > options_.max_shard_bytes - shards_.back().data_bytes;
      if (shards_.empty() || is_full) shards_.push_back({.first_tensor = i});
      shards_.back().data_bytes += sizes_[i];
      ++shards_.back().tensor_count;
    }
    for (size_t i = 0; i < shards_.size(); ++i) {
      Shard& shard = shards_[i];
      shard.name = shards_.size() == 1
                       ? "model.safetensors"
                       : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
      std::vector<HeaderTensor> entries;
      int64_t at = 0;
      for (size_t t = shard.first_tensor; t < shard.first_tensor + shard.tensor_count; ++t) {
        entries.push_back(
            {tensors_[t].name, tensors_[t].dtype, tensors_[t].shape, at, at + sizes_[t]});
        at += sizes_[t];
      }
      shard.header = format_safetensors_header(entries, options_.metadata, kHeaderAlignment);
      total_bytes_ += shard.file_bytes();
    }
  }

  static bool is_model_file(const fs::path& path) {
    const std::string name = path.filename().string();
    return name == "model.safetensors" || name == "model.safetensors.index.json" ||
           (name.starts_with("model-") && name.ends_with(".safetensors"));
  }

  void prepare_folder() {
    make_folder(folder_);
    lock_.emplace(folder_);
    for (const fs::path& path : folder_entries(folder_))
      if (is_model_file(path)) old_files_.push_back(path);
    if (!old_files_.empty() && !options_.overwrite)
      refuse(fmt::format("{}: already holds a model ({})", folder_.string(),
                         old_files_.front().filename().string()),
             "say `overwrite` to replace it, or choose another folder");
    require_disk_space(folder_, total_bytes_ + kRoomForSmallFiles);
  }

  void write_shard(const Shard& shard) {
    DirectWriter writer(partial_path(folder_ / shard.name), shard.file_bytes(),
                        DirectWriter::Checksum::kNone);
    writer.append(std::as_bytes(std::span(shard.header)));
    for (size_t t = shard.first_tensor; t < shard.first_tensor + shard.tensor_count; ++t)
      write_tensor(t, shard, writer);
    writer.finish();
    done_bytes_ += writer.bytes();
    if (options_.progress) options_.progress({done_bytes_, total_bytes_, shard.name});
  }

  void write_tensor(size_t tensor, const Shard& shard, DirectWriter& writer) {
    const int64_t element = dtype_bytes(tensors_[tensor].dtype);
    const int64_t count = sizes_[tensor] / element;
    for (int64_t first = 0; first < count;) {
      refuse_stop();
      if (options_.progress)
        options_.progress({done_bytes_ + writer.bytes(), total_bytes_, shard.name});
      const std::span<std::byte> space = writer.space();
      const int64_t here = std::min(count - first, static_cast<int64_t>(space.size()) / element);
      if (here == 0) {  // an element across two buffers
        std::array<std::byte, 8> one{};
        const std::span<std::byte> bytes = std::span(one).first(static_cast<size_t>(element));
        generator_(tensor, first, bytes);
        writer.append(bytes);
        ++first;
        continue;
      }
      parallel_ranges(options_.threads, here, kSmallestRange, [&](int64_t begin, int64_t end) {
        generator_(tensor, first + begin,
                   space.subspan(static_cast<size_t>(begin * element),
                                 static_cast<size_t>((end - begin) * element)));
      });
      writer.advance(static_cast<size_t>(here * element));
      first += here;
    }
  }

  void refuse_stop() const {
    if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed))
      throw Error(ErrorKind::kCancelled, fmt::format("{}: writing stopped", folder_.string()));
  }

  // The old model goes only when the new one is complete.
  void publish() {
    for (const fs::path& path : old_files_) remove_file(path);
    for (const Shard& shard : shards_) publish_file(folder_ / shard.name);
    if (shards_.size() == 1) return;
    nlohmann::json weight_map = nlohmann::json::object();
    int64_t data_bytes = 0;
    for (const Shard& shard : shards_) {
      data_bytes += shard.data_bytes;
      for (size_t t = shard.first_tensor; t < shard.first_tensor + shard.tensor_count; ++t)
        weight_map[tensors_[t].name] = shard.name;
    }
    const nlohmann::json index = {{"metadata", {{"total_size", data_bytes}}},
                                  {"weight_map", std::move(weight_map)}};
    write_file_durably(folder_ / "model.safetensors.index.json", index.dump(2) + '\n');
  }

  const fs::path& folder_;
  std::optional<FolderLock> lock_;
  std::span<const NewTensor> tensors_;
  const TensorGenerator& generator_;
  const SafetensorsWriteOptions& options_;
  std::vector<int64_t> sizes_;
  std::vector<Shard> shards_;
  std::vector<fs::path> old_files_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
};

}  // namespace

std::vector<std::string> write_sharded_safetensors(const fs::path& folder,
                                                   std::span<const NewTensor> tensors,
                                                   const TensorGenerator& generator,
                                                   const SafetensorsWriteOptions& options) {
  return ShardedWriter(folder, tensors, generator, options).run();
}

}  // namespace sluice::io
