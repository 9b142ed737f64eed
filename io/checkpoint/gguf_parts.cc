#include "io/checkpoint/gguf_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/checkpoint/gguf.h"
#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::io {

namespace fs = std::filesystem;

namespace {
constexpr int64_t kMostParts = 4096;

std::optional<int64_t> number_of(const GgufMetadata& metadata, const fs::path& path,
                                 const char* key, int64_t most) {
  const nlohmann::json* value = metadata.find(key);
  if (!value && !metadata.find_array(key)) return std::nullopt;
  const bool is_good = value && value->is_number_integer() &&
                       !(value->is_number_unsigned() && *value > most) &&
                       value->get<int64_t>() >= 0 && value->get<int64_t>() <= most;
  if (!is_good)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: key {} is no number from 0 to {}", path.string(), key, most),
                "the file is damaged: download it again");
  return value->get<int64_t>();
}

// "NAME" of NAME-00001-of-00003.gguf; empty for other names.
std::string common_name(const fs::path& path) {
  const std::string stem = path.stem().string();
  const size_t of = stem.rfind("-of-");
  const size_t number = of == std::string::npos || of == 0 ? of : stem.rfind('-', of - 1);
  return number == std::string::npos ? std::string() : stem.substr(0, number);
}

using Places = std::vector<std::vector<fs::path>>;  // of each part the files that say they are it

Places find_parts(const std::vector<fs::path>& files, const GgufPart& wanted) {
  Places places(static_cast<size_t>(wanted.count));
  for (const fs::path& file : files) {
    try {
      const auto part = gguf_part(read_gguf_header(file).metadata, file);
      if (part && part->count == wanted.count && part->tensors == wanted.tensors)
        places[static_cast<size_t>(part->number)].push_back(file);
    } catch (const Error&) {  // another model's file, or one that is still being written
    }
  }
  return places;
}

bool is_whole(const Places& places) {
  return std::all_of(places.begin(), places.end(),
                     [](const auto& files) { return files.size() == 1; });
}
}  // namespace

std::optional<GgufPart> gguf_part(const GgufMetadata& metadata, const fs::path& path) {
  GgufPart part;
  part.count = number_of(metadata, path, "split.count", kMostParts).value_or(0);
  if (part.count <= 1) return std::nullopt;
  part.number = number_of(metadata, path, "split.no", kMostParts).value_or(0);
  part.tensors = number_of(metadata, path, "split.tensors.count", INT32_MAX).value_or(-1);
  if (part.number >= part.count)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: is part {} of {}, by its keys split.no and split.count",
                            path.string(), part.number + 1, part.count),
                "the file is damaged: download it again");
  return part;
}

std::vector<fs::path> gguf_parts(const fs::path& path, const GgufPart& part) {
  const fs::path folder = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  std::vector<fs::path> files = folder_entries(folder);
  std::erase_if(files, [](const fs::path& file) {
    return file.extension() != ".gguf" || path_kind(file) != PathKind::kFile;
  });
  if (path.extension() != ".gguf") files.push_back(path);
  std::vector<fs::path> alike = files;
  const std::string name = common_name(path);
  std::erase_if(alike, [&](const fs::path& file) { return common_name(file) != name; });
  Places places = find_parts(name.empty() ? files : alike, part);
  if (!name.empty() && !is_whole(places)) {
    Places all = find_parts(files, part);
    if (is_whole(all)) places = std::move(all);
  }
  std::vector<fs::path> out;
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].empty())
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: part {} of {} is missing: no file of the folder says that it is "
                              "this part",
                              folder.string(), i + 1, part.count),
                  "download all parts into one folder");
    if (places[i].size() > 1)
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: part {} of {} is there twice: {} and {}", folder.string(), i + 1,
                              part.count, places[i][0].filename().string(),
                              places[i][1].filename().string()),
                  "leave the parts of one model in the folder");
    out.push_back(places[i].front());
  }
  return out;
}

}  // namespace sluice::io
