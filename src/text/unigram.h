#pragma once
// The likeliest way to cut a text into pieces of a unigram model (Kudo, arXiv:1804.10959). Done
// here and not by the SentencePiece library because its versions break ties and weigh user-defined
// pieces differently; this is what 0.2.3 does, bit for bit: sums in float, the first of equals.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::text {

class Unigram {
 public:
  struct Piece {
    std::string text;
    int32_t id;
    float score;
  };
  /// `pieces`: normal and user-defined ones; `unknown_score`: of a character that is no piece.
  Unigram(std::vector<Piece> pieces, float unknown_score);

  static constexpr int32_t kUnknown = -1;
  struct Cut {
    int32_t id;  ///< or kUnknown
    std::string_view text;
  };
  /// Cuts valid UTF-8 that has been normalised. O(n * longest piece * log pieces).
  std::vector<Cut> cut(std::string_view text) const;

 private:
  template <typename Take>
  void each_prefix(std::string_view text, Take take) const;

  std::vector<Piece> pieces_;  // sorted by text
  float unknown_score_;
};

}  // namespace sluice::text
