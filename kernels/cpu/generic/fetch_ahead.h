#pragma once
// Brings the K and V of the next chunk into the cache while this one is worked on: line by line in
// the order they lie, evenly spread over the work. In bursts they wait for the few buffers that
// misses take, and memory then stands still while weights are formed.
#include "kernels/cpu/isa/chosen.h"
#include "kernels/cpu/variant.h"

namespace sluice::kernels {
namespace {

struct FetchAhead {
  struct Piece {
    const char* begin;
    const char* end;
  };
  static constexpr int64_t kLine = 64;
  static constexpr uint32_t kOneLine = 1u << 16;
  static constexpr int kMostPieces =
      4 * static_cast<int>(kAttentionChunk);  // pages of one token: K, V, codes and scales

  explicit FetchAhead(bool many) : into_first_level(many) {}

  const bool into_first_level;
  Piece pieces[kMostPieces];
  int count = 0;
  int next = 0;
  const char* at = nullptr;
  const char* end = nullptr;
  int64_t lines = 0;
  uint32_t rate = 0;  // lines for each unit of work, in 2^-16
  uint32_t owed = 0;
  uint32_t missed = 0;       // lines, where a piece ended
  int64_t spread_lines = 0;  // that rate_of_lines is for
  uint32_t rate_of_lines = 0;

  void clear() {
    count = next = 0;
    at = end = nullptr;
    lines = 0;
    rate = owed = missed = 0;
  }
  void add(const char* begin, int64_t bytes) {
    lines += (bytes + kLine - 1) / kLine;
    if (count > 0 && pieces[count - 1].end == begin)
      pieces[count - 1].end += bytes;
    else
      pieces[count++] = {begin, begin + bytes};
  }
  // All that was added, over so many units of work: vector multiply-adds, about.
  void spread(int64_t work) {
    if (lines != spread_lines)
      rate_of_lines =
          static_cast<uint32_t>((lines << 16) / work + 1);  // a division, mostly the same
    spread_lines = lines;
    rate = rate_of_lines;
  }

  // Steps that owe whole lines fetch the same number each time, a branch that the CPU foretells;
  // catch_up() brings the rest.
  [[gnu::always_inline]] void after(uint32_t work) {
    const uint32_t due = rate * work;
    owed += due % kOneLine;
    if (due >= kOneLine) return fetch(due / kOneLine);
    if (owed < kOneLine) return;
    owed -= kOneLine;
    fetch(1);
  }
  [[gnu::always_inline]] void catch_up() {
    if (owed < kOneLine) return;
    const uint32_t lines_owed = owed / kOneLine;
    owed %= kOneLine;
    fetch(lines_owed);
  }
  [[gnu::always_inline]] void fetch(uint32_t wanted) {
    if (at >= end) {
      if (next == count) return;
      at = pieces[next].begin;
      end = pieces[next++].end;
      wanted += missed;
      missed = 0;
    }
    const char* line = at;
    const char* to = line + wanted * kLine;
    if (to > end) {
      missed = static_cast<uint32_t>((to - end) / kLine);
      to = end;
    }
    at = to;
    if (into_first_level)
      for (; line < to; line += kLine) fetch_line_at(line, true);
    else
      for (; line < to; line += kLine) fetch_line_at(line, false);
  }
};

}  // namespace
}  // namespace sluice::kernels
