#include "src/serve/file_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "io/files/durable_file.h"
#include "src/base/error.h"
#include "src/serve/json_text.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;
constexpr std::string_view kFilePrefix = "file-";
constexpr size_t kDigits = 32;

std::optional<StoredFile> read_description(const std::filesystem::path& path) {
  std::ifstream file(path);
  const auto json = ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  try {
    return StoredFile{json.at("id"), json.at("filename"), json.at("purpose"),
                      json.at("bytes").get<int64_t>(), json.at("created_at").get<int64_t>()};
  } catch (const ordered_json::exception&) {
    return std::nullopt;
  }
}
}  // namespace

std::string random_name(std::string_view prefix) {
  thread_local std::mt19937_64 random{(uint64_t{std::random_device{}()} << 32) ^
                                      std::random_device{}()};
  return fmt::format("{}{:016x}{:016x}", prefix, random(), random());
}

bool is_random_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || name.size() != prefix.size() + kDigits) return false;
  return std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix.size()), name.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> out;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error))
    out.push_back(at->path());
  if (error)
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", folder.string(), error.message()),
                "let it be read, or choose another `batch_dir`");
  return out;
}

FileStore::FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error || !std::filesystem::is_directory(folder_, error))
    throw Error(ErrorKind::kFile,
                fmt::format("{}: the folder can't be made: {}", folder_.string(), error.message()),
                "choose another `batch_dir`");
  std::vector<std::filesystem::path> unknown;
  for (const std::filesystem::path& path : paths_in(folder_)) {
    const std::string name = path.filename().string();
    if (path.extension() == ".json" && is_random_name(path.stem().string(), kFilePrefix)) {
      auto file = read_description(path);
      if (file && file->id == path.stem() && std::filesystem::exists(path_of(file->id), error))
        files_.push_back(std::move(*file));
    } else if (is_random_name(name.substr(0, kFilePrefix.size() + kDigits), kFilePrefix) &&
               !std::filesystem::exists(description_of(name), error)) {
      unknown.push_back(path);
    }
  }
  for (const auto& path : unknown) std::filesystem::remove(path, error);
  std::sort(files_.begin(), files_.end(), [](const StoredFile& a, const StoredFile& b) {
    return std::tie(a.created, a.id) < std::tie(b.created, b.id);
  });
}

StoredFile FileStore::describe(std::string id, const std::string& filename,
                               const std::string& purpose, int64_t bytes) {
  StoredFile file{std::move(id), filename, purpose, bytes, std::time(nullptr)};
  const ordered_json json{{"id", file.id},
                          {"filename", filename},
                          {"purpose", purpose},
                          {"bytes", bytes},
                          {"created_at", file.created}};
  io::write_file_durably(description_of(file.id), dump(json) + "\n");
  const MutexLock lock(mutex_);
  files_.push_back(file);
  return file;
}

StoredFile FileStore::add(const std::string& filename, const std::string& purpose,
                          std::string_view content) {
  std::string id = random_name(kFilePrefix);
  io::write_file_durably(path_of(id), content);
  return describe(std::move(id), filename, purpose, static_cast<int64_t>(content.size()));
}

StoredFile FileStore::take(const std::string& filename, const std::string& purpose,
                           const std::filesystem::path& path) {
  std::string id = random_name(kFilePrefix);
  std::error_code error;
  std::filesystem::rename(path, path_of(id), error);
  if (error)
    throw Error(ErrorKind::kFile, fmt::format("{}: it can't be moved to {}: {}", path.string(),
                                              path_of(id).string(), error.message()));
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path_of(id), error));
  if (error)
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", path_of(id).string(), error.message()));
  return describe(std::move(id), filename, purpose, bytes);
}

std::optional<StoredFile> FileStore::find(const std::string& id) const {
  const MutexLock lock(mutex_);
  const auto at = std::find_if(files_.begin(), files_.end(),
                               [&](const StoredFile& file) { return file.id == id; });
  if (at == files_.end()) return std::nullopt;
  return *at;
}

std::vector<StoredFile> FileStore::list() const {
  const MutexLock lock(mutex_);
  return files_;
}

bool FileStore::remove(const std::string& id) {
  {
    const MutexLock lock(mutex_);
    if (std::erase_if(files_, [&](const StoredFile& file) { return file.id == id; }) == 0)
      return false;
  }
  std::error_code error;  // gone already is as good
  std::filesystem::remove(description_of(id), error);
  std::filesystem::remove(path_of(id), error);
  return true;
}

}  // namespace sluice::serve
