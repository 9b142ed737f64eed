#include "src/serve/pooling.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "src/base/error.h"
#include "src/base/files.h"

namespace sluice::serve {

namespace {
using nlohmann::json;

[[noreturn]] void refuse_form(const std::filesystem::path& file, const std::string& what) {
  throw Error(ErrorKind::kFile, fmt::format("{}: {}", file.string(), what),
              "say how rows are pooled in the request, or embed with another model");
}

json read_json(const std::filesystem::path& file) {
  json out = json::parse(read_file(file, kMostSettingsBytes), nullptr, false);
  if (out.is_discarded()) refuse_form(file, "it is no JSON");
  return out;
}

// "sentence_transformers.models.Pooling": the last word.
std::string module_name(const json& module) {
  if (!module.is_object() || !module.contains("type") || !module["type"].is_string()) return "";
  const auto type = module["type"].get<std::string>();
  return type.substr(type.rfind('.') + 1);
}

std::optional<Pooling> pooling_of_mode(std::string mode) {
  for (const char* word : {"pooling_mode_", "_tokens", "_token"})
    if (const size_t at = mode.find(word); at != std::string::npos)
      mode.erase(at, std::string_view(word).size());
  if (mode == "lasttoken") return Pooling::kLast;
  if (mode == "mean") return Pooling::kMean;
  if (mode == "cls") return Pooling::kFirst;
  return std::nullopt;
}

Pooling read_pooling(const std::filesystem::path& file, int64_t hidden_size) {
  const json config = read_json(file);
  if (!config.is_object()) refuse_form(file, "it is no object");
  std::optional<Pooling> found;
  const auto add = [&](const std::string& mode) {
    const auto pooling = pooling_of_mode(mode);
    if (!pooling)
      refuse_form(file, fmt::format("{} is not done here; mean, lasttoken and cls are",
                                    mode.substr(0, 100)));
    if (found) refuse_form(file, "it joins several ways of pooling, which is not done here");
    found = pooling;
  };
  for (const auto& [name, value] : config.items()) {
    if (name == "word_embedding_dimension" || name == "embedding_dimension") {
      if (value != hidden_size)
        refuse_form(
            file,
            fmt::format("{} is {}; the model's rows have {}", name,
                        value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 50),
                        hidden_size));
    } else if (name == "pooling_mode" && value.is_string()) {
      add(value.get<std::string>());
    } else if (name.starts_with("pooling_mode_") && value.is_boolean()) {
      if (value.get<bool>()) add(name);
    } else if (name != "include_prompt" || !value.is_boolean()) {
      // Prompts are the caller's here, and part of the text.
      refuse_form(file, fmt::format("{} is not understood", name.substr(0, 100)));
    }
  }
  if (!found) refuse_form(file, "it names no way of pooling");
  return *found;
}

// A prompt that would be put in front of every text.
void refuse_default_prompt(const std::filesystem::path& file) {
  const auto text = read_file_if_there(file, kMostSettingsBytes);
  if (!text) return;
  const json config = json::parse(*text, nullptr, false);
  if (!config.is_object()) refuse_form(file, "it is no JSON object");
  if (config.contains("default_prompt_name") && !config["default_prompt_name"].is_null())
    refuse_form(file,
                "default_prompt_name puts a prompt in front of every text, which is not done "
                "here");
}
}  // namespace

EmbeddingForm read_embedding_form(const std::filesystem::path& folder, int64_t hidden_size) {
  const std::filesystem::path file = folder / "modules.json";
  EmbeddingForm out;
  if (folder.empty() || !is_file(file)) return out;
  const json modules = read_json(file);
  if (!modules.is_array() || modules.empty()) refuse_form(file, "it is no list of modules");
  out.is_normalised = false;
  bool is_pooled = false;
  for (const json& module : modules) {
    const std::string name = module_name(module);
    if (name == "Transformer" && !is_pooled) continue;
    if (name == "Normalize" && is_pooled) {
      out.is_normalised = true;
    } else if (name == "Pooling" && !is_pooled) {
      const json path = module.value("path", json());
      if (!path.is_string() || path.get<std::string>().find("..") != std::string::npos ||
          path.get<std::string>().starts_with('/'))
        refuse_form(file, "the pooling module has no path in this folder");
      out.pooling = read_pooling(folder / path.get<std::string>() / "config.json", hidden_size);
      is_pooled = true;
    } else {
      refuse_form(file, name.empty() ? std::string("a module has no type")
                                     : fmt::format("the module {} is not done here, or not at that "
                                                   "place",
                                                   name.substr(0, 100)));
    }
  }
  if (!is_pooled) refuse_form(file, "it has no pooling module");
  refuse_default_prompt(folder / "config_sentence_transformers.json");
  return out;
}

void Pooler::add(std::span<const float> row) {
  ++rows_;
  if (pooling_ != Pooling::kMean || rows_ == 1) {
    sum_.assign(row.begin(), row.end());
    return;
  }
  for (size_t i = 0; i < row.size(); ++i) sum_[i] += row[i];
}

std::vector<float> Pooler::take() const {
  const double rows = pooling_ == Pooling::kMean ? static_cast<double>(rows_) : 1;
  std::vector<float> out;
  for (const double value : sum_) out.push_back(static_cast<float>(value / rows));
  return out;
}

void normalise(std::span<float> values) noexcept {
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  if (squares == 0) return;
  const double factor = 1 / std::sqrt(squares);
  for (float& value : values) value = static_cast<float>(value * factor);
}

}  // namespace sluice::serve
