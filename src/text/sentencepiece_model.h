#pragma once
// What a serialised SentencePiece model says and the library's interface does not tell: kinds of
// pieces and the rules for spaces. For .cc files of this folder only.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// sentencepiece_model.proto's numbers.
enum class PieceKind : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SentencePieceModel {
  struct Piece {
    PieceKind kind = PieceKind::kNormal;
    float score = 0;
  };
  std::vector<Piece> pieces;  ///< by id
  bool is_unigram = true;
  std::string unknown_surface = " \xe2\x81\x87 ";  ///< how the unknown token decodes
  bool adds_dummy_prefix = true;  ///< a space in front of a text; lost again in decoding
  bool removes_extra_whitespaces = true;
};

/// Nothing where `bytes` are no protocol buffer of that form.
std::optional<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

/// The same model, but for no space in front of a text.
std::string without_dummy_prefix(std::string bytes);

}  // namespace sluice::text
