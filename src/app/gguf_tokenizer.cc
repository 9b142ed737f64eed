#include "src/app/gguf_tokenizer.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/text/byte_level.h"

namespace sluice::app {

namespace {
using Json = nlohmann::json;

// Kinds of tokens, as GGUF and SentencePiece number them.
constexpr int64_t kUnknown = 2, kControl = 3, kUserDefined = 4;

// How text is cut before merging where no file of a tokenizer needs it by itself: the pattern that
// Alibaba published with Qwen 3.5.
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class Vocabulary {
 public:
  Vocabulary(const Json& metadata, std::string where)
      : metadata_(metadata), where_(std::move(where)) {
    const Json* tokens = find("tokens");
    if (!tokens || !tokens->is_array() || tokens->empty()) wrong("tokens", "a list of texts");
    for (const Json& token : *tokens) {
      if (!token.is_string()) wrong("tokens", "a list of texts");
      this->tokens.push_back(token.get<std::string>());
    }
    types = numbers<int64_t>("token_type", 1);
  }

  [[noreturn]] void refuse(const std::string& problem, const std::string& mend) const {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", where_, problem), mend);
  }
  [[noreturn]] void wrong(const std::string& key, const char* wanted) const {
    refuse(fmt::format("key tokenizer.ggml.{} is not {}", key, wanted), "download the file again");
  }
  const Json* find(const std::string& key) const {
    const auto found = metadata_.find("tokenizer.ggml." + key);
    return found == metadata_.end() ? nullptr : &*found;
  }
  std::string text_or(const std::string& key, std::string fallback) const {
    const Json* value = find(key);
    if (!value) return fallback;
    if (!value->is_string()) wrong(key, "a text");
    return value->get<std::string>();
  }
  bool boolean_or(const std::string& key, bool fallback) const {
    const Json* value = find(key);
    if (!value) return fallback;
    if (!value->is_boolean()) wrong(key, "true or false");
    return value->get<bool>();
  }
  /// The token of "bos_token_id" and the like; -1: none.
  int64_t id(const std::string& key) const {
    const Json* value = find(key);
    if (!value) return -1;
    if (!value->is_number_integer() || value->get<int64_t>() < 0 ||
        value->get<int64_t>() >= static_cast<int64_t>(tokens.size()))
      wrong(key, "a token");
    return value->get<int64_t>();
  }
  /// One number a token; all `fallback` when the key is missing.
  template <typename T>
  std::vector<T> numbers(const std::string& key, T fallback) const {
    const Json* value = find(key);
    if (!value) return std::vector<T>(tokens.size(), fallback);
    if (!value->is_array() || value->size() != tokens.size()) wrong(key, "a number a token");
    std::vector<T> out;
    for (const Json& one : *value) {
      if (!one.is_number()) wrong(key, "a number a token");
      out.push_back(one.get<T>());
    }
    return out;
  }
  std::string token(int64_t id) const { return tokens[static_cast<size_t>(id)]; }

  std::vector<std::string> tokens;
  std::vector<int64_t> types;

 private:
  const Json& metadata_;
  std::string where_;
};

// Protocol buffers' wire format (sentencepiece_model.proto has the field numbers).
class Message {
 public:
  void number(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
  }
  void real(int field, float value) {
    varint(static_cast<uint64_t>(field) << 3 | 5);
    char bytes[4];
    std::memcpy(bytes, &value, 4);
    text_.append(bytes, 4);
  }
  void bytes(int field, const std::string& value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    text_ += value;
  }
  const std::string& text() const { return text_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) text_ += static_cast<char>((value & 127) | 128);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

std::string sentencepiece_model(const Vocabulary& vocabulary) {
  const std::vector<float> scores = vocabulary.numbers<float>("scores", 0.0f);
  Message model;
  int64_t unknown = vocabulary.id("unknown_token_id");
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const int64_t type = vocabulary.types[i];
    if (type < 1 || type > 6) vocabulary.wrong("token_type", "1 to 6 for each token");
    if (unknown < 0 && type == kUnknown) unknown = static_cast<int64_t>(i);
    Message piece;
    piece.bytes(1, vocabulary.tokens[i]);
    piece.real(2, scores[i]);
    piece.number(3, static_cast<uint64_t>(type));
    model.bytes(1, piece.text());
  }
  Message trainer;
  trainer.number(3, 2);   // BPE
  trainer.number(35, 1);  // bytes for what is in no piece
  const auto special = [&](int id_field, int piece_field, int64_t id) {
    trainer.number(id_field, static_cast<uint64_t>(id));  // -1 as protocol buffers write it
    if (id >= 0) trainer.bytes(piece_field, vocabulary.token(id));
  };
  special(40, 45, unknown);
  special(41, 46, vocabulary.id("bos_token_id"));
  special(42, 47, vocabulary.id("eos_token_id"));
  trainer.number(43, static_cast<uint64_t>(int64_t{-1}));
  model.bytes(2, trainer.text());
  Message normalizer;
  normalizer.bytes(1, "identity");
  normalizer.number(3, vocabulary.boolean_or("add_space_prefix", true) ? 1 : 0);
  normalizer.number(4, vocabulary.boolean_or("remove_extra_whitespaces", false) ? 1 : 0);
  normalizer.number(5, 1);
  model.bytes(3, normalizer.text());
  return model.text();
}

Json split_by(const char* pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            {{"type", "ByteLevel"},
             {"add_prefix_space", false},
             {"trim_offsets", true},
             {"use_regex", false}}}}};
}

