#include "src/app/gguf_tokenizer.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "io/checkpoint/tensor_entry.h"
#include "src/base/error.h"
#include "src/model/foreign/gguf_ends.h"
#include "src/text/split_rules.h"

namespace sluice::app {

namespace {
using Json = nlohmann::json;

// Kinds of tokens, as GGUF and SentencePiece number them.
constexpr int64_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4;

class Vocabulary {
 public:
  Vocabulary(const io::GgufMetadata& metadata, std::string where)
      : metadata_(metadata), where_(std::move(where)), tokens(texts("tokens", "a list of texts")) {
    if (tokens.empty()) wrong("tokens", "a list of texts");
    types = whole_numbers("token_type", kNormal);
    // Ends of turns are whole in a text, whatever the file says.
    for (size_t i = 0; i < tokens.size(); ++i)
      if (types[i] == kNormal && is_end_text(tokens[i])) types[i] = kControl;
  }

  [[noreturn]] void refuse(const std::string& problem, const std::string& mend) const {
    throw Error(ErrorKind::kFile, fmt::format("{}: {}", where_, problem), mend);
  }
  [[noreturn]] void wrong(const std::string& key, const char* wanted) const {
    refuse(fmt::format("key tokenizer.ggml.{} is not {}", key, wanted), "download the file again");
  }
  std::string text_or(const std::string& key, std::string fallback) const {
    const Json* value = find(key, "a text");
    if (!value) return fallback;
    if (!value->is_string()) wrong(key, "a text");
    return value->get<std::string>();
  }
  bool boolean_or(const std::string& key, bool fallback) const {
    const Json* value = find(key, "true or false");
    if (!value) return fallback;
    if (!value->is_boolean()) wrong(key, "true or false");
    return value->get<bool>();
  }
  /// The token of "bos_token_id" and the like; -1: none. Numbers of no token say that too.
  int64_t id(const std::string& key) const {
    const Json* value = find(key, "a token");
    if (!value) return -1;
    if (!value->is_number_integer()) wrong(key, "a token");
    const auto id = value->get<int64_t>();
    return id >= 0 && id < std::ssize(tokens) ? id : -1;
  }
  std::vector<std::string> texts(const std::string& key, const char* wanted) const {
    const io::GgufArray* array = metadata_.find_array("tokenizer.ggml." + key);
    if (!array || !array->is_of_texts()) wrong(key, wanted);
    return array->texts();
  }
  /// One number a token; all `fallback` when the key is missing.
  std::vector<int64_t> whole_numbers(const std::string& key, int64_t fallback) const {
    const io::GgufArray* array = one_a_token(key);
    if (!array) return std::vector<int64_t>(tokens.size(), fallback);
    if (!array->is_of_integers()) wrong(key, kOneAToken);
    return array->integers();
  }
  std::vector<double> numbers(const std::string& key, double fallback) const {
    const io::GgufArray* array = one_a_token(key);
    return array ? array->numbers() : std::vector<double>(tokens.size(), fallback);
  }
  std::string token(int64_t id) const { return tokens[static_cast<size_t>(id)]; }

 private:
  static constexpr const char* kOneAToken = "a number a token";

  const Json* find(const std::string& key, const char* wanted) const {
    if (metadata_.find_array("tokenizer.ggml." + key)) wrong(key, wanted);
    return metadata_.find("tokenizer.ggml." + key);
  }
  // Null when the key is missing.
  const io::GgufArray* one_a_token(const std::string& key) const {
    const io::GgufArray* array = metadata_.find_array("tokenizer.ggml." + key);
    if (!array && !metadata_.find("tokenizer.ggml." + key)) return nullptr;
    if (!array || !array->is_of_numbers() || array->size() != std::ssize(tokens))
      wrong(key, kOneAToken);
    return array;
  }

  const io::GgufMetadata& metadata_;
  std::string where_;

