#include "io/checkpoint/packed_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>
#include <unordered_set>

#include "io/checkpoint/json_file.h"
#include "io/checkpoint/piece_reader.h"
#include "io/checkpoint/store_checksum.h"
#include "io/files/checksum.h"
#include "io/files/input_file.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::io {

namespace {

using nlohmann::json;

constexpr const char* kFormatName = "sluice-packed-store";
constexpr std::string_view kChecksumPrefix = "crc32c:";

// The index on its way from JSON; `path` is for errors.
struct IndexParser {
  const std::string& path;

  [[noreturn]] void fail(const std::string& problem,
                         const char* mend = "convert the model again") const {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", path, problem), mend);
  }

  int64_t size(const json& value, const char* what) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
      fail(fmt::format("{} is not a whole number from 0", what));
    return value.get<int64_t>();
  }

  uint32_t checksum(const std::string& text) const {
    uint32_t value = 0;
    const char* const end = text.data() + text.size();
    const bool has_prefix =
        text.starts_with(kChecksumPrefix) && text.size() == kChecksumPrefix.size() + 8;
    if (!has_prefix ||
        std::from_chars(text.data() + kChecksumPrefix.size(), end, value, 16).ptr != end)
      fail(fmt::format("{} is not a checksum", in_quotes(text)));
    return value;
  }

  TensorEntry tensor(const json& value, int64_t file_bytes) const {
    TensorEntry entry{.name = value.at("name").get<std::string>()};
    const auto element = value.at("dtype").get<std::string>();
    const std::optional<DType> dtype = parse_dtype(element);
    const std::optional<WeightFormat> format = parse_weight_format(element);
    if (format && format->is_quantised()) {  // "int8" is one; plain bytes are "i8"
      entry.quantised = *format;
      entry.dtype = DType::kU8;
    } else if (dtype) {
      entry.dtype = *dtype;
    } else {
      fail(fmt::format("tensor {}: unknown element type", in_quotes(entry.name)),
           "use a newer sluice");
    }
    for (const json& dimension : value.at("shape"))
      entry.shape.push_back(size(dimension, "a dimension"));
    entry.offset = size(value.at("offset"), "an offset");
    entry.bytes = (entry.quantised.is_quantised() ? quantised_bytes(entry.shape, entry.quantised)
                                                  : tensor_bytes(entry.shape, entry.dtype))
                      .value_or(-1);
    if (entry.bytes < 0 || entry.offset > file_bytes || entry.bytes > file_bytes - entry.offset)
      fail(fmt::format("tensor {}: shape {} at offset {} does not lie in its file of {} bytes",
                       in_quotes(entry.name), format_shape(entry.shape), entry.offset, file_bytes));
    return entry;
  }

  PackedGroup group(const json& value, int32_t group_index) const {
    PackedGroup group{.name = value.at("name").get<std::string>(),
                      .file = value.at("file").get<std::string>(),
                      .bytes = size(value.at("bytes"), "a file's size"),
                      .checksum = checksum(value.at("checksum").get<std::string>())};
    require_file_name(group.file);
    if (value.contains("repeats")) group.repeats = value["repeats"].get<std::string>();
    for (const json& item : value.at("tensors")) {
      group.tensors.push_back(tensor(item, group.bytes));
      group.tensors.back().file_index = group_index;
    }
    return group;
  }

  // The groups differ in their tensors' names only.
  void require_alike(const PackedGroup& group, std::span<const PackedGroup> earlier) const {
    const auto repeated =
        std::find_if(earlier.begin(), earlier.end(),
                     [&](const PackedGroup& other) { return other.name == group.repeats; });
    const auto is_alike = [](const TensorEntry& a, const TensorEntry& b) {
      return std::tie(a.dtype, a.quantised, a.shape, a.offset) ==
             std::tie(b.dtype, b.quantised, b.shape, b.offset);
    };
    if (repeated == earlier.end() || repeated->bytes != group.bytes ||
        !std::equal(repeated->tensors.begin(), repeated->tensors.end(), group.tensors.begin(),
                    group.tensors.end(), is_alike))
      fail(
          fmt::format("group {} can't repeat {}", in_quotes(group.name), in_quotes(group.repeats)));
  }

  void require_file_name(const std::string& name) const {
    if (name.empty() || name.find_first_of(std::string_view("/\0", 2)) != std::string::npos ||
        name == "." || name == "..")
      fail(fmt::format("{} is not the name of a file in the store", in_quotes(name)));
  }

  PackedSmallFile small_file(const json& value) const {
    PackedSmallFile file{.name = value.at("name").get<std::string>(),
                         .bytes = size(value.at("bytes"), "a file's size"),
                         .checksum = checksum(value.at("checksum").get<std::string>())};
    require_file_name(file.name);
    return file;
  }

  PackedIndex index(const json& root) const {
    if (!root.is_object() || root.value("format", json()) != json(kFormatName))
      fail("not the index of a packed store");
    if (const int64_t version = size(root.at("version"), "the version"); version != kStoreVersion)
      fail(fmt::format("version {} of the packed store, this sluice reads version {}", version,
                       kStoreVersion),
           "use a newer sluice, or convert the model again");
    const json& source = root.at("source");
    PackedIndex index{.source_name = source.at("name").get<std::string>(),
                      .source_format = source.at("format").get<std::string>(),
                      .source_identity = source.at("identity").get<std::string>()};
    std::unordered_set<std::string> files;
    for (const json& item : root.at("groups")) {
      PackedGroup next = group(item, static_cast<int32_t>(index.groups.size()));
      if (!next.repeats.empty()) require_alike(next, index.groups);
      index.groups.push_back(std::move(next));
      if (!files.insert(index.groups.back().file).second)
        fail(fmt::format("file {} appears twice", in_quotes(index.groups.back().file)));
    }
    if (root.contains("small_files"))
      for (const json& item : root["small_files"]) index.small_files.push_back(small_file(item));
    return index;
  }
};

