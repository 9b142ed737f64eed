#include "src/text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "src/text/utf8.h"

namespace sluice::text {

namespace {
utf8proc_int32_t code_at(std::string_view text, size_t at) {
  utf8proc_int32_t code = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                   static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  return code;
}

size_t character_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

bool is_space(utf8proc_int32_t code) {
  return (code >= 9 && code <= 13) || code == 0x85 || code == 0x2028 || code == 0x2029 ||
         utf8proc_category(code) == UTF8PROC_CATEGORY_ZS;
}

bool is_word(utf8proc_int32_t code) {
  const auto category = utf8proc_category(code);
  return code == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO);
}
}  // namespace

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  auto& bucket = by_first_byte_[static_cast<unsigned char>(token.content[0])];
  all_.push_back(std::move(token));
  const size_t index = all_.size() - 1;
  const auto place = std::find_if(bucket.begin(), bucket.end(), [&](size_t other) {
    return all_[other].content.size() < all_[index].content.size();
  });
  bucket.insert(place, index);
}

const AddedToken* AddedTokens::match(std::string_view text, size_t at, bool normalized) const {
  for (size_t index : by_first_byte_[static_cast<unsigned char>(text[at])]) {
    const AddedToken& token = all_[index];
    if (token.normalized != normalized || !text.substr(at).starts_with(token.content)) continue;
    if (token.single_word) {
      const size_t end = at + token.content.size();
      if (at > 0 && is_word(code_at(text, character_before(text, at)))) continue;
      if (end < text.size() && is_word(code_at(text, end))) continue;
    }
    return &token;
  }
  return nullptr;
}

std::vector<AddedTokens::Piece> AddedTokens::split(std::string_view text, bool normalized) const {
  std::vector<Piece> pieces;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = match(text, at, normalized);
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    while (token->lstrip && begin > done && is_space(code_at(text, character_before(text, begin))))
      begin = character_before(text, begin);
    while (token->rstrip && end < text.size() && is_space(code_at(text, end)))
      end += character_bytes(text.substr(end));
    if (begin > done) pieces.push_back({text.substr(done, begin - done)});
    pieces.push_back({text.substr(begin, end - begin), token->id});
    done = at = end;
  }
  if (done < text.size()) pieces.push_back({text.substr(done)});
  return pieces;
}

}  // namespace sluice::text
