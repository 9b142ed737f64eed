#pragma once
// Tokens that are cut out of the text before anything else happens to it: special tokens and added
// words.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// A token that is found in the text before anything else.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool is_special = false;
  bool single_word = false;  ///< matches only where no word character touches it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it
  bool normalized = false;   ///< looked for after normalising
};

class AddedTokens {
 public:
  void add(AddedToken token);
  bool empty() const noexcept { return all_.empty(); }
  const std::vector<AddedToken>& all() const noexcept { return all_; }

  struct Piece {
    std::string_view text;
    int32_t token = -1;  ///< >= 0: this piece is that token
  };
  /// Cuts `text` at every added token whose `normalized` is as asked; leftmost, then longest.
  std::vector<Piece> split(std::string_view text, bool normalized) const;

 private:
  const AddedToken* match(std::string_view text, size_t at, bool normalized) const;
  std::vector<AddedToken> all_;
  std::array<std::vector<size_t>, 256> by_first_byte_;  // longest first
};

}  // namespace sluice::text
