#include "src/text/tokenizer_config.h"

#include <algorithm>

namespace sluice::text {

namespace {
// "bos_token": "<s>" or {"content": "<s>"}.
std::optional<std::string> token_text(const Field& config, std::string_view key) {
  if (!config.has(key)) return std::nullopt;
  const Field value = config.at(key);
  if (value.json->is_object()) return value.at("content").text();
  return value.text();
}

std::optional<bool> boolean(const Field& config, std::string_view key) {
  if (!config.has(key)) return std::nullopt;
  return config.boolean_or(key, false);
}

void read_added(const Field& decoder, std::vector<AddedToken>& out) {
  if (!decoder.json->is_object()) decoder.refuse("not an object");
  for (const auto& [key, value] : decoder.json->items()) {
    const Field entry{&value, decoder.path + "." + key};
    const bool is_number =
        !key.empty() && key.size() < 9 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number) entry.refuse("its name is not a token id");
    out.push_back(read_added_token(entry, std::stoi(key)));
  }
}
}  // namespace

AddedToken read_added_token(const Field& json, int32_t id) {
  AddedToken token;
  token.id = id;
  token.content = json.at("content").text();
  token.is_special = json.boolean_or("special", false);
  token.single_word = json.boolean_or("single_word", false);
  token.lstrip = json.boolean_or("lstrip", false);
  token.rstrip = json.boolean_or("rstrip", false);
  token.normalized = json.boolean_or("normalized", !token.is_special);
  return token;
}

std::vector<std::string> TokenizerConfig::special() const {
  std::vector<std::string> out;
  for (const auto* token : {&bos, &eos, &unk, &pad})
    if (*token) out.push_back(**token);
  return out;
}

TokenizerConfig read_tokenizer_config(std::string_view text, const std::string& origin) {
  TokenizerConfig out;
  if (text.empty()) return out;
  const Json json = parse_json(text, origin + " (tokenizer_config.json)");
  const Field root{&json, "tokenizer_config.json"};
  if (!json.is_object()) root.refuse("not an object");
  if (root.has("added_tokens_decoder")) read_added(root.at("added_tokens_decoder"), out.added);
  out.bos = token_text(root, "bos_token");
  out.eos = token_text(root, "eos_token");
  out.unk = token_text(root, "unk_token");
  out.pad = token_text(root, "pad_token");
  out.adds_bos = boolean(root, "add_bos_token");
  out.adds_eos = boolean(root, "add_eos_token");
  out.adds_prefix_space = boolean(root, "add_prefix_space");
  out.is_legacy = root.boolean_or("legacy", false);
  out.tokenizer_class = root.text_or("tokenizer_class", "");
  return out;
}

}  // namespace sluice::text
