#include "src/text/bpe.h"

#include <fmt/format.h>

#include <queue>

#include "src/base/error.h"
#include "src/text/utf8.h"

namespace sluice::text {

namespace {
uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}
}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary,
         const std::vector<std::pair<std::string, std::string>>& merges, BpeOptions options)
    : vocabulary_(vocabulary), options_(std::move(options)) {
  const auto id_of = [&](const std::string& token, size_t rank) {
    const auto it = vocabulary_.find(token);
    if (it == vocabulary_.end())
      throw Error(ErrorKind::kFile,
                  fmt::format("tokenizer: merge {} needs token \"{}\", which the vocabulary lacks",
                              rank, token),
                  "the vocabulary and the merges belong to different tokenizers");
    return it->second;
  };
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    std::string_view tail = right;
    if (!options_.continuing_subword_prefix.empty() &&
        tail.starts_with(options_.continuing_subword_prefix))
      tail.remove_prefix(options_.continuing_subword_prefix.size());
    merges_.emplace(pair_key(id_of(left, rank), id_of(right, rank)),
                    Merge{static_cast<int32_t>(rank), id_of(left + std::string(tail), rank)});
  }
  if (!options_.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    const auto it = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
    byte_tokens_.push_back(it == vocabulary_.end() ? -1 : it->second);
  }
}

void Bpe::add_unknown(std::string_view character, int32_t begin, std::vector<Part>& parts) const {
  const auto end = begin + static_cast<int32_t>(character.size());
  bool has_all_bytes = !byte_tokens_.empty();
  for (char c : character)
    has_all_bytes = has_all_bytes && byte_tokens_[static_cast<unsigned char>(c)] >= 0;
  if (has_all_bytes) {
    for (size_t i = 0; i < character.size(); ++i)
      parts.push_back({byte_tokens_[static_cast<unsigned char>(character[i])],
                       begin + static_cast<int32_t>(i), begin + static_cast<int32_t>(i) + 1, -1,
                       -1});
    return;
  }
  if (options_.unknown < 0) return;
  if (options_.fuse_unk && !parts.empty() && parts.back().token == options_.unknown &&
      parts.back().end == begin)
    parts.back().end = end;
  else
    parts.push_back({options_.unknown, begin, end, -1, -1});
}

void Bpe::split(std::string_view word, std::vector<Part>& parts) const {
  std::string token;
  for (size_t at = 0; at < word.size();) {
    const size_t length = character_bytes(word.substr(at));
    const std::string_view character = word.substr(at, length);
    token.assign(at > 0 ? options_.continuing_subword_prefix : std::string());
    token += character;
    if (at + length == word.size()) token += options_.end_of_word_suffix;
    const auto it = vocabulary_.find(token);
    const auto begin = static_cast<int32_t>(at);
    if (it != vocabulary_.end())
      parts.push_back({it->second, begin, begin + static_cast<int32_t>(length), -1, -1});
    else
      add_unknown(character, begin, parts);
    at += length;
  }
}

bool Bpe::find_merge(std::string_view word, const Part& left, const Part& right,
                     Merge& merge) const {
  if (options_.merge_by_rank_of_result) {
    const auto it = vocabulary_.find(
        word.substr(static_cast<size_t>(left.begin), static_cast<size_t>(right.end - left.begin)));
    if (it == vocabulary_.end()) return false;
    merge = {it->second, it->second};
    return true;
  }
  const auto it = merges_.find(pair_key(left.token, right.token));
  if (it == merges_.end()) return false;
  merge = it->second;
  return true;
}

// A heap of candidate merges; an entry is stale when either part has changed since.
void Bpe::merge(std::string_view word, std::vector<Part>& parts) const {
  struct Candidate {
    int32_t rank;
    int32_t left;  // ties: the leftmost first
    int32_t right;
    int32_t result;
    int32_t left_token, right_token;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::priority_queue<Candidate> heap;
  const auto offer = [&](int32_t left) {
    if (left < 0) return;
    const int32_t right = parts[static_cast<size_t>(left)].next;
    if (right < 0) return;
    Merge found{};
    const Part& a = parts[static_cast<size_t>(left)];
    const Part& b = parts[static_cast<size_t>(right)];
    if (find_merge(word, a, b, found))
      heap.push({found.rank, left, right, found.result, a.token, b.token});
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].previous = static_cast<int32_t>(i) - 1;
    parts[i].next = i + 1 < parts.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
  for (size_t i = 0; i + 1 < parts.size(); ++i) offer(static_cast<int32_t>(i));
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    Part& left = parts[static_cast<size_t>(best.left)];
    Part& right = parts[static_cast<size_t>(best.right)];
    if (left.token != best.left_token || left.next != best.right || right.token != best.right_token)
      continue;
    left.token = best.result;
    left.end = right.end;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) parts[static_cast<size_t>(left.next)].previous = best.left;
    offer(left.previous);
    offer(best.left);
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    const auto it = vocabulary_.find(word);
    if (it != vocabulary_.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  std::vector<Part> parts;
  split(word, parts);
  if (parts.empty()) return;
  merge(word, parts);
  for (int32_t i = 0; i >= 0; i = parts[static_cast<size_t>(i)].next)
    ids.push_back(parts[static_cast<size_t>(i)].token);
}

}  // namespace sluice::text
