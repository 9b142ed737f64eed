// A SentencePiece model. Normalising and merging are the library's; what it does not do is done as
// Hugging Face does it for the same file: control pieces and added tokens are cut out of a text,
// and one that comes behind them goes on with it, without a space of its own in front.
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_map>

#include "src/base/error.h"
#include "src/text/hf_tokenizer.h"
#include "src/text/sentencepiece_model.h"
#include "src/text/tokenizer_config.h"
#include "src/text/unigram.h"
#include "src/text/utf8.h"

namespace sluice::text {

namespace {
using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kMark = "\xe2\x96\x81";  // U+2581 stands for a space
constexpr float kUnknownPenalty = 10;               // the library's, below the least score

// An id far above the number of pieces would make a table of that size.
constexpr int32_t kLargestPieceId = 1 << 24;

std::unique_ptr<SentencePieceProcessor> load_processor(const std::string& bytes,
                                                       const std::string& origin) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(bytes);
  if (!status.ok())
    throw Error(ErrorKind::kFile,
                fmt::format("{}: not a SentencePiece model: {}", origin, status.ToString()),
                "download the file again");
  return processor;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& bytes, std::string_view config_text,
                         const std::string& origin)
      : begins_(load_processor(bytes, origin)) {
    auto model = parse_sentencepiece_model(bytes);
    if (!model || static_cast<int>(model->pieces.size()) != begins_->GetPieceSize())
      throw Error(ErrorKind::kFile, origin + ": not a whole SentencePiece model",
                  "download the file again");
    model_ = std::move(*model);
    const TokenizerConfig config = read_tokenizer_config(config_text, origin);
    if (!config.adds_prefix_space.value_or(true)) model_.adds_dummy_prefix = false;
    if (model_.adds_dummy_prefix && !config.is_legacy)
      goes_on_ = load_processor(without_dummy_prefix(bytes), origin);
    else if (!model_.adds_dummy_prefix)
      begins_ = load_processor(without_dummy_prefix(bytes), origin);
    add_tokens(config);
    set_special(config);
    if (model_.is_unigram) make_unigram();
  }

  std::vector<int32_t> encode(std::string_view text, AddSpecial add) const override {
    const std::string mended = mend_utf8(text);
    std::vector<int32_t> ids;
    if (add == AddSpecial::kYes && adds_bos_ && bos_) ids.push_back(*bos_);
    bool is_start = true;
    for (const AddedTokens::Piece& piece : added_.split(mended, /*normalized=*/false)) {
      if (piece.token >= 0)
        ids.push_back(piece.token);
      else
        append(is_start || !goes_on_ ? *begins_ : *goes_on_, std::string(piece.text), ids);
      is_start = false;
    }
    if (add == AddSpecial::kYes && adds_eos_ && eos_) ids.push_back(*eos_);
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, SkipSpecial skip) const override {
    std::string out;
    bool is_beginning = model_.adds_dummy_prefix || model_.removes_extra_whitespaces;
    for (int32_t id : ids) {
      if (skip == SkipSpecial::kYes && is_special(id)) continue;
      std::string piece = token_bytes(id);
      if (is_beginning && is_text(id) && begins_->IdToPiece(id).starts_with(kMark)) {
        piece.erase(0, 1);
        is_beginning = model_.removes_extra_whitespaces;
      }
      if (!piece.empty()) is_beginning = false;
      out += piece;
    }
    return mend_utf8(out, Replacement::kEveryByte);
  }

