#include "src/serve/file_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "io/files/durable_file.h"
#include "src/base/bytes.h"
#include "src/base/error.h"
#include "src/serve/api_error.h"
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
    return StoredFile{json.at("id"),
                      json.at("filename"),
                      json.at("purpose"),
                      json.at("bytes").get<int64_t>(),
                      json.at("created_at").get<int64_t>(),
                      json.value("expires_at", int64_t{0})};
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

FileStore::FileStore(std::filesystem::path folder, FileLimits limits,
                     std::function<bool(const std::string& id)> is_in_use)
    : folder_(std::move(folder)), limits_(limits), is_in_use_(std::move(is_in_use)) {
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

void FileStore::reserve(int64_t bytes) {
  const MutexLock lock(mutex_);
  int64_t kept = reserved_bytes_;
  for (const StoredFile& file : files_) kept += file.bytes;
  if (files_.size() + reserved_files_ >= limits_.files)
    throw ApiError{413,
                   fmt::format("the server keeps {} files, as many as it may; delete some",
                               files_.size() + reserved_files_),
                   "file_quota_exceeded", "file", 0};
  if (kept + bytes > limits_.bytes)
    throw ApiError{
        413,
        fmt::format("the server keeps files of {} and may keep {}: there is no room for "
                    "one of {}; delete some",
                    format_bytes(kept), format_bytes(limits_.bytes), format_bytes(bytes)),
        "file_quota_exceeded", "file", 0};
  reserved_bytes_ += bytes;
  ++reserved_files_;
}

StoredFile FileStore::describe(StoredFile file) {
  ordered_json json{{"id", file.id},
                    {"filename", file.filename},
                    {"purpose", file.purpose},
                    {"bytes", file.bytes},
                    {"created_at", file.created}};
  if (file.expires > 0) json["expires_at"] = file.expires;
  io::write_file_durably(description_of(file.id), dump(json) + "\n");
  const MutexLock lock(mutex_);
  files_.push_back(file);
  return file;
}

StoredFile FileStore::add(const std::string& filename, const std::string& purpose,
                          std::string_view content, int64_t life) {
  expire();
  const auto bytes = static_cast<int64_t>(content.size());
  reserve(bytes);
  struct Release {
    FileStore& store;
    int64_t bytes;
    ~Release() {
      const MutexLock lock(store.mutex_);
      store.reserved_bytes_ -= bytes;
      --store.reserved_files_;
    }
  } const release{*this, bytes};
  const int64_t now = std::time(nullptr);
  StoredFile file{random_name(kFilePrefix), filename, purpose, bytes, now,
                  life > 0 ? now + life : 0};
  try {
    io::write_file_durably(path_of(file.id), content);
    return describe(file);
  } catch (const std::exception&) {
    std::error_code error;  // a full disk keeps no half of it
    std::filesystem::remove(path_of(file.id), error);
    throw;
  }
}

StoredFile FileStore::take(const std::string& filename, const std::string& purpose,
                           const std::filesystem::path& path, int64_t life) {
  const int64_t now = std::time(nullptr);
  StoredFile file{random_name(kFilePrefix), filename, purpose, 0, now, life > 0 ? now + life : 0};
  std::error_code error;
  std::filesystem::rename(path, path_of(file.id), error);
  if (error)
    throw Error(ErrorKind::kFile, fmt::format("{}: it can't be moved to {}: {}", path.string(),
                                              path_of(file.id).string(), error.message()));
  file.bytes = static_cast<int64_t>(std::filesystem::file_size(path_of(file.id), error));
  if (error)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: {}", path_of(file.id).string(), error.message()));
  return describe(std::move(file));
}

void FileStore::expire() {
  const int64_t now = std::time(nullptr);
  std::vector<std::string> over;
  {
    const MutexLock lock(mutex_);
    for (const StoredFile& file : files_)
      if (file.expires > 0 && file.expires <= now) over.push_back(file.id);
  }
  for (const std::string& id : over)
    if (!is_in_use_ || !is_in_use_(id)) remove(id);
}

std::optional<StoredFile> FileStore::find(const std::string& id) {
  expire();
  const MutexLock lock(mutex_);
  const auto at = std::find_if(files_.begin(), files_.end(),
                               [&](const StoredFile& file) { return file.id == id; });
  if (at == files_.end()) return std::nullopt;
  return *at;
}

std::vector<StoredFile> FileStore::list() {
  expire();
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
