#include "src/text/unigram.h"

#include <algorithm>

#include "src/text/utf8.h"

namespace sluice::text {

Unigram::Unigram(std::vector<Piece> pieces, float unknown_score)
    : pieces_(std::move(pieces)), unknown_score_(unknown_score) {
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.text < b.text; });
}

// Every piece that `text` begins with, shortest first: the pieces that share its first bytes are
// one run of the sorted list, which every further byte narrows.
template <typename Take>
void Unigram::each_prefix(std::string_view text, Take take) const {
  auto begin = pieces_.begin();
  auto end = pieces_.end();
  for (size_t length = 1; length <= text.size() && begin != end; ++length) {
    const auto wanted = static_cast<unsigned char>(text[length - 1]);
    const auto byte = [&](const Piece& piece) {
      return piece.text.size() < length ? -1
                                        : int{static_cast<unsigned char>(piece.text[length - 1])};
    };
    begin = std::partition_point(begin, end, [&](const Piece& p) { return byte(p) < wanted; });
    end = std::partition_point(begin, end, [&](const Piece& p) { return byte(p) == wanted; });
    if (begin != end && begin->text.size() == length) take(*begin);
  }
}

std::vector<Unigram::Cut> Unigram::cut(std::string_view text) const {
  struct Best {  // of the ways to cut the text up to here: its score, and its last piece
    float score = 0;
    int32_t id = kUnknown;
    size_t begin = std::string_view::npos;
  };
  std::vector<Best> best(text.size() + 1);
  const auto offer = [&](size_t begin, size_t end, int32_t id, float score) {
    const float total = score + best[begin].score;
    if (best[end].begin == std::string_view::npos || total > best[end].score)
      best[end] = {total, id, begin};
  };
  for (size_t at = 0; at < text.size();) {
    const size_t character = character_bytes(text.substr(at));
    bool is_piece = false;
    each_prefix(text.substr(at), [&](const Piece& piece) {
      offer(at, at + piece.text.size(), piece.id, piece.score);
      is_piece = is_piece || piece.text.size() == character;
    });
    if (!is_piece) offer(at, at + character, kUnknown, unknown_score_);
    at += character;
  }
  std::vector<Cut> cuts;
  for (size_t end = text.size(); end > 0; end = best[end].begin)
    cuts.push_back({best[end].id, text.substr(best[end].begin, end - best[end].begin)});
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace sluice::text
