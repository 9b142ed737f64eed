#include "src/model/foreign/gguf_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

namespace sluice {

namespace {
constexpr std::string_view kVocabulary = "tokenizer.ggml.tokens";
constexpr int64_t kControl = 3, kUserDefined = 4;  // kinds of tokens, as GGUF numbers them

// Of code that is filled in, what stands behind the middle or is between files: an answer is over.
constexpr std::array kEndKeys{"eos_token_id",     "eot_token_id",     "eom_token_id",
                              "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"};
constexpr std::array kOtherIdKeys{"bos_token_id",     "unknown_token_id", "seperator_token_id",
                                  "padding_token_id", "mask_token_id",    "cls_token_id",
                                  "prefix_token_id",  "suffix_token_id",  "middle_token_id",
                                  "fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id"};

constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
    // Padding, and what is between files and repositories.
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>",
    "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"};
// Texts of markup as well: ends where the file says that they are no plain tokens.
constexpr std::string_view kEndTextsOfMarkup[] = {"</s>", "<eos>"};

bool is_among(std::span<const std::string_view> texts, std::string_view token) {
  return std::find(texts.begin(), texts.end(), token) != texts.end();
}

// The token that a key names, where it is one of `count`.
std::optional<int32_t> token_of(const io::GgufMetadata& metadata, const std::string& key,
                                int64_t count) {
  const nlohmann::json* value = metadata.find(key);
  if (!value || !value->is_number_integer()) return std::nullopt;
  if (value->is_number_unsigned() && value->get<uint64_t>() >= static_cast<uint64_t>(count))
    return std::nullopt;
  const auto id = value->get<int64_t>();
  return id >= 0 && id < count ? std::optional(static_cast<int32_t>(id)) : std::nullopt;
}

const io::GgufArray* vocabulary(const io::GgufMetadata& metadata) {
  const io::GgufArray* tokens = metadata.find_array(std::string(kVocabulary));
  return tokens && tokens->is_of_texts() ? tokens : nullptr;
}

// Files of weights alone have no vocabulary, and ids all the same.
int64_t token_count(const io::GgufMetadata& metadata) {
  const io::GgufArray* tokens = vocabulary(metadata);
  return tokens ? tokens->size() : std::numeric_limits<int32_t>::max();
}

std::string key_of(const char* name) { return std::string("tokenizer.ggml.") + name; }

// Of models that answer in several messages, what ends one of them is no end where other tokens
// end the turn; nor is the text of markup where a model has ends of its own.
void take_back(std::vector<EndToken>& ends) {
  const auto has = [&](std::string_view text) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const EndToken& end) { return end.text == text; });
  };
  const auto drop = [&](std::string_view text) {
    std::erase_if(ends, [&](const EndToken& end) { return end.text == text; });
  };
  const bool calls = has("<|call|>") || has("<|calls|>");
  if (calls && (has("<|return|>") || has("<|flush|>"))) drop("<|end|>");
  if (has("<|tool_response>")) drop("</s>");
}
}  // namespace

bool is_end_text(std::string_view token) { return is_among(kEndTexts, token); }

std::vector<EndToken> gguf_end_tokens(const io::GgufMetadata& metadata) {
  const io::GgufArray* array = vocabulary(metadata);
  std::vector<std::string> tokens;
  if (array) tokens = array->texts();
  std::vector<int64_t> types;
  if (const io::GgufArray* said = metadata.find_array("tokenizer.ggml.token_type");
      array && said && said->is_of_integers() && said->size() == array->size())
    types = said->integers();
  std::vector<EndToken> ends;
  const auto add = [&](int32_t id, std::string from) {
    const auto at = static_cast<size_t>(id);
    if (std::none_of(ends.begin(), ends.end(), [&](const EndToken& end) { return end.id == id; }))
      ends.push_back({id, at < tokens.size() ? tokens[at] : std::string(), std::move(from)});
  };
  for (const char* name : kEndKeys)
    if (const auto id = token_of(metadata, key_of(name), token_count(metadata)))
      add(*id, key_of(name));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_plain = types.empty() || (types[i] != kControl && types[i] != kUserDefined);
    if (is_end_text(tokens[i]) || (!is_plain && is_among(kEndTextsOfMarkup, tokens[i])))
      add(static_cast<int32_t>(i), "its text");
  }
  take_back(ends);
  return ends;
}

std::optional<int32_t> gguf_begin_token(const io::GgufMetadata& metadata) {
  return token_of(metadata, key_of("bos_token_id"), token_count(metadata));
}

std::vector<std::string> gguf_notes_of_ids(const io::GgufMetadata& metadata) {
  std::vector<std::string> notes;
  const auto look = [&](const char* name) {
    const nlohmann::json* value = metadata.find(key_of(name));
    if (value && value->is_number_integer() &&
        !token_of(metadata, key_of(name), token_count(metadata)))
      notes.push_back(fmt::format("key {} is {}, which is no token: it is passed over",
                                  key_of(name), value->dump()));
  };
  for (const char* name : kEndKeys) look(name);
  for (const char* name : kOtherIdKeys) look(name);
  return notes;
}

}  // namespace sluice
