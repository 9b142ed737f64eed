#include "src/sampling/stop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice::sampling {
namespace {

struct Result {
  std::string text;
  int which = -1;
  bool operator==(const Result&) const = default;
};

// What the matcher must find, said in the plainest way: the shortest beginning of the text that
// ends with a stop string.
Result search(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int longest = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& stop = stops[i];
      if (stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (longest < 0 || stop.size() > stops[static_cast<size_t>(longest)].size())
        longest = static_cast<int>(i);
    }
    if (longest >= 0)
      return {text.substr(0, end - stops[static_cast<size_t>(longest)].size()), longest};
  }
  return {text, -1};
}

// Feeds `text` in the given pieces; checks on the way that no piece is given out too early or held
// too long.
Result feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Result result;
  std::string read;
  for (const std::string& piece : pieces) {
    read += piece;
    const auto outcome = matcher.push(piece);
    result.text += outcome.emit;
    EXPECT_EQ(outcome.stopped, matcher.stopped());
    result.which = outcome.which;
    if (outcome.stopped) break;
    // Held back: exactly the longest ending of the text that begins a stop string.
    size_t longest = 0;
    for (const std::string& stop : stops) {
      for (size_t n = std::min(stop.size() - 1, read.size()); n > longest; --n) {
        if (read.compare(read.size() - n, n, stop, 0, n) == 0) longest = n;
      }
    }
    EXPECT_EQ(matcher.held(), std::string_view(read).substr(read.size() - longest));
    EXPECT_EQ(result.text.size() + longest, read.size());
  }
  result.text += matcher.flush();
  return result;
}

std::vector<std::string> bytes_of(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char c : text) pieces.emplace_back(1, c);
  return pieces;
}

TEST(StopMatcher, HoldsBackABeginningAndGivesItOutWhenItFails) {
  StopMatcher matcher({"STOP"});
  EXPECT_EQ(matcher.push("go ST").emit, "go ");
  EXPECT_EQ(matcher.push("ART ST").emit, "START ");
  EXPECT_EQ(matcher.push("O").emit, "");
  EXPECT_EQ(matcher.held(), "STO");
  const auto outcome = matcher.push("Pmore");
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.which, 0);
  EXPECT_EQ(outcome.emit, "");
  EXPECT_EQ(matcher.flush(), "");
  EXPECT_EQ(matcher.push("later").emit, "");
  EXPECT_TRUE(matcher.push("later").stopped);
}

TEST(StopMatcher, FlushGivesTheUndecidedRest) {
  StopMatcher matcher({"###"});
  EXPECT_EQ(matcher.push("a##").emit, "a");
  EXPECT_EQ(matcher.flush(), "##");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, WithoutStopStringsEverythingPasses) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("a").emit, "a");
  EXPECT_EQ(matcher.push("").emit, "");
  EXPECT_EQ(matcher.flush(), "");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, OverlappingStopStrings) {
  EXPECT_EQ(feed({"abab"}, bytes_of("ababab")), (Result{"", 0}));
  EXPECT_EQ(feed({"aab"}, bytes_of("aaab")), (Result{"a", 0}));
  EXPECT_EQ(feed({"abcd", "bc"}, bytes_of("abcd")), (Result{"a", 1}));  // the first to end
  EXPECT_EQ(feed({"b", "ab"}, bytes_of("xab")), (Result{"x", 1}));      // end together: the longest
  EXPECT_EQ(feed({"x", "x"}, {"ax"}), (Result{"a", 0}));                // equal: the first
  EXPECT_EQ(feed({"\n\n", "\nQ:"}, {"A\n", "Q", ":"}), (Result{"A", 1}));
}

TEST(StopMatcher, MultibyteCharactersAreNeverTorn) {
  const std::string e_acute = "\xC3\xA9", e_grave = "\xC3\xA8", emoji = "\xF0\x9F\x9B\x91";
  EXPECT_EQ(feed({e_acute}, {"caf", e_grave}), (Result{"caf" + e_grave, -1}));
  EXPECT_EQ(feed({e_acute}, {"caf", e_acute, "!"}), (Result{"caf", 0}));
  EXPECT_EQ(feed({emoji + "!"}, bytes_of("a" + emoji + "?" + emoji + "!b")),
            (Result{"a" + emoji + "?", 0}));
  StopMatcher matcher({e_acute});
  EXPECT_EQ(matcher.push(e_grave).emit, e_grave);  // the shared first byte is not given out alone
}

TEST(StopMatcher, EqualsNaiveSearchHoweverTheTextIsCut) {
  std::mt19937 random(2024);
  int found = 0;
  for (int round = 0; round < 4000; ++round) {
    const auto word = [&](size_t longest) {
      std::string text(1 + random() % longest, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 3);
      return text;
    };
    std::vector<std::string> stops(1 + random() % 4);
    for (std::string& stop : stops) stop = word(7);
    const std::string text = word(80);
    const Result expected = search(stops, text);
    found += expected.which >= 0;
    for (int cut = 0; cut < 3; ++cut) {
      std::vector<std::string> pieces;
      for (size_t at = 0; at < text.size();) {
        const size_t length = random() % 6;  // empty pieces too
        pieces.push_back(text.substr(at, length));
        at += length;
      }
      const Result result = feed(stops, pieces);
      ASSERT_EQ(result.text, expected.text) << round;
      ASSERT_EQ(result.which < 0, expected.which < 0) << round;
      if (result.which >= 0) {  // equal stop strings may stand twice in the list
        ASSERT_EQ(stops[static_cast<size_t>(result.which)],
                  stops[static_cast<size_t>(expected.which)]);
      }
    }
  }
  EXPECT_GT(found, 1000);
  EXPECT_LT(found, 3999);
}

}  // namespace
}  // namespace sluice::sampling
