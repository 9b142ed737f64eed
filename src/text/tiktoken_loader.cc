// Llama 3's tokenizer.model: one line a token, its bytes in base64 and its rank.
#include <fmt/format.h>

#include <charconv>

#include "src/base/error.h"
#include "src/text/byte_level.h"
#include "src/text/hf_tokenizer.h"
#include "src/text/regex.h"

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

void add_llama3_specials(HfParts& parts, int32_t base) {
  std::vector<std::string> names{"<|begin_of_text|>",
                                 "<|end_of_text|>",
                                 "<|reserved_special_token_0|>",
                                 "<|reserved_special_token_1|>",
                                 "<|reserved_special_token_2|>",
                                 "<|reserved_special_token_3|>",
                                 "<|start_header_id|>",
                                 "<|end_header_id|>",
                                 "<|reserved_special_token_4|>",
                                 "<|eot_id|>"};
  for (int i = 5; i < 251; ++i) names.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  for (size_t i = 0; i < names.size(); ++i) {
    AddedToken token;
    token.id = base + static_cast<int32_t>(i);
    token.content = names[i];
    token.is_special = true;
    parts.added.push_back(std::move(token));
  }
  parts.bos = base;
  parts.eos = base + 1;
  parts.around.before = {base};
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

std::unique_ptr<Tokenizer> load_tiktoken(std::string_view text, std::string_view,
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
    const size_t space = line.find(' ');
    const auto bytes =
        space == std::string_view::npos ? std::nullopt : decode_base64(line.substr(0, space));
    int32_t rank = -1;
    if (bytes) std::from_chars(line.data() + space + 1, line.data() + line.size(), rank);
    if (!bytes || bytes->empty() || rank < 0)
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: line {} is not \"base64 rank\"", origin, line_number),
                  "download the file again");
    if (!parts.vocabulary.emplace(bytes_to_characters(*bytes), rank).second)
      throw Error(ErrorKind::kFile, fmt::format("{}: line {} repeats a token", origin, line_number),
                  "download the file again");
  }
  parts.bpe.merge_by_rank_of_result = true;
  parts.bpe.ignore_merges = true;
  parts.split = byte_level_split(kLlama3Pattern, false);
  parts.decode = byte_level_decode();
  parts.kind = "tiktoken BPE";
  add_llama3_specials(parts, static_cast<int32_t>(parts.vocabulary.size()));
  return std::make_unique<HfTokenizer>(std::move(parts));
}

}  // namespace sluice::text