std::string format_checksum(uint32_t checksum) {
  return fmt::format("{}{:08x}", kChecksumPrefix, checksum);
}

json describe(const PackedGroup& group) {
  json tensors = json::array();
  for (const TensorEntry& tensor : group.tensors)
    tensors.push_back({{"name", tensor.name},
                       {"dtype", element_name(tensor)},
                       {"shape", tensor.shape},
                       {"offset", tensor.offset}});
  json out = {{"name", group.name},
              {"file", group.file},
              {"bytes", group.bytes},
              {"checksum", format_checksum(group.checksum)},
              {"tensors", std::move(tensors)}};
  if (!group.repeats.empty()) out["repeats"] = group.repeats;
  return out;
}

}  // namespace

bool is_packed_store(const std::filesystem::path& folder) {
  std::error_code problem;
  // A dangling link is one too: opening it says what is wrong.
  const std::filesystem::path index = folder / kStoreIndexName;
  return std::filesystem::exists(std::filesystem::symlink_status(index, problem)) ||
         is_there(index);
}

PackedIndex read_packed_index(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kStoreIndexName;
  const std::string name = path.string();
  const IndexParser parser{name};
  try {
    return parser.index(read_json_file(path));
  } catch (const json::exception& error) {
    parser.fail(fmt::format("a part is missing or of the wrong kind ({})", error.what()));
  }
}

std::string format_packed_index(const PackedIndex& index) {
  json groups = json::array();
  for (const PackedGroup& group : index.groups) groups.push_back(describe(group));
  json small_files = json::array();
  for (const PackedSmallFile& file : index.small_files)
    small_files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"checksum", format_checksum(file.checksum)}});
  const json root = {{"format", kFormatName},
                     {"version", kStoreVersion},
                     {"alignment", kStoreAlignment},
                     {"source",
                      {{"name", index.source_name},
                       {"format", index.source_format},
                       {"identity", index.source_identity}}},
                     {"groups", std::move(groups)},
                     {"small_files", std::move(small_files)}};
  try {
    return root.dump(1) + '\n';
  } catch (const json::exception&) {
    throw Error(ErrorKind::kUser,
                "a name in the packed store is not valid UTF-8 and cannot be stored");
  }
}

uint32_t file_checksum(const std::filesystem::path& path, int64_t bytes,
                       const std::function<void(int64_t done_bytes)>& progress,
                       const std::atomic<bool>* stop) {
  std::vector<Piece> pieces;
  append_pieces(pieces, 0, 0, bytes);
  const size_t count = pieces.size();
  PieceReader reader({path}, std::move(pieces));
  uint32_t checksum = 0;
  int64_t done = 0;
  for (size_t i = 0; i < count; ++i) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed))
      throw Error(ErrorKind::kCancelled, fmt::format("{}: verification stopped", path.string()));
    const std::span<const std::byte> piece = reader.next();
    checksum = crc32c(piece, checksum);
    done += static_cast<int64_t>(piece.size());
    if (progress) progress(done);
  }
  return checksum;
}

PackedSmallFile describe_small_file(const std::filesystem::path& path) {
  const int64_t bytes = InputFile(path).size();
  return {path.filename().string(), bytes, file_checksum(path, bytes, {}, nullptr)};
}

int64_t verify_store(const std::filesystem::path& folder,
                     const std::function<void(const VerifyProgress&)>& progress,
                     const std::atomic<bool>* stop) {
  const PackedIndex index = read_packed_index(folder);
  struct Promise {
    std::string name, file;
    int64_t bytes;
    uint32_t checksum;
    const char* mend;
  };
  std::vector<Promise> promises;
  for (const PackedSmallFile& file : index.small_files)
    promises.push_back({file.name, file.name, file.bytes, file.checksum,
                        "copy the model's own file there again, or convert the model again; if the "
                        "change was meant, nothing needs mending"});
  for (const PackedGroup& group : index.groups)
    promises.push_back(
        {group.name, group.file, group.bytes, group.checksum,
         "the file was changed or damaged after it was written: convert the model again"});
  int64_t total = 0;
  for (const Promise& promise : promises) total += promise.bytes;
  int64_t done = 0;
  for (const Promise& promise : promises) {
    const std::filesystem::path path = folder / promise.file;
    const auto fail = [&](const std::string& problem) {
      const std::string group = promise.name == promise.file
                                    ? std::string()
                                    : fmt::format("group {}: ", in_quotes(promise.name));
      throw Error(ErrorKind::kFile, fmt::format("{}: {}{}", path.string(), group, problem),
                  promise.mend);
    };
    if (const int64_t size = InputFile(path).size(); size != promise.bytes)
      fail(fmt::format("{} bytes, but the store's index says {}", size, promise.bytes));
    const uint32_t checksum = file_checksum(
        path, promise.bytes,
        [&](int64_t done_in_file) {
          if (progress) progress({done + done_in_file, total, promise.name});
        },
        stop);
    if (checksum != promise.checksum)
      fail(fmt::format("its checksum is {:08x}, but the store's index says {:08x}", checksum,
                       promise.checksum));
    done += promise.bytes;
  }
  return done;
}

}  // namespace sluice::io
