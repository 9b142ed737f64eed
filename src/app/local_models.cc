#include "src/app/local_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "io/checkpoint/json_file.h"
#include "src/base/error.h"
#include "src/base/files.h"
#include "src/base/system_error.h"

namespace sluice::app {

namespace {
namespace fs = std::filesystem;

constexpr int64_t kMostManifestBytes = 4 << 20;
constexpr const char* kModelLayer = "application/vnd.ollama.image.model";
constexpr const char* kAdapterLayer = "application/vnd.ollama.image.adapter";

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string name_of(const fs::path& path) { return path.filename().string(); }

// Bytes of a file, its link followed; nothing when it is not there.
std::optional<int64_t> file_bytes(const fs::path& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

// "NAME-00002-of-00003": which part, of how many; nothing for other names.
struct Part {
  std::string stem;
  int number = 0, count = 0;
};
std::optional<Part> part_of(const std::string& stem) {
  constexpr size_t kTail = 15;  // -00002-of-00003
  if (stem.size() <= kTail) return std::nullopt;
  const std::string tail = stem.substr(stem.size() - kTail);
  const auto digits = [&](size_t from) {
    return std::all_of(tail.begin() + static_cast<long>(from),
                       tail.begin() + static_cast<long>(from) + 5,
                       [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !digits(1) || !digits(10))
    return std::nullopt;
  return Part{stem.substr(0, stem.size() - kTail), std::stoi(tail.substr(1, 5)),
              std::stoi(tail.substr(10))};
}

// What tells a file from its neighbours: "Q4_K_M" of "Llama-3.2-1B-Instruct-Q4_K_M".
std::string variant_of(const std::string& stem) {
  const size_t at = stem.find_last_of("-.");
  return at == std::string::npos ? stem : stem.substr(at + 1);
}

// What a folder holds, and the folders in it: publishers keep each size of GGUF in one of its own.
std::vector<fs::path> entries_two_deep(const fs::path& folder) {
  std::vector<fs::path> out = folder_entries(folder);
  const size_t here = out.size();
  for (size_t i = 0; i < here; ++i) {
    std::error_code error;
    if (!fs::is_directory(out[i], error)) continue;
    const std::vector<fs::path> inner = folder_entries(out[i]);
    out.insert(out.end(), inner.begin(), inner.end());
  }
  return out;
}

// The models in a folder of GGUF files: a file each, a split one by its first part.
std::vector<LocalModel> gguf_models(const fs::path& folder, const std::string& name) {
  struct Found {
    LocalModel model;
    int parts = 0, promised = 1;
  };
  std::map<std::string, Found> by_stem;
  for (const fs::path& path : entries_two_deep(folder)) {
    if (lower(path.extension().string()) != ".gguf") continue;
    const std::string stem = path.stem().string();
    if (lower(stem).find("mmproj") != std::string::npos) continue;  // of images
    const std::optional<Part> part = part_of(stem);
    Found& found = by_stem[part ? part->stem : stem];
    if (!part || part->number == 1) found.model.path = path;
    if (part) found.promised = part->count;
    if (const auto bytes = file_bytes(path)) {
      ++found.parts;
      found.model.weight_bytes += *bytes;
    }
  }
  std::vector<LocalModel> out;
  for (auto& [stem, found] : by_stem) {
    found.model.name = by_stem.size() == 1 ? name : name + ":" + variant_of(stem);
    if (found.parts < found.promised)
      found.model.problem =
          fmt::format("{} of {} files are not there", found.promised - found.parts, found.promised);
    out.push_back(std::move(found.model));
  }
  return out;
}

// Files of weights in a Hugging Face folder, by the index where there is one.
struct WeightFiles {
  std::vector<fs::path> paths;
  bool has_index = false;
};
WeightFiles weight_files(const fs::path& folder) {
  for (const char* index : {"model.safetensors.index.json", "pytorch_model.bin.index.json"}) {
    if (!is_file(folder / index)) continue;
    const nlohmann::json json = io::read_json_file(folder / index);
    std::set<std::string> names;
    if (const auto map = json.find("weight_map"); map != json.end() && map->is_object())
      for (const auto& [tensor, file] : map->items())
        if (file.is_string()) names.insert(name_of(file.get<std::string>()));
    WeightFiles out{{}, true};
    for (const std::string& name : names) out.paths.push_back(folder / name);
    return out;
  }
  WeightFiles out;
  for (const fs::path& path : folder_entries(folder)) {
    const std::string extension = lower(path.extension().string());
    if (extension == ".safetensors" || name_of(path) == "pytorch_model.bin")
      out.paths.push_back(path);
  }
  return out;
}

// A folder as Hugging Face's and LM Studio's are: GGUF files, or config.json with weights. None
// where it holds nothing of a language model.
std::vector<LocalModel> folder_models(const fs::path& folder, const std::string& name) {
  std::vector<LocalModel> gguf = gguf_models(folder, name);
  if (!gguf.empty()) return gguf;
  LocalModel model;
  model.name = name;
  model.path = folder;
  const WeightFiles files = weight_files(folder);
  size_t missing = 0;
  for (const fs::path& path : files.paths) {
    const auto bytes = file_bytes(path);
    missing += bytes ? 0 : 1;
    model.weight_bytes += bytes.value_or(0);
  }
  if (files.paths.empty()) {
    if (!is_file(folder / "config.json")) return {};
    model.problem = "its weights are not there";
  } else if (missing > 0) {
    model.problem = fmt::format("{} of {} weight files are not there", missing, files.paths.size());
  } else if (!is_file(folder / "config.json")) {
    model.problem = "config.json is not there";
  }
  return {model};
}

// Does what finds models; where it fails that is one entry.
void add_models(const std::string& name, const fs::path& path, ModelOrigin origin,
                const std::function<std::vector<LocalModel>()>& find,
                std::vector<LocalModel>& out) {
  std::vector<LocalModel> found;
  try {
    found = find();
  } catch (const std::exception&) {
    found = {LocalModel{name, path, origin, 0, current_error().text()}};
  }
  for (LocalModel& model : found) {
    model.origin = origin;
    out.push_back(std::move(model));
  }
}

void for_each_folder(const fs::path& folder, ModelOrigin origin, std::vector<LocalModel>& out,
                     const std::function<void(const fs::path&)>& visit) {
  add_models(
      folder.string(), folder, origin,
      [&]() -> std::vector<LocalModel> {
        if (!is_folder(folder)) return {};
        for (const fs::path& entry : folder_entries(folder)) {
          std::error_code error;
          if (name_of(entry).starts_with(".") || !fs::is_directory(entry, error)) continue;
          visit(entry);
        }
        return {};
      },
      out);
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// The commit that a reference of a cached repository means, "main" or "refs/pr/1"; empty: unknown.
std::string commit_of(const fs::path& repository, const std::string& reference) {
  const fs::path relative(reference);
  if (relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end())
    return {};
  const auto text = read_file_if_there(repository / "refs" / relative, 4096);
  if (!text) return {};
  const std::string commit = text->substr(0, text->find_last_not_of(" \r\n") + 1);
  return is_plain_name(commit) ? commit : std::string();
}

// The folder of a revision: a reference, or a commit or its beginning. Empty: it is not there.
fs::path snapshot_of(const fs::path& repository, const std::string& revision) {
  const fs::path snapshots = repository / "snapshots";
  if (const std::string commit = commit_of(repository, revision);
      !commit.empty() && is_folder(snapshots / commit))
    return snapshots / commit;
  if (!is_folder(snapshots) || revision.empty()) return {};
  std::vector<fs::path> begin_so;
  for (const fs::path& entry : folder_entries(snapshots))
    if (name_of(entry).starts_with(revision)) begin_so.push_back(entry);
  return begin_so.size() == 1 ? begin_so.front() : fs::path();
}

fs::path newest_snapshot(const fs::path& repository) {
  if (const fs::path main = snapshot_of(repository, "main"); !main.empty()) return main;
  fs::path newest;
  fs::file_time_type when;
  if (!is_folder(repository / "snapshots")) return {};
  for (const fs::path& entry : folder_entries(repository / "snapshots")) {
    std::error_code error;
    const auto time = fs::last_write_time(entry, error);
    if (error || (!newest.empty() && time <= when)) continue;
    newest = entry;
    when = time;
  }
  return newest;
}

// "models--ORG--NAME" as people write it.
std::string repository_name(std::string folder) {
  folder = folder.substr(std::string_view("models--").size());
  for (size_t at; (at = folder.find("--")) != std::string::npos;) folder.replace(at, 2, "/");
  return folder;
}

void add_hugging_face(const fs::path& hub, std::vector<LocalModel>& out) {
  for_each_folder(hub, ModelOrigin::kHuggingFace, out, [&](const fs::path& repository) {
    if (!name_of(repository).starts_with("models--")) return;
    const std::string name = repository_name(name_of(repository));
    add_models(
        name, repository, ModelOrigin::kHuggingFace,
        [&]() -> std::vector<LocalModel> {
          const fs::path snapshot = newest_snapshot(repository);
          return snapshot.empty() ? std::vector<LocalModel>() : folder_models(snapshot, name);
        },
        out);
  });
}

void add_lm_studio(const fs::path& root, std::vector<LocalModel>& out) {
  for_each_folder(root, ModelOrigin::kLmStudio, out, [&](const fs::path& publisher) {
    for_each_folder(publisher, ModelOrigin::kLmStudio, out, [&](const fs::path& folder) {
      const std::string name = name_of(publisher) + "/" + name_of(folder);
      add_models(
          name, folder, ModelOrigin::kLmStudio, [&] { return folder_models(folder, name); }, out);
    });
  });
}

// HOST/NAMESPACE/NAME/TAG as Ollama shows it: what is its own is left out.
std::string ollama_name(const fs::path& relative) {
  std::vector<std::string> parts;
  for (const fs::path& part : relative) parts.push_back(part.string());
  const std::string tag = parts.back();
  parts.pop_back();
  if (parts.front() == "registry.ollama.ai") {
    parts.erase(parts.begin());
    if (parts.size() > 1 && parts.front() == "library") parts.erase(parts.begin());
  }
  std::string name;
  for (const std::string& part : parts) name += (name.empty() ? "" : "/") + part;
  return name + ":" + tag;
}

// The blob of a digest "sha256:..."; empty for anything else.
std::string blob_name(const std::string& digest) {
  constexpr std::string_view kBegin = "sha256:";
  const bool is_hex = digest.size() == kBegin.size() + 64 && digest.starts_with(kBegin) &&
                      std::all_of(digest.begin() + kBegin.size(), digest.end(),
                                  [](unsigned char c) { return std::isxdigit(c) != 0; });
  return is_hex ? "sha256-" + digest.substr(kBegin.size()) : std::string();
}

std::vector<LocalModel> ollama_model(const fs::path& root, const fs::path& manifest,
                                     const std::string& name) {
  const nlohmann::json json =
      io::parse_json(read_file(manifest, kMostManifestBytes), manifest.string());
  LocalModel model;
  model.name = name;
  const auto layers = json.find("layers");
  if (layers == json.end() || !layers->is_array())
    throw Error(ErrorKind::kFile, fmt::format("{}: no list of layers", manifest.string()),
                "fetch the model again");
  for (const nlohmann::json& layer : *layers) {
    const auto text = [&](const char* key) {
      const auto at = layer.is_object() ? layer.find(key) : layer.end();
      return layer.is_object() && at != layer.end() && at->is_string() ? at->get<std::string>()
                                                                       : std::string();
    };
    if (text("mediaType") == kAdapterLayer)
      model.problem = "it has an adapter, which would be left out";
    if (text("mediaType") != kModelLayer) continue;
    const std::string blob = blob_name(text("digest"));
    if (blob.empty())
      throw Error(ErrorKind::kFile, fmt::format("{}: a layer without a digest", manifest.string()),
                  "fetch the model again");
    model.path = root / "blobs" / blob;
    const auto bytes = file_bytes(model.path);
    if (!bytes) model.problem = "its weights are not there";
    model.weight_bytes = bytes.value_or(0);
  }
  if (model.path.empty()) return {};  // in the cloud, or for images
  return {model};
}

void add_ollama(const fs::path& root, std::vector<LocalModel>& out) {
  const fs::path manifests = root / "manifests";
  // HOST/NAMESPACE/NAME/TAG, of which a host may have more.
  const std::function<void(const fs::path&, const fs::path&, int)> visit =
      [&](const fs::path& folder, const fs::path& relative, int depth) {
        add_models(
            folder.string(), folder, ModelOrigin::kOllama,
            [&]() -> std::vector<LocalModel> {
              if (!is_folder(folder)) return {};
              for (const fs::path& entry : folder_entries(folder)) {
                if (name_of(entry).starts_with(".")) continue;
                const fs::path inner = relative / entry.filename();
                std::error_code error;
                if (fs::is_directory(entry, error)) {
                  if (depth < 6) visit(entry, inner, depth + 1);
                } else if (depth >= 2) {
                  const std::string name = ollama_name(inner);
                  add_models(
                      name, entry, ModelOrigin::kOllama,
                      [&] { return ollama_model(root, entry, name); }, out);
                }
              }
              return {};
            },
            out);
      };
  visit(manifests, {}, 0);
}

// What people write for a model: its name, without its organisation, without "latest".
bool is_called(const LocalModel& model, const std::string& wanted) {
  const std::string name = lower(model.name);
  const size_t slash = name.rfind('/');
  const std::string tail = slash == std::string::npos ? name : name.substr(slash + 1);
  const std::string latest = wanted + ":latest";
  return name == wanted || tail == wanted ||
         (model.origin == ModelOrigin::kOllama && (name == latest || tail == latest));
}

[[noreturn]] void refuse_several(const std::string& given, const std::vector<LocalModel>& named) {
  std::string all;
  for (const LocalModel& model : named)
    all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", model.name, model.path.string());
  throw Error(ErrorKind::kUser, fmt::format("{}: several models have this name: {}", given, all),
              "write the whole name, or the path");
}

// ORG/NAME@REVISION of a Hugging Face cache; nothing when no such model is there.
std::optional<fs::path> find_revision(const std::string& given, const ModelFolders& folders) {
  const size_t at = given.find('@');
  if (at == std::string::npos) return std::nullopt;
  const std::string wanted = lower(given.substr(0, at));
  const std::string revision = given.substr(at + 1);
  for (const fs::path& hub : folders.hugging_face) {
    if (!is_folder(hub)) continue;
    for (const fs::path& repository : folder_entries(hub)) {
      if (!name_of(repository).starts_with("models--") ||
          lower(repository_name(name_of(repository))) != wanted)
        continue;
      const fs::path snapshot = snapshot_of(repository, revision);
      if (!snapshot.empty()) return snapshot;
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: the model is here, revision {} is not", given, revision),
                  fmt::format("fetch it, or give one of {}", (repository / "snapshots").string()));
    }
  }
  return std::nullopt;
}
}  // namespace

std::string_view model_origin_name(ModelOrigin origin) noexcept {
  switch (origin) {
    case ModelOrigin::kHuggingFace: return "Hugging Face";
    case ModelOrigin::kOllama: return "Ollama";
    case ModelOrigin::kLmStudio: return "LM Studio";
  }
  return "";
}

std::vector<LocalModel> local_models(const ModelFolders& folders) {
  std::vector<LocalModel> out;
  for (const fs::path& hub : folders.hugging_face) add_hugging_face(hub, out);
  for (const fs::path& root : folders.ollama) add_ollama(root, out);
  for (const fs::path& root : folders.lm_studio) add_lm_studio(root, out);
  std::sort(out.begin(), out.end(), [](const LocalModel& a, const LocalModel& b) {
    const std::string left = lower(a.name), right = lower(b.name);
    return left != right ? left < right : a.path < b.path;
  });
  return out;
}

bool can_only_be_path(const std::string& given) {
  const char first = given.empty() ? '/' : given.front();
  return first == '/' || first == '.' || first == '~' || given.find('\\') != std::string::npos;
}

fs::path find_model(const std::string& given, const ModelFolders& folders) {
  if (can_only_be_path(given) || is_there(given)) return given;
  if (const auto revision = find_revision(given, folders)) return *revision;
  const std::string wanted = lower(given);
  std::vector<LocalModel> named, whole;
  for (LocalModel& model : local_models(folders)) {
    if (model.path.empty() || !is_called(model, wanted)) continue;
    if (lower(model.name) == wanted) whole.push_back(model);
    named.push_back(std::move(model));
  }
  if (!whole.empty()) named = whole;
  if (named.empty()) return given;
  if (named.size() > 1) refuse_several(given, named);
  if (!named.front().problem.empty())
    throw Error(
        ErrorKind::kFile,
        fmt::format("{} ({}): {}", given, named.front().path.string(), named.front().problem),
        "fetch it whole, or give another");
  return named.front().path;
}

}  // namespace sluice::app
