#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "src/base/error.h"
#include "src/text/hf_tokenizer.h"
#include "src/text/utf8.h"

namespace sluice::text {

namespace {
constexpr std::string_view kMark = "\xe2\x96\x81";  // U+2581 stands for a space

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& bytes, std::string_view config_text,
                         const std::string& origin) {
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok())
      throw Error(ErrorKind::kFile,
                  fmt::format("{}: not a SentencePiece model: {}", origin, status.ToString()),
                  "download the file again");
    if (processor_.bos_id() >= 0) bos_ = processor_.bos_id();
    if (processor_.eos_id() >= 0) eos_ = processor_.eos_id();
    if (config_text.empty()) return;
    const Json config = parse_json(config_text, "tokenizer_config.json");
    const Field root{&config, "tokenizer_config.json"};
    adds_bos_ = root.boolean_or("add_bos_token", true);
    adds_eos_ = root.boolean_or("add_eos_token", false);
  }

  std::vector<int32_t> encode(std::string_view text, AddSpecial add) const override {
    const std::string mended = mend_utf8(text);
    std::vector<int32_t> ids;
    if (add == AddSpecial::kYes && adds_bos_ && bos_) ids.push_back(*bos_);
    // Control tokens written in the text are cut out: the library would take them for letters.
    std::string_view rest = mended;
    while (!rest.empty()) {
      size_t at = std::string_view::npos;
      int32_t special = -1;
      for (int32_t id : {bos_.value_or(-1), eos_.value_or(-1)}) {
        if (id < 0) continue;
        const size_t found = rest.find(processor_.IdToPiece(id));
        if (found < at) at = found, special = id;
      }
      append(rest.substr(0, at), ids);
      if (special < 0) break;
      ids.push_back(special);
      rest.remove_prefix(at + processor_.IdToPiece(special).size());
    }
    if (add == AddSpecial::kYes && adds_eos_ && eos_) ids.push_back(*eos_);
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, SkipSpecial skip) const override {
    std::string out;
    for (int32_t id : ids) {
      if (skip == SkipSpecial::kYes && is_special(id)) continue;
      out += token_bytes(id);
    }
    if (out.starts_with(' ')) out.erase(0, 1);
    return mend_utf8(out);
  }

  std::string token_bytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return {};
    if (processor_.IsByte(id))
      return std::string(
          1, static_cast<char>(std::stoi(processor_.IdToPiece(id).substr(3, 2), nullptr, 16)));
    if (processor_.IsUnknown(id)) return " \xe2\x81\x87 ";
    std::string_view piece = processor_.IdToPiece(id);
    std::string out;
    while (!piece.empty()) {
      if (piece.starts_with(kMark)) {
        out += ' ';
        piece.remove_prefix(kMark.size());
      } else {
        out += piece.front();
        piece.remove_prefix(1);
      }
    }
    return out;
  }

  int32_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<int32_t> find(std::string_view token) const override {
    const int id = processor_.PieceToId(std::string(token));
    if (processor_.IsUnknown(id) && processor_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && processor_.IsControl(id);
  }
  std::string description() const override {
    return fmt::format("SentencePiece, {} tokens", vocab_size());
  }

 private:
  void append(std::string_view text, std::vector<int32_t>& ids) const {
    if (text.empty()) return;
    std::vector<int> found;
    const auto status = processor_.Encode(std::string(text), &found);
    if (!status.ok())
      throw Error(ErrorKind::kFile, "SentencePiece: " + status.ToString(),
                  "please report the text");
    ids.insert(ids.end(), found.begin(), found.end());
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool adds_bos_ = true;
  bool adds_eos_ = false;
};
}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& bytes,
                                              std::string_view config_json,
                                              const std::string& origin) {
  return std::make_unique<SentencePieceTokenizer>(bytes, config_json, origin);
}

}  // namespace sluice::text
