// Llama 3's and 4's tokenizer.model and Kimi's tiktoken.model: one line a token, its bytes in
// base64 and its rank. How text is cut and which special tokens follow stands in no such file: the
// number of ranks tells.
#include <fmt/format.h>

#include <charconv>

#include "src/base/error.h"
#include "src/text/byte_level.h"
#include "src/text/hf_tokenizer.h"
#include "src/text/tokenizer_config.h"

namespace sluice::text {

namespace {
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '=' && i + 2 >= text.size()) continue;
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xff);
    }
  }
  return out;
}

using Names = std::vector<std::string>;
constexpr size_t kKimiRanks = 163584;

void add_reserved(Names& names, const std::string& prefix, int first, int end) {
  for (int i = first; i < end; ++i)
    names.push_back(fmt::format("<|{}reserved_special_token_{}|>", prefix, i));
}

// 256 of them (Llama 3.1's names; 3.0 calls those that it did not use reserved).
Names llama3_specials() {
  Names names{"<|begin_of_text|>",
              "<|end_of_text|>",
              "<|reserved_special_token_0|>",
              "<|reserved_special_token_1|>",
              "<|finetune_right_pad_id|>",
              "<|step_id|>",
              "<|start_header_id|>",
              "<|end_header_id|>",
              "<|eom_id|>",
              "<|eot_id|>",
              "<|python_tag|>",
              "<|image|>"};
  add_reserved(names, "", 2, 246);
  return names;
}

// 1144 of them, reserved up to the 2048 that Meta's own reader makes room for.
Names llama4_specials() {
  Names names{"<|begin_of_text|>", "<|end_of_text|>",  "<|fim_prefix|>", "<|fim_middle|>",
              "<|fim_suffix|>",    "<|header_start|>", "<|header_end|>", "<|eom|>",
              "<|eot|>",           "<|step|>"};
  add_reserved(names, "text_post_train_", 0, 6);
  for (const char* name : {"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"})
    names.emplace_back(name);
  add_reserved(names, "text_post_train_", 8, 69);
  for (const char* name : {"<|image_start|>", "<|image_end|>"}) names.emplace_back(name);
  add_reserved(names, "vision_", 0, 2);
  for (const char* name : {"<|tile_x_separator|>", "<|tile_y_separator|>"})
    names.emplace_back(name);
  add_reserved(names, "vision_", 2, 6);
  names.emplace_back("<|image|>");
  add_reserved(names, "vision_", 6, 7);
  names.emplace_back("<|patch|>");
  add_reserved(names, "vision_", 7, 1048);
  add_reserved(names, "reasoning_", 0, 8);
  for (const char* name : {"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"})
    names.emplace_back(name);
  add_reserved(names, "", 0, 2048 - static_cast<int>(names.size()));
  return names;
}

// 256 of them, which the configuration names; the others are called by their ids.
Names kimi_specials() {
  Names names{"[BOS]", "[EOS]"};
  for (size_t i = names.size(); i < 256; ++i)
    names.push_back(fmt::format("<|reserved_token_{}|>", kKimiRanks + i));
  return names;
}

struct Kind {
  size_t ranks;
  const char* pattern;
  Names (*specials)();
  bool adds_bos;  ///< where the configuration does not say
};
const Kind* find_kind(size_t ranks) {
  static const Kind kKinds[] = {{128000, kLlama3Pattern, llama3_specials, true},
                                {200000, kO200kPattern, llama4_specials, true},
                                {kKimiRanks, kKimiPattern, kimi_specials, false}};
  for (const Kind& kind : kKinds)
    if (kind.ranks == ranks) return &kind;
  return nullptr;
}

// The special tokens in order behind the ranks, by the configuration's names where it has some.
void add_specials(const Kind& kind, const TokenizerConfig& config, HfParts& parts) {
  const Names names = kind.specials();
  const auto base = static_cast<int32_t>(parts.vocabulary.size());
  for (size_t i = 0; i < names.size(); ++i) {
    AddedToken token;
    token.id = base + static_cast<int32_t>(i);
    token.content = names[i];
    token.is_special = true;
    for (const AddedToken& named : config.added)
      if (named.id == token.id) token = named;
    parts.added.push_back(std::move(token));
  }
  const auto find = [&](const std::optional<std::string>& name, int32_t fallback) {
    for (const AddedToken& token : parts.added)
      if (name && token.content == *name) return token.id;
    return fallback;
  };
  parts.bos = find(config.bos, base);
  parts.eos = find(config.eos, base + 1);
  if (config.adds_bos.value_or(kind.adds_bos)) parts.around.before = {*parts.bos};
}

// A token's bytes and rank; nothing where the line is something else.
std::optional<std::pair<std::string, int32_t>> read_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  auto bytes = decode_base64(line.substr(0, space));
  int32_t rank = -1;
  const char* end = line.data() + line.size();
  const auto parsed = std::from_chars(line.data() + space + 1, end, rank);
  if (!bytes || bytes->empty() || parsed.ec != std::errc() || parsed.ptr != end || rank < 0)
    return std::nullopt;
  return std::pair(std::move(*bytes), rank);
}
// Every rank once: special tokens stand behind the last.
void check_ranks(const Vocabulary& vocabulary, const std::string& origin) {
  std::vector<bool> is_taken(vocabulary.size());
  for (const auto& [token, rank] : vocabulary) {
    if (static_cast<size_t>(rank) >= is_taken.size() || is_taken[static_cast<size_t>(rank)])
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: rank {} is there twice, or too large for {} ranks", origin, rank,
                              is_taken.size()),
                  "download the file again");
    is_taken[static_cast<size_t>(rank)] = true;
  }
}
}  // namespace

bool looks_like_tiktoken(std::string_view text) {
  const std::string_view line = text.substr(0, std::min<size_t>(text.find('\n'), 200));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size()) return false;
  for (char c : line.substr(space + 1))
    if ((c < '0' || c > '9') && c != '\r') return false;
  return decode_base64(line.substr(0, space)).has_value();
}

std::unique_ptr<Tokenizer> load_tiktoken(std::string_view text, std::string_view config_text,
                                         const std::string& origin) {
  HfParts parts;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const auto token = read_line(line);
    if (!token)
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: line {} is not \"base64 rank\"", origin, line_number),
                  "download the file again");
    if (!parts.vocabulary.emplace(bytes_to_characters(token->first), token->second).second)
      throw Error(ErrorKind::kFile, fmt::format("{}: line {} repeats a token", origin, line_number),
                  "download the file again");
  }
  const Kind* kind = find_kind(parts.vocabulary.size());
  if (!kind)
    throw Error(ErrorKind::kFile,
                fmt::format("{}: a tiktoken file of {} ranks; how text is cut stands in no such "
                            "file, and is known of Llama 3 (128000 ranks), Llama 4 (200000) and "
                            "Kimi ({})",
                            origin, parts.vocabulary.size(), kKimiRanks),
                "put the model's tokenizer.json beside it");
  check_ranks(parts.vocabulary, origin);
  parts.bpe.merge_by_rank_of_result = true;
  parts.bpe.ignore_merges = true;
  parts.split = byte_level_split(kind->pattern, false);
  parts.decode = byte_level_decode();
  parts.kind = "tiktoken BPE";
  add_specials(*kind, read_tokenizer_config(config_text, origin), parts);
  return std::make_unique<HfTokenizer>(std::move(parts));
}

}  // namespace sluice::text