Json pre_tokenizer(const Vocabulary& vocabulary) {
  const std::string name = vocabulary.text_or("pre", "gpt-2");
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3" || name == "smaug-bpe" ||
      name == "dbrx")
    return split_by(text::kLlama3Pattern);
  if (name == "qwen2") return split_by(text::kQwen2Pattern);
  if (name == "qwen35") return split_by(kQwen35);
  if (name == "gpt-4o" || name == "llama4") return split_by(text::kO200kPattern);
  if (name == "kimi-k2") return split_by(text::kKimiPattern);
  if (name == "gpt-2" || name == "default")
    return {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", true}};
  vocabulary.refuse(
      fmt::format("its text is cut by rule \"{}\"", name),
      "gpt-2, llama-bpe, dbrx, qwen2, qwen35, gpt-4o, llama4 and kimi-k2 are known; put "
      "the model's tokenizer.json beside the file");
}

// What all kinds of BPE have; "model" lacks what one kind differs in.
Json bpe_json(const Vocabulary& vocabulary) {
  Json json;
  json["version"] = "1.0";
  json["added_tokens"] = Json::array();
  Json vocab = Json::object();
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const int64_t type = vocabulary.types[i];
    const std::string& token = vocabulary.tokens[i];
    if (type == kControl || type == kUserDefined)
      json["added_tokens"].push_back({{"id", i},
                                      {"content", token},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", type == kControl}});
    vocab[token] = i;
  }
  const Json* merges = vocabulary.find("merges");
  if (!merges || !merges->is_array()) vocabulary.wrong("merges", "a list of pairs");
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", std::move(vocab)},
                   {"merges", Json::array()}};
  for (const Json& merge : *merges) {
    if (!merge.is_string()) vocabulary.wrong("merges", "a list of pairs");
    json["model"]["merges"].push_back(merge.get<std::string>());
  }
  return json;
}

// Puts the first token of a text before it; null where none is.
Json first_token(const Vocabulary& vocabulary, bool fallback) {
  const int64_t bos = vocabulary.id("bos_token_id");
  if (bos < 0 || !vocabulary.boolean_or("add_bos_token", fallback)) return nullptr;
  const std::string token = vocabulary.token(bos);
  const Json first{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  const auto text = [](const char* id, int type) {
    return Json{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", {first, text("A", 0)}},
          {"pair", {first, text("A", 0), first, text("B", 1)}},
          {"special_tokens", {{token, {{"id", token}, {"ids", {bos}}, {"tokens", {token}}}}}}};
}

std::string byte_level_json(const Vocabulary& vocabulary) {
  Json json = bpe_json(vocabulary);
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = pre_tokenizer(vocabulary);
  const std::string rule = vocabulary.text_or("pre", "");
  const bool is_llama3 = rule.starts_with("llama") && rule != "llama4";
  json["post_processor"] = first_token(vocabulary, is_llama3);
  if (json["post_processor"].is_null())
    json["post_processor"] = {{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", false},
                              {"use_regex", true}};
  json["decoder"] = {{"type", "ByteLevel"},
                     {"add_prefix_space", true},
                     {"trim_offsets", true},
                     {"use_regex", true}};
  json["model"]["ignore_merges"] = is_llama3;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Gemma 4's: pieces as SentencePiece has them, merged by pairs; lines are cut from their ends.
std::string byte_fallback_json(const Vocabulary& vocabulary) {
  Json json = bpe_json(vocabulary);
  constexpr const char* kSpace = "\xe2\x96\x81";
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  json["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "\n+"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  json["post_processor"] = first_token(vocabulary, true);
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}}}}};
  if (const int64_t unknown = vocabulary.id("unknown_token_id"); unknown >= 0)
    json["model"]["unk_token"] = vocabulary.token(unknown);
  json["model"]["fuse_unk"] = true;
  json["model"]["byte_fallback"] = true;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}
}  // namespace

std::vector<std::pair<std::string, std::string>> gguf_tokenizer_files(const Json& metadata,
                                                                      const std::string& where) {
  const auto found = metadata.find("tokenizer.ggml.model");
  if (found == metadata.end()) return {};
  const Vocabulary vocabulary(metadata, where);
  const std::string kind = vocabulary.text_or("model", "");
  std::vector<std::pair<std::string, std::string>> files;
  if (kind == "llama")
    files.emplace_back("tokenizer.model", sentencepiece_model(vocabulary));
  else if (kind == "gpt2")
    files.emplace_back("tokenizer.json", byte_level_json(vocabulary));
  else if (kind == "gemma4")
    files.emplace_back("tokenizer.json", byte_fallback_json(vocabulary));
  else
    vocabulary.refuse(fmt::format("a tokenizer of kind \"{}\" is not read", kind),
                      "llama (SentencePiece), gpt2 (byte-level BPE) and gemma4 are; put the "
                      "model's tokenizer.json beside the file");
  Json config{{"add_bos_token", vocabulary.boolean_or("add_bos_token", kind != "gpt2")},
              {"add_eos_token", vocabulary.boolean_or("add_eos_token", false)}};
  for (const auto& [theirs, ours] :
       {std::pair{"bos_token_id", "bos_token"}, std::pair{"eos_token_id", "eos_token"},
        std::pair{"padding_token_id", "pad_token"}})
    if (const int64_t id = vocabulary.id(theirs); id >= 0) config[ours] = vocabulary.token(id);
  if (const auto chat = metadata.find("tokenizer.chat_template");
      chat != metadata.end() && chat->is_string())
    config["chat_template"] = chat->get<std::string>();
  files.emplace_back("tokenizer_config.json",
                     config.dump(2, ' ', false, Json::error_handler_t::replace));
  return files;
}

}  // namespace sluice::app
