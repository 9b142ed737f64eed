#include "tools/model_argument.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/model/planning_shapes.h"
#include "tools/nearest.h"

namespace sluice::tools {

namespace {
namespace fs = std::filesystem;

fs::path named(const char* variable) {
  const char* text = std::getenv(variable);
  return text && *text ? fs::path(text) : fs::path();
}

// Each once, those that are nothing left out.
std::vector<fs::path> distinct(std::initializer_list<fs::path> folders) {
  std::vector<fs::path> out;
  for (const fs::path& folder : folders)
    if (!folder.empty() && std::find(out.begin(), out.end(), folder) == out.end())
      out.push_back(folder);
  return out;
}

fs::path below(const fs::path& folder, const char* relative) {
  return folder.empty() ? fs::path() : folder / relative;
}

// LM Studio keeps its home's path in a file where that was moved.
fs::path lm_studio_home(const fs::path& home) {
  if (home.empty()) return {};
  try {
    if (const auto text = read_file_if_there(home / ".lmstudio-home-pointer", 4096))
      return text->substr(0, text->find_last_not_of(" \r\n") + 1);
  } catch (const Error&) {
    // Then it is where it was.
  }
  return home / ".lmstudio";
}
}  // namespace

app::ModelFolders model_folders() {
  const fs::path home = named("HOME");
  fs::path cache = named("XDG_CACHE_HOME");
  if (cache.empty()) cache = below(home, ".cache");
  app::ModelFolders out;
  // As huggingface_hub decides: the first that is set.
  for (const fs::path& hub : {named("HF_HUB_CACHE"), named("HUGGINGFACE_HUB_CACHE"),
                              below(named("HF_HOME"), "hub"), below(cache, "huggingface/hub")})
    if (!hub.empty()) {
      out.hugging_face.push_back(hub);
      break;
    }
  if (const fs::path ollama = named("OLLAMA_MODELS"); !ollama.empty())
    out.ollama.push_back(ollama);
  else  // the user's, and that of the system's service
    out.ollama = distinct({below(home, ".ollama/models"), "/usr/share/ollama/.ollama/models",
                           "/var/lib/ollama/.ollama/models"});
  out.lm_studio =
      distinct({below(lm_studio_home(home), "models"), below(home, ".cache/lm-studio/models")});
  return out;
}

namespace {
// A word that is neither: which name was meant. Paths are told by whoever opens them.
void refuse_unknown(const std::string& given, const app::ModelFolders& folders) {
  if (app::can_only_be_path(given) || is_there(given)) return;
  std::vector<std::string> names;
  for (const app::LocalModel& model : app::local_models(folders)) names.push_back(model.name);
  if (names.empty()) return;
  const std::optional<std::string> meant = nearest(given, names);
  throw Error(ErrorKind::kFile,
              given + ": no such file or folder, and no model of that name has been fetched here",
              meant ? "was " + *meant + " meant? sluice models lists those that are here"
                    : "sluice models lists those that are here");
}
}  // namespace

CLI::Option* take_model_names(CLI::Option* option, BuiltInNames built_in) {
  return option->transform(
      [built_in](const std::string& given) -> std::string {
        if (built_in == BuiltInNames::kYes && planning_shape(given)) return given;
        const app::ModelFolders folders = model_folders();
        const std::filesystem::path found = app::find_model(given, folders);
        if (built_in == BuiltInNames::kNo && found == given) refuse_unknown(given, folders);
        return found.string();
      },
      "", "");
}

CLI::Option* add_model_option(CLI::App& parser, std::string& model, const std::string& description,
                              BuiltInNames built_in) {
  CLI::Option* option = parser.add_option("model,-m,--model", model, description);
  return take_model_names(option, built_in)->envname("SLUICE_MODEL");
}

void add_pretokenizer_option(CLI::App& parser, std::string& pretokenizer) {
  parser.add_option("--pretokenizer", pretokenizer,
                    "the rule by which a GGUF file's text is cut, where the file names one that is "
                    "not known (docs/gguf.md)");
}

CLI::Option* add_kv_dtype_option(CLI::App& parser, std::string& kv_dtype) {
  return parser
      .add_option("--kv-dtype,--kv", kv_dtype,
                  "f32, f16, bf16, int8, k8v4 (keys in int8, values in int4) or int4; default: "
                  "as the weights that are not quantised")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "int8", "k8v4", "int4"}));
}

}  // namespace sluice::tools
