#pragma once
// Models that other programs have fetched to this machine: the Hugging Face cache, Ollama's and LM
// Studio's folders. They are found by name and read where they lie; nothing is fetched, changed or
// asked of a network. What a folder holds is a stranger's: whatever is wrong with it is told of
// that model and hides no other. Functions share nothing and are thread safe.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::app {

/// Where to look. Folders need not be there.
struct ModelFolders {
  std::vector<std::filesystem::path> hugging_face;  ///< with models--ORG--NAME/snapshots/COMMIT
  std::vector<std::filesystem::path> ollama;        ///< with manifests/ and blobs/
  std::vector<std::filesystem::path> lm_studio;     ///< with PUBLISHER/NAME
};

/// Whose folder a model was found in.
enum class ModelOrigin : uint8_t { kHuggingFace, kOllama, kLmStudio };
/// "Hugging Face", "Ollama", "LM Studio".
std::string_view model_origin_name(ModelOrigin origin) noexcept;

/// One model that can be asked for.
struct LocalModel {
  /// "Qwen/Qwen2.5-7B-Instruct"; a GGUF file beside others "ORG/NAME:Q4_K_M"; Ollama's own names,
  /// "llama3.2:3b".
  std::string name;
  std::filesystem::path path;  ///< what is opened: a folder, or a GGUF file
  ModelOrigin origin = ModelOrigin::kHuggingFace;
  int64_t weight_bytes = 0;  ///< of its weight files
  std::string problem;       ///< why it can't be opened: shards that are not there, say; or empty
};

/// All there are, by name; of a Hugging Face model the revision that `main` is, else the newest.
/// Folders that can't be read are one entry with a problem.
std::vector<LocalModel> local_models(const ModelFolders& folders);

/// Whether it is no name: empty, or begun or parted as only paths are.
bool can_only_be_path(const std::string& given);

/// What `given` means: itself where something is there under that path or where it can be nothing
/// but a path; else the model of that name. A name may leave out its organisation or Ollama's tag
/// (then "latest"), may be in other letters' case, and may have a revision behind an @
/// ("ORG/NAME@refs/pr/1", "ORG/NAME@COMMIT"). Nothing of that name: `given`. Errors: kUser when
/// several models have the name, kFile when the one that has it is incomplete.
std::filesystem::path find_model(const std::string& given, const ModelFolders& folders);

}  // namespace sluice::app