 public:
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
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
  const std::vector<double> scores = vocabulary.numbers("scores", 0);
  Message model;
  int64_t unknown = vocabulary.id("unknown_token_id");
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const int64_t type = vocabulary.types[i];
    if (type < 1 || type > 6) vocabulary.wrong("token_type", "1 to 6 for each token");
    if (unknown < 0 && type == kUnknown) unknown = static_cast<int64_t>(i);
    Message piece;
    piece.bytes(1, vocabulary.tokens[i]);
    piece.real(2, static_cast<float>(scores[i]));
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

Json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

Json pre_tokenizer(const text::SplitRule& rule) {
  Json steps = Json::array();
  bool is_bytes = rule.is_of_pieces;
  for (const std::string_view pattern : rule.patterns) {
    if (pattern == text::kBytesStep) {
      steps.push_back(byte_level());
      is_bytes = true;
      continue;
    }
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  if (!is_bytes) steps.push_back(byte_level());
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// Files from before there was a key for it are of models that their architecture tells.
std::string rule_without_key(const std::string& architecture) {
  if (architecture == "gpt2" || architecture == "gptneox") return "gpt-2";
  return text::find_split_rule(architecture) ? architecture : "default";
}

const text::SplitRule& split_rule(const Vocabulary& vocabulary, const io::GgufMetadata& metadata,
                                  const std::string& kind, const std::string& asked) {
  std::string name = asked;
  if (name.empty() && kind == "gemma4") name = kind;
  if (name.empty())
    name =
        vocabulary.text_or("pre", rule_without_key(metadata.text_or("general.architecture", "")));
  const text::SplitRule* rule = text::find_split_rule(name);
  if (rule) return *rule;
  const std::string_view nearest = text::nearest_split_rule(name);
  if (!asked.empty())
    throw Error(ErrorKind::kUser,
                fmt::format("`pretokenizer` {} is not known", io::in_quotes(name)),
                fmt::format("the nearest name is {}", nearest));
  vocabulary.refuse(
      fmt::format("its text is cut by rule {}, which is not known; the nearest that "
                  "is known is \"{}\"",
                  io::in_quotes(name), nearest),
      fmt::format("put the model's tokenizer.json beside the file, or take that rule: "
                  "`pretokenizer` {}",
                  nearest));
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
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", std::move(vocab)},
                   {"merges", vocabulary.texts("merges", "a list of pairs")}};
  return json;
}

// What stands round a text, as Hugging Face's template; null where nothing does.
Json around_text(const Vocabulary& vocabulary, bool adds_begin) {
  const auto added = [&](const char* key, const char* id_key, bool fallback) {
    const int64_t id = vocabulary.id(id_key);
    return vocabulary.boolean_or(key, fallback) ? id : -1;
  };
  const int64_t begin = added("add_bos_token", "bos_token_id", adds_begin);
  const int64_t end = added("add_eos_token", "eos_token_id", false);
  if (begin < 0 && end < 0) return nullptr;
  Json tokens = Json::object();
  Json single = Json::array(), pair = Json::array();
  const auto add_token = [&](Json& to, int64_t id) {
    if (id < 0) return;
    const std::string token = vocabulary.token(id);
    tokens[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
    to.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
  };
  const auto add_text = [&](Json& to, const char* name, int type) {
    add_token(to, begin);
    to.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    add_token(to, end);
  };
  add_text(single, "A", 0);
  add_text(pair, "A", 0);
  add_text(pair, "B", 1);
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(tokens)}};
}

std::string byte_level_json(const Vocabulary& vocabulary, const text::SplitRule& rule) {
  Json json = bpe_json(vocabulary);
  json["normalizer"] = rule.composes ? Json{{"type", "NFC"}} : Json();
  json["pre_tokenizer"] = pre_tokenizer(rule);
  json["post_processor"] = around_text(vocabulary, rule.adds_begin);
  json["decoder"] = {{"type", "ByteLevel"},
                     {"add_prefix_space", true},
                     {"trim_offsets", true},
                     {"use_regex", true}};
  json["model"]["ignore_merges"] = rule.ignores_merges;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Gemma 4's: pieces as SentencePiece has them, merged by pairs; lines are cut from their ends.
std::string byte_fallback_json(const Vocabulary& vocabulary, const text::SplitRule& rule) {
  Json json = bpe_json(vocabulary);
  constexpr const char* kSpace = "\xe2\x96\x81";
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  json["pre_tokenizer"] = pre_tokenizer(rule);
  json["post_processor"] = around_text(vocabulary, rule.adds_begin);
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

bool has_tokenizer(const io::GgufMetadata& metadata) {
  const Json* kind = metadata.find("tokenizer.ggml.model");
  return kind && *kind != "none" && *kind != "no_vocab";
}

// A text, or of several templates (one for tools beside the other) the list that
// tokenizer_config.json has of them; null: there is none.
Json chat_templates(const io::GgufMetadata& metadata) {
  constexpr std::string_view kKey = "tokenizer.chat_template", kNamed = "tokenizer.chat_template.";
  Json list = Json::array();
  const std::string own = metadata.text_or(std::string(kKey), "");
  if (!own.empty()) list.push_back({{"name", "default"}, {"template", own}});
  for (const std::string& key : metadata.names()) {
    const std::string text = key.starts_with(kNamed) ? metadata.text_or(key, "") : std::string();
    if (!text.empty()) list.push_back({{"name", key.substr(kNamed.size())}, {"template", text}});
  }
  if (list.empty()) return nullptr;
  return list.size() == 1 && !own.empty() ? Json(own) : list;
}

// Phi-3's tokens of a chat take the white space behind them, which its files don't say: llama.cpp
// knows these models by their name, and so do its files' users. Null for any other.
Json tokens_that_take_space(const Vocabulary& vocabulary, const io::GgufMetadata& metadata) {
  std::string name = metadata.text_or("general.name", "");
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos)
    return nullptr;
  const std::set<std::string_view> exempt{"<unk>", "<s>", "<|endoftext|>"};
  Json out = Json::object();
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string& token = vocabulary.tokens[i];
    const bool is_control = vocabulary.types[i] == kControl;
    if (is_control || vocabulary.types[i] == kUserDefined)
      out[std::to_string(i)] = {{"content", token},
                                {"rstrip", !exempt.contains(token)},
                                {"normalized", false},
                                {"special", is_control}};
  }
  return out;
}

// tokenizer_config.json, the chat templates in it.
std::string config_json(const Vocabulary& vocabulary, const io::GgufMetadata& metadata,
                        const std::string& kind) {
  Json config{{"add_bos_token", vocabulary.boolean_or("add_bos_token", kind != "gpt2")},
              {"add_eos_token", vocabulary.boolean_or("add_eos_token", false)}};
  for (const auto& [theirs, ours] :
       {std::pair{"bos_token_id", "bos_token"}, std::pair{"eos_token_id", "eos_token"},
        std::pair{"padding_token_id", "pad_token"}})
    if (const int64_t id = vocabulary.id(theirs); id >= 0) config[ours] = vocabulary.token(id);
  if (Json taking = kind == "llama" ? tokens_that_take_space(vocabulary, metadata) : Json();
      !taking.is_null())
    config["added_tokens_decoder"] = std::move(taking);
  if (Json chat = chat_templates(metadata); !chat.is_null())
    config["chat_template"] = std::move(chat);
  return config.dump(2, ' ', false, Json::error_handler_t::replace);
}

// Kinds of tokenizers that GGUF files have and that are not read, with what they are.
struct OtherKind {
  std::string_view name, what;
};
constexpr OtherKind kOtherKinds[] = {
    {"bert", "WordPiece"},           {"t5", "SentencePiece's unigrams"},
    {"rwkv", "RWKV's greedy words"}, {"plamo2", "PLaMo 2's"},
    {"hybriddna", "DNA by k-mers"},  {"whitespace", "words between spaces"}};

[[noreturn]] void refuse_kind(const Vocabulary& vocabulary, const std::string& kind) {
  std::string what;
  for (const OtherKind& other : kOtherKinds)
    if (other.name == kind) what = fmt::format(" ({})", other.what);
  vocabulary.refuse(fmt::format("a tokenizer of kind {}{} is not read", io::in_quotes(kind), what),
                    "llama (SentencePiece), gpt2 (byte-level BPE) and gemma4 are; put the "
                    "model's tokenizer.json beside the file");
}
}  // namespace

std::vector<std::pair<std::string, std::string>> gguf_tokenizer_files(
    const io::GgufMetadata& metadata, const std::string& where, const std::string& asked) {
  if (!has_tokenizer(metadata)) return {};
  const Vocabulary vocabulary(metadata, where);
  const std::string kind = vocabulary.text_or("model", "");
  std::vector<std::pair<std::string, std::string>> files;
  if (kind == "llama") {
    if (!asked.empty())
      throw Error(ErrorKind::kUser, fmt::format("{}: `pretokenizer` has no effect here", where),
                  "SentencePiece cuts no text before merging: leave it out");
    files.emplace_back("tokenizer.model", sentencepiece_model(vocabulary));
  } else if (kind == "gpt2" || kind == "gemma4") {
    const text::SplitRule& rule = split_rule(vocabulary, metadata, kind, asked);
    files.emplace_back("tokenizer.json", rule.is_of_pieces ? byte_fallback_json(vocabulary, rule)
                                                           : byte_level_json(vocabulary, rule));
  } else {
    refuse_kind(vocabulary, kind);
  }
  files.emplace_back("tokenizer_config.json", config_json(vocabulary, metadata, kind));
  return files;
}

std::string gguf_tokenizer_config(const io::GgufMetadata& metadata, const std::string& where) {
  if (!has_tokenizer(metadata)) return {};
  const Vocabulary vocabulary(metadata, where);
  return config_json(vocabulary, metadata, vocabulary.text_or("model", ""));
}

}  // namespace sluice::app
