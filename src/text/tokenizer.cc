#include "src/text/tokenizer.h"

#include <fmt/format.h>

#include "src/base/error.h"
#include "src/base/files.h"
#include "src/text/hf_tokenizer.h"

namespace sluice::text {

namespace fs = std::filesystem;

namespace {
std::string read_tokenizer_file(const fs::path& path) {
  return read_file(path, kMostTokenizerBytes);
}

std::string read_if_there(const fs::path& path) {
  return read_file_if_there(path, kMostTokenizerBytes).value_or(std::string());
}

struct VocabAndMerges {
  fs::path vocab;
  fs::path merges;
};
std::optional<VocabAndMerges> find_vocab_merges(const fs::path& folder) {
  for (const char* prefix : {"", "gpt2-"}) {
    VocabAndMerges files{folder / (std::string(prefix) + "vocab.json"),
                         folder / (std::string(prefix) + "merges.txt")};
    if (is_file(files.vocab) && is_file(files.merges)) return files;
  }
  return std::nullopt;
}

// Kimi's has a name of its own.
std::optional<fs::path> find_model_file(const fs::path& folder) {
  for (const char* name : {"tokenizer.model", "tiktoken.model"})
    if (is_file(folder / name)) return folder / name;
  return std::nullopt;
}

std::string model_type(const fs::path& folder) {
  const std::string config = read_if_there(folder / "config.json");
  if (config.empty()) return {};
  const Json json = parse_json(config, (folder / "config.json").string());
  return Field{&json, "config.json"}.text_or("model_type", "");
}

std::unique_ptr<Tokenizer> read_model_file(const std::string& bytes, const std::string& config,
                                           const std::string& origin) {
  if (looks_like_tiktoken(bytes)) return load_tiktoken(bytes, config, origin);
  return load_sentencepiece(bytes, config, origin);
}

std::unique_ptr<Tokenizer> load_model_file(const fs::path& path, const std::string& config) {
  return read_model_file(read_tokenizer_file(path), config, path.string());
}
}  // namespace

bool Tokenizer::exists(const fs::path& folder) {
  return is_file(folder / "tokenizer.json") || find_model_file(folder) ||
         find_vocab_merges(folder).has_value();
}

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json,
                                                std::string_view tokenizer_config_json) {
  return load_tokenizer_json(tokenizer_json, tokenizer_config_json, "tokenizer.json");
}

std::unique_ptr<Tokenizer> Tokenizer::from_file(const std::string& name, const std::string& bytes,
                                                const std::string& config,
                                                const std::string& origin) {
  if (name == "tokenizer.json") return load_tokenizer_json(bytes, config, origin);
  return read_model_file(bytes, config, origin);
}

std::unique_ptr<Tokenizer> Tokenizer::load(const fs::path& path) {
  const bool is_whole_folder = is_folder(path);
  const fs::path folder = is_whole_folder ? path : path.parent_path();
  const std::string config = read_if_there(folder / "tokenizer_config.json");
  if (!is_whole_folder && !is_there(path))
    throw Error(ErrorKind::kFile, fmt::format("{}: no such file or folder", path.string()),
                "give a model folder or a tokenizer file");
  const fs::path json = is_whole_folder ? folder / "tokenizer.json" : path;
  // What is there in its name is what was meant, even if it is no file.
  if ((is_whole_folder && is_there(json)) ||
      (!is_whole_folder && path.extension() == ".json" &&
       path.filename().string().find("vocab") == std::string::npos))
    return load_tokenizer_json(read_tokenizer_file(json), config, json.string());
  if (const auto model = find_model_file(folder); is_whole_folder && model)
    return load_model_file(*model, config);
  if (!is_whole_folder && path.extension() != ".json" && path.extension() != ".txt")
    return load_model_file(path, config);
  if (const auto files = find_vocab_merges(folder))
    return load_vocab_merges(read_tokenizer_file(files->vocab), read_tokenizer_file(files->merges),
                             config, model_type(folder), files->vocab.string());
  throw Error(ErrorKind::kFile,
              fmt::format("{}: no tokenizer.json, tokenizer.model, tiktoken.model or vocab.json "
                          "with merges.txt",
                          folder.string()),
              "copy the tokenizer files of the model there");
}

}  // namespace sluice::text
