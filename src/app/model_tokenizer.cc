#include "src/app/model_tokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/gguf.h"
#include "src/app/gguf_tokenizer.h"
#include "src/base/files.h"

namespace sluice::app {

namespace fs = std::filesystem;

namespace {
using Files = std::vector<std::pair<std::string, std::string>>;

bool may_be_gguf(const fs::path& model) {
  if (!is_folder(model)) return is_file(model) && io::is_gguf(model);
  std::error_code error;
  for (fs::directory_iterator at(model, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".gguf") return true;
  return false;
}

// None of a model that is no GGUF file, or has no tokenizer in it.
Files files_within(const fs::path& model) {
  if (!may_be_gguf(model)) return {};
  const auto checkpoint = io::Checkpoint::open(model);
  if (checkpoint.format() != io::CheckpointFormat::kGguf) return {};
  return gguf_tokenizer_files(checkpoint.gguf_metadata(), checkpoint.files().front().path.string());
}

std::string content_of(const Files& files, const std::string& name) {
  for (const auto& [one, content] : files)
    if (one == name) return content;
  return {};
}
}  // namespace

fs::path model_folder(const fs::path& model) {
  return is_folder(model) ? model : model.parent_path();
}

std::unique_ptr<text::Tokenizer> find_tokenizer(const fs::path& model) {
  const fs::path folder = model_folder(model);
  if (text::Tokenizer::exists(folder)) return text::Tokenizer::load(folder);
  const Files files = files_within(model);
  if (files.empty()) return nullptr;
  const auto& [name, content] = files.front();
  const std::string beside =
      read_file_if_there(folder / "tokenizer_config.json", kMostTokenizerBytes)
          .value_or(content_of(files, "tokenizer_config.json"));
  return text::Tokenizer::from_file(name, content, beside, model.string());
}

std::unique_ptr<text::Tokenizer> need_tokenizer(const fs::path& model) {
  if (auto found = find_tokenizer(model)) return found;
  return text::Tokenizer::load(may_be_gguf(model) ? model_folder(model) : model);
}

std::string gguf_tokenizer_config(const fs::path& model) {
  return content_of(files_within(model), "tokenizer_config.json");
}

void add_gguf_files(const BoundModel& model, io::ConvertOptions& options,
                    const std::function<void(const Error&)>& no_tokenizer) {
  options.texts.emplace_back("config.json", model.config_text());
  const fs::path& folder = model.checkpoint().folder();
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json"})
    if (is_file(folder / name)) options.extra_files.push_back(folder / name);
  if (text::Tokenizer::exists(folder)) return;
  try {
    for (auto& file : gguf_tokenizer_files(model.checkpoint().gguf_metadata(),
                                           model.checkpoint().files().front().path.string()))
      if (!is_file(folder / file.first)) options.texts.push_back(std::move(file));
  } catch (const Error& error) {
    if (!no_tokenizer) throw;
    no_tokenizer(error);
  }
}

}  // namespace sluice::app
