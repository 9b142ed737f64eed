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

// Nothing of a model that is no GGUF file.
std::optional<io::Checkpoint> gguf_file(const fs::path& model) {
  if (!may_be_gguf(model)) return std::nullopt;
  auto checkpoint = io::Checkpoint::open(model);
  if (checkpoint.format() != io::CheckpointFormat::kGguf) return std::nullopt;
  return checkpoint;
}

std::string name_of(const io::Checkpoint& checkpoint) {
  return checkpoint.files().front().path.string();
}

void refuse_pretokenizer(const fs::path& of) {
  throw Error(ErrorKind::kUser,
              of.string() +
                  ": `pretokenizer` has no effect, as the tokenizer's own files say how "
                  "text is cut",
              "leave it out");
}
}  // namespace

fs::path model_folder(const fs::path& model) {
  return is_folder(model) ? model : model.parent_path();
}

std::unique_ptr<text::Tokenizer> find_tokenizer(const fs::path& model,
                                                const std::string& pretokenizer) {
  const fs::path folder = model_folder(model);
  if (text::Tokenizer::exists(folder)) {
    if (!pretokenizer.empty()) refuse_pretokenizer(folder);
    return text::Tokenizer::load(folder);
  }
  const auto checkpoint = gguf_file(model);
  if (!checkpoint) return nullptr;
  const Files files =
      gguf_tokenizer_files(checkpoint->gguf_metadata(), name_of(*checkpoint), pretokenizer);
  if (files.empty()) return nullptr;
  const auto& [name, content] = files.front();
  const std::string beside =
      read_file_if_there(folder / "tokenizer_config.json", kMostTokenizerBytes)
          .value_or(files.back().second);
  return text::Tokenizer::from_file(name, content, beside, model.string());
}

std::unique_ptr<text::Tokenizer> need_tokenizer(const fs::path& model,
                                                const std::string& pretokenizer) {
  if (auto found = find_tokenizer(model, pretokenizer)) return found;
  if (!pretokenizer.empty()) refuse_pretokenizer(model);
  return text::Tokenizer::load(may_be_gguf(model) ? model_folder(model) : model);
}

std::string gguf_tokenizer_config(const fs::path& model) {
  const auto checkpoint = gguf_file(model);
  return checkpoint ? gguf_tokenizer_config(checkpoint->gguf_metadata(), name_of(*checkpoint))
                    : std::string();
}

void add_gguf_files(const BoundModel& model, io::ConvertOptions& options,
                    const std::string& pretokenizer,
                    const std::function<void(const Error&)>& no_tokenizer) {
  options.texts.emplace_back("config.json", model.config_text());
  const fs::path& folder = model.checkpoint().folder();
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json"})
    if (is_file(folder / name)) options.extra_files.push_back(folder / name);
  if (text::Tokenizer::exists(folder)) {
    if (!pretokenizer.empty()) refuse_pretokenizer(folder);
    return;
  }
  try {
    for (auto& file : gguf_tokenizer_files(model.checkpoint().gguf_metadata(),
                                           name_of(model.checkpoint()), pretokenizer))
      if (!is_file(folder / file.first)) options.texts.push_back(std::move(file));
  } catch (const Error& error) {
    if (!no_tokenizer || error.kind() == ErrorKind::kUser) throw;
    no_tokenizer(error);
  }
}

}  // namespace sluice::app
