// tokenizer.json and vocab.json + merges.txt to the parts of a tokenizer.
#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/text/byte_level.h"
#include "src/text/hf_tokenizer.h"
#include "src/text/tokenizer_config.h"
#include "src/text/utf8.h"

namespace sluice::text {

namespace {
std::pair<std::string, std::string> parse_merge(const Field& merge) {
  if (merge.is_array()) {
    if (merge.size() != 2) merge.refuse("a merge is two tokens");
    return {merge.at(size_t{0}).text(), merge.at(1).text()};
  }
  const std::string line = merge.text();
  const size_t space = line.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == line.size())
    merge.refuse("a merge is two tokens");
  return {line.substr(0, space), line.substr(space + 1)};
}

void read_vocabulary(const Field& vocab, Vocabulary& out) {
  if (!vocab.json->is_object()) vocab.refuse("not an object of token to id");
  out.reserve(vocab.json->size());
  for (const auto& [token, id] : vocab.json->items())
    out.emplace(token, Field{&id, vocab.path + "." + token}.integer());
}

void read_model(const Field& model, HfParts& parts) {
  // Old files leave the type of a BPE model out.
  const std::string type = model.text_or("type", model.has("merges") ? "BPE" : "");
  if (type != "BPE") model.refuse(fmt::format("model type \"{}\" is not supported (BPE is)", type));
  read_vocabulary(model.at("vocab"), parts.vocabulary);
  const Field merges = model.at("merges");
  if (!merges.is_array()) merges.refuse("not a list");
  for (size_t i = 0; i < merges.size(); ++i) parts.merges.push_back(parse_merge(merges.at(i)));
  parts.bpe.byte_fallback = model.boolean_or("byte_fallback", false);
  parts.bpe.ignore_merges = model.boolean_or("ignore_merges", false);
  parts.bpe.fuse_unk = model.boolean_or("fuse_unk", false);
  parts.bpe.continuing_subword_prefix = model.text_or("continuing_subword_prefix", "");
  parts.bpe.end_of_word_suffix = model.text_or("end_of_word_suffix", "");
  const std::string unknown = model.text_or("unk_token", "");
  if (!unknown.empty()) {
    const auto it = parts.vocabulary.find(unknown);
    if (it == parts.vocabulary.end())
      model.at("unk_token").refuse(fmt::format("\"{}\" is not in the vocabulary", unknown));
    parts.bpe.unknown = it->second;
  }
}

std::optional<int32_t> id_of(const HfParts& parts, const std::optional<std::string>& token) {
  if (!token) return std::nullopt;
  for (const AddedToken& added : parts.added)
    if (added.content == *token) return added.id;
  const auto it = parts.vocabulary.find(*token);
  if (it == parts.vocabulary.end()) return std::nullopt;
  return it->second;
}

void add_special(HfParts& parts, int32_t id, const std::string& content) {
  for (const AddedToken& token : parts.added)
    if (token.content == content) return;
  AddedToken token;
  token.id = id;
  token.content = content;
  token.is_special = true;
  parts.added.push_back(std::move(token));
}

// Bos, eos and added tokens as tokenizer_config.json has them.
void apply_config(const TokenizerConfig& config, HfParts& parts) {
  for (const AddedToken& token : config.added) {
    const bool is_known =
        std::any_of(parts.added.begin(), parts.added.end(),
                    [&](const AddedToken& other) { return other.content == token.content; });
    if (!is_known) parts.added.push_back(token);
  }
  for (const std::string& text : config.special())
    if (const auto id = id_of(parts, text)) add_special(parts, *id, text);
  parts.bos = id_of(parts, config.bos);
  parts.eos = id_of(parts, config.eos);
}

std::vector<std::pair<std::string, std::string>> parse_merges_text(std::string_view text,
                                                                   const std::string& origin) {
  std::vector<std::pair<std::string, std::string>> merges;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos)
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: merges line {} is not two tokens", origin, line_number),
                  "download merges.txt again");
    if (first_invalid_utf8(line))
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: merges line {} is not UTF-8", origin, line_number),
                  "download merges.txt again");
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}
}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_json(std::string_view text, std::string_view config_text,
                                               const std::string& origin) {
  const Json json = parse_json(text, origin);
  const Field root{&json, origin};
  HfParts parts;
  read_model(root.at("model"), parts);
  if (root.has("added_tokens")) {
    const Field added = root.at("added_tokens");
    for (size_t i = 0; i < added.size(); ++i)
      parts.added.push_back(read_added_token(added.at(i), added.at(i).at("id").integer()));
  }
  for (const char* steps : {"normalizer", "decoder"})
    if (root.has(steps)) refuse_growth(root.at(steps));
  if (root.has("normalizer")) parts.normalize = make_normalizer(root.at("normalizer"));
  if (root.has("pre_tokenizer")) parts.split = make_pre_tokenizer(root.at("pre_tokenizer"));
  if (root.has("decoder")) parts.decode = make_decoder(root.at("decoder"));
  if (root.has("post_processor")) parts.around = make_template(root.at("post_processor"));
  parts.kind = parts.bpe.byte_fallback ? "BPE with byte fallback" : "byte-level BPE";
  if (!config_text.empty()) apply_config(read_tokenizer_config(config_text, origin), parts);
  return std::make_unique<HfTokenizer>(std::move(parts));
}

std::unique_ptr<Tokenizer> load_vocab_merges(std::string_view vocab_text, std::string_view merges,
                                             std::string_view config_text,
                                             std::string_view family_hint,
                                             const std::string& origin) {
  const Json vocab = parse_json(vocab_text, origin);
  HfParts parts;
  read_vocabulary({&vocab, origin}, parts.vocabulary);
  parts.merges = parse_merges_text(merges, origin);
  parts.kind = "byte-level BPE";
  parts.decode = byte_level_decode();
  const TokenizerConfig config = read_tokenizer_config(config_text, origin);
  apply_config(config, parts);
  const bool is_qwen = config.tokenizer_class.starts_with("Qwen2");
  if (is_qwen) parts.normalize = nfc_normalizer();
  parts.split = byte_level_split(is_qwen ? kQwen2Pattern : kGpt2Pattern,
                                 config.adds_prefix_space.value_or(false));
  // OPT's and GPT-2's own names, where no configuration says otherwise.
  for (const char* token : {"<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>"})
    if (const auto id = id_of(parts, token)) add_special(parts, *id, token);
  if (!parts.bos) parts.bos = id_of(parts, family_hint == "opt" ? "</s>" : "<|endoftext|>");
  if (!parts.eos) parts.eos = id_of(parts, family_hint == "opt" ? "</s>" : "<|endoftext|>");
  if (config.adds_bos.value_or(family_hint == "opt") && parts.bos)
    parts.around.before = {*parts.bos};
  return std::make_unique<HfTokenizer>(std::move(parts));
}

}  // namespace sluice::text