  std::string token_bytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return {};
    if (const auto it = added_texts_.find(id); it != added_texts_.end()) return it->second;
    if (id >= begins_->GetPieceSize()) return {};
    const std::string& text = begins_->IdToPiece(id);
    switch (model_.pieces[static_cast<size_t>(id)].kind) {
      case PieceKind::kUnknown: return model_.unknown_surface;
      case PieceKind::kByte:
        return std::string(1, static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16)));
      default: return with_spaces(text);
    }
  }

  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> find(std::string_view token) const override {
    for (const AddedToken& added : added_.all())
      if (added.content == token) return added.id;
    const int id = begins_->PieceToId(std::string(token));
    if (begins_->IsUnknown(id) && begins_->IdToPiece(id) != token) return std::nullopt;
    return id;
  }
  bool is_special(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return false;
    if (special_.contains(id)) return true;
    return id < begins_->GetPieceSize() && begins_->IsControl(id);
  }
  std::string description() const override {
    return fmt::format("SentencePiece, {} tokens", vocab_size());
  }

 private:
  static std::string with_spaces(std::string_view piece) {
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

  // Whether a token is a stretch of text rather than a byte or a token of its own.
  bool is_text(int32_t id) const {
    if (id < 0 || id >= begins_->GetPieceSize() || added_texts_.contains(id)) return false;
    const PieceKind kind = model_.pieces[static_cast<size_t>(id)].kind;
    return kind == PieceKind::kNormal || kind == PieceKind::kUserDefined ||
           kind == PieceKind::kUnused;
  }

  void add_token(AddedToken token) {
    if (token.content.empty() || added_texts_.contains(token.id)) return;
    if (token.id > kLargestPieceId)
      throw Error(
          ErrorKind::kFile,
          fmt::format("tokenizer_config.json: token \"{}\" has id {}", token.content, token.id),
          "the tokenizer file is damaged");
    token.normalized = false;
    vocab_size_ = std::max(vocab_size_, token.id + 1);
    if (token.is_special) special_.insert(token.id);
    added_texts_.emplace(token.id, token.content);
    added_.add(std::move(token));
  }

  // What the configuration adds, then the model's own unknown and control pieces.
  void add_tokens(const TokenizerConfig& config) {
    vocab_size_ = begins_->GetPieceSize();
    for (const AddedToken& token : config.added) {
      const bool is_piece = token.id < begins_->GetPieceSize();
      const bool is_own = is_piece && begins_->IdToPiece(token.id) == token.content;
      // Text of the model stays the model's to cut, as it does where no configuration lists it.
      if (is_own && is_text(token.id) && !token.is_special) continue;
      if (is_own && begins_->IsUnknown(token.id)) continue;
      add_token(token);
    }
    for (int32_t id = 0; id < begins_->GetPieceSize(); ++id) {
      AddedToken token;
      token.id = id;
      token.content = begins_->IdToPiece(id);
      token.is_special = begins_->IsControl(id);
      if (token.is_special)
        add_token(std::move(token));
      else if (begins_->IsUnknown(id) && !token.content.empty())
        added_.add(std::move(token));  // read from a text, but decoded as the model says
    }
  }

  void set_special(const TokenizerConfig& config) {
    if (begins_->bos_id() >= 0) bos_ = begins_->bos_id();
    if (begins_->eos_id() >= 0) eos_ = begins_->eos_id();
    if (config.bos) bos_ = find(*config.bos).has_value() ? find(*config.bos) : bos_;
    if (config.eos) eos_ = find(*config.eos).has_value() ? find(*config.eos) : eos_;
    adds_bos_ = config.adds_bos.value_or(true);
    adds_eos_ = config.adds_eos.value_or(false);
  }

  void make_unigram() {
    std::vector<Unigram::Piece> pieces;
    float least = 0;
    bool is_first = true;
    for (int32_t id = 0; id < begins_->GetPieceSize(); ++id) {
      const auto& piece = model_.pieces[static_cast<size_t>(id)];
      const std::string& text = begins_->IdToPiece(id);
      // The longer of two user-defined ones is preferred, whatever their scores.
      if (piece.kind == PieceKind::kUserDefined)
        pieces.push_back(
            {text, id, static_cast<float>(0.1 * static_cast<double>(text.size() - 1))});
      if (piece.kind != PieceKind::kNormal) continue;
      pieces.push_back({text, id, piece.score});
      least = is_first ? piece.score : std::min(least, piece.score);
      is_first = false;
    }
    unigram_.emplace(std::move(pieces), least - kUnknownPenalty);
  }

  void append(const SentencePieceProcessor& processor, const std::string& text,
              std::vector<int32_t>& ids) const {
    const auto check = [](const auto& status) {
      if (!status.ok())
        throw Error(ErrorKind::kFile, "SentencePiece: " + status.ToString(),
                    "please report the text");
    };
    if (!unigram_) {
      std::vector<int> found;
      check(processor.Encode(text, &found));
      ids.insert(ids.end(), found.begin(), found.end());
      return;
    }
    // The pieces' texts, one after another, are the normalised text.
    std::vector<std::string> pieces;
    check(processor.Encode(text, &pieces));
    std::string normalized;
    for (const std::string& piece : pieces) {
      const int id = processor.PieceToId(piece);
      normalized += processor.IsByte(id) ? token_bytes(id) : piece;
    }
    append_unigram(normalized, ids);
  }

  void append_unigram(std::string_view normalized, std::vector<int32_t>& ids) const {
    const bool has_bytes = begins_->IsByte(begins_->PieceToId("<0x00>"));
    bool was_unknown = false;
    for (const Unigram::Cut& cut : unigram_->cut(normalized)) {
      const bool is_unknown = cut.id == Unigram::kUnknown;
      if (!is_unknown)
        ids.push_back(cut.id);
      else if (has_bytes)
        for (char c : cut.text)
          ids.push_back(begins_->PieceToId(fmt::format("<0x{:02X}>", static_cast<uint8_t>(c))));
      else if (!was_unknown)
        ids.push_back(begins_->unk_id());
      was_unknown = is_unknown;
    }
  }

  std::unique_ptr<SentencePieceProcessor> begins_;   // of text at the beginning
  std::unique_ptr<SentencePieceProcessor> goes_on_;  // of text behind a token; none: the same
  SentencePieceModel model_;
  std::optional<Unigram> unigram_;
  AddedTokens added_;
  std::unordered_map<int32_t, std::string> added_texts_;
  std::unordered_set<int32_t> special_;
  int32_t vocab_size_ = 0;
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
