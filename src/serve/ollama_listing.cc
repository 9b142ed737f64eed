#include "src/serve/ollama_listing.h"

#include <fmt/format.h>

#include <utility>

#include "src/serve/json_text.h"
#include "src/serve/ollama_request.h"
#include "src/serve/translation.h"

namespace sluice::serve {

namespace {
using nlohmann::ordered_json;

// "7.2B", "260K".
std::string parameters_text(int64_t count) {
  const auto number = static_cast<double>(count);
  if (count >= 1000000000) return fmt::format("{:.1f}B", number / 1e9);
  return count >= 1000000 ? fmt::format("{:.1f}M", number / 1e6)
                          : fmt::format("{:.0f}K", number / 1e3);
}

// To tell models apart: of a name and the model's config.json, not of its weights. FNV-1a, four
// times.
std::string name_digest(const std::string& name, const std::string& config) {
  std::string out;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    uint64_t hash = 0xcbf29ce484222325 + seed;
    for (const std::string* text : {&name, &config})
      for (const char c : *text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    out += fmt::format("{:016x}", hash);
  }
  return out;
}

ordered_json details(const OllamaListed& listed) {
  const ModelShape& shape = listed.model.shape();
  return {{"parent_model", listed.parent},
          {"format", io::checkpoint_format_name(listed.model.checkpoint().format())},
          {"family", shape.family},
          {"families", ordered_json::array({shape.family})},
          {"parameter_size", parameters_text(shape.num_parameters())},
          {"quantization_level", shape.weights_name()}};
}
}  // namespace

ordered_json ollama_entry(const OllamaListed& listed) {
  const std::string tagged = listed.name.find(':') == std::string::npos
                                 ? listed.name + std::string(kOllamaTag)
                                 : listed.name;
  return {{"name", tagged},
          {"model", tagged},
          {"modified_at", listed.started},
          {"size", listed.model.checkpoint().total_bytes()},
          {"digest", name_digest(listed.name, listed.model.config_text())},
          {"details", details(listed)}};
}

ordered_json ollama_show(const OllamaListed& listed, const OllamaShown& shown) {
  const ModelShape& shape = listed.model.shape();
  const std::string& family = shape.family;
  auto capabilities = ordered_json::array({"completion"});
  if (shown.has_tools) capabilities.push_back("tools");
  if (shown.has_thoughts) capabilities.push_back("thinking");
  const ordered_json info{{"general.architecture", family},
                          {"general.parameter_count", shape.num_parameters()},
                          {family + ".context_length", shown.context_tokens},
                          {family + ".embedding_length", shape.hidden_size},
                          {family + ".block_count", shape.num_layers},
                          {family + ".attention.head_count", shape.num_heads},
                          {family + ".attention.head_count_kv", shape.num_kv_heads},
                          {family + ".vocab_size", shape.vocab_size}};
  return {
      {"parameters", fmt::format("temperature {}\ntop_k {}\ntop_p {}", shown.defaults.temperature,
                                 shown.defaults.top_k, shown.defaults.top_p)},
      {"template", shown.chat ? shown.chat->source().text : std::string()},
      {"details", details(listed)},
      {"model_info", info},
      {"capabilities", std::move(capabilities)},
      {"modified_at", listed.started}};
}

std::string ollama_named(const ordered_json& body) {
  const ordered_json* asked = find_value(body, "model");
  if (!asked) asked = find_value(body, "name");
  if (!asked) refuse_field("model", "model is missing");
  return need_text("model", *asked);
}

std::string ollama_pulled(const ordered_json& body) {
  const ordered_json* streams = find_value(body, "stream");
  const bool is_streamed = !streams || *streams == true;
  return dump({{"status", "success"}}) + (is_streamed ? "\n" : "");
}

void check_ollama_show(const ordered_json& body) {
  for (const auto& [name, value] : body.items())
    if (!value.is_null() && name != "model" && name != "name" && name != "verbose")
      refuse_unknown(name);
}

}  // namespace sluice::serve
