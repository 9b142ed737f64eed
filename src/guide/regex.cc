#include "src/guide/regex.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/text/utf8.h"

namespace sluice::guide {

namespace {
constexpr int kMostRegexDepth = 200;
constexpr int32_t kMostRepeats = 10'000;

const CharacterSet kDigit{{'0', '9'}};
const CharacterSet kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterSet kSpace{{'\t', '\r'}, {' ', ' '}};

class Parser {
 public:
  Parser(std::string_view pattern, Anchoring anchoring, Spelling spelling)
      : text_(pattern), anchoring_(anchoring), spelling_(spelling) {}

  ExprPtr parse() {
    if (const auto invalid = text::first_invalid_utf8(text_)) {
      at_ = *invalid;
      refuse("a byte that is not UTF-8");
    }
    ExprPtr expr = parse_ways(0);
    if (at_ < text_.size()) refuse("a ')' that closes nothing");
    return expr;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kUser,
                fmt::format("the regular expression \"{}\" has {} at byte {}", text_.substr(0, 200),
                            what, at_),
                "guides take groups, classes, alternatives, repetitions and escapes");
  }
  bool is_at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) {
    if (!is_at(c)) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  ExprPtr parse_ways(int depth) {
    if (depth > kMostRegexDepth) refuse("groups too deep in each other");
    std::vector<ExprPtr> ways{parse_way(depth)};
    while (take('|')) ways.push_back(parse_way(depth));
    return either(std::move(ways));
  }

  ExprPtr parse_way(int depth) {
    std::vector<ExprPtr> parts;
    const auto anything = [&] { return repeat(character_of(CharacterSet::all(), spelling_), 0); };
    const bool is_outermost = depth == 0;
    const bool begins = is_outermost && take('^');
    if (is_outermost && !begins && anchoring_ == Anchoring::kSearch) parts.push_back(anything());
    bool ends = false;
    while (at_ < text_.size() && !is_at('|') && !is_at(')')) {
      if (is_at('$')) {
        const bool is_last = at_ + 1 == text_.size() || text_[at_ + 1] == '|';
        if (!is_outermost || !is_last) refuse("a '$' that is not at the end");
        ++at_;
        ends = true;
        break;
      }
      parts.push_back(parse_repeated(depth));
    }
    if (is_outermost && !ends && anchoring_ == Anchoring::kSearch) parts.push_back(anything());
    return sequence(std::move(parts));
  }

  ExprPtr parse_repeated(int depth) {
    ExprPtr what = parse_one(depth);
    for (bool is_repeated = false;; is_repeated = true) {
      int32_t least = 0, most = -1;
      if (take('*')) {
      } else if (take('+')) {
        least = 1;
      } else if (take('?')) {
        most = 1;
      } else if (!is_at('{') || !take_bounds(least, most)) {
        return what;
      }
      if (is_repeated) refuse("two repetitions in a row");
      what = repeat(std::move(what), least, most);
      if (take('+')) refuse("a possessive repetition");
      take('?');
    }
  }

  // "{2}", "{2,}", "{,3}", "{2,3}"; anything else is the character itself.
  bool take_bounds(int32_t& least, int32_t& most) {
    size_t at = at_ + 1;
    const auto number = [&]() -> int32_t {
      if (at >= text_.size() || text_[at] < '0' || text_[at] > '9') return -1;
      int32_t value = 0;
      for (; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at)
        value = std::min<int32_t>(value * 10 + (text_[at] - '0'), kMostRepeats + 1);
      return value;
    };
    const int32_t first = number();
    int32_t second = first;
    const bool has_comma = at < text_.size() && text_[at] == ',';
    if (has_comma) {
      ++at;
      second = number();
    }
    if (at >= text_.size() || text_[at] != '}' || (first < 0 && second < 0)) return false;
    if (first > kMostRepeats || second > kMostRepeats)
      refuse(fmt::format("more than {} repetitions", kMostRepeats));
    if (second >= 0 && second < first) refuse("a repetition whose bounds are the wrong way round");
    least = std::max(first, 0);
    most = second;
    at_ = at + 1;
    return true;
  }

  ExprPtr parse_one(int depth) {
    if (take('(')) return parse_group(depth);
    if (is_at('*') || is_at('+') || is_at('?')) refuse("a repetition of nothing");
    if (is_at('^')) refuse("a '^' that is not at the beginning");
    if (take('.')) return character_of(CharacterSet{{'\n', '\n'}}.inverted(), spelling_);
    if (take('[')) return parse_class();
    if (take('\\')) return character_of(parse_escape(false), spelling_);
    const uint32_t c = take_character();
    return character_of({{c, c}}, spelling_);
  }

  ExprPtr parse_group(int depth) {
    if (take("?:")) {
    } else if (take("?P<") || take("?<")) {
      if (is_at('=') || is_at('!')) refuse("look-behind, which is not regular");
      while (at_ < text_.size() && !is_at('>')) ++at_;
      if (!take('>')) refuse("a group's name without its end");
    } else if (is_at('?')) {
      refuse("look-ahead, flags or another extension of groups");
    }
    ExprPtr what = parse_ways(depth + 1);
    if (!take(')')) refuse("a group without its ')'");
    return what;
  }

  ExprPtr parse_class() {
    const bool is_inverted = take('^');
    CharacterSet set;
    bool is_first = true;
    for (; !is_at(']') || is_first; is_first = false) {
      if (at_ >= text_.size()) refuse("a class without its ']'");
      CharacterSet one = parse_member();
      const auto low = one.ranges();
      const bool is_range = is_at('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!is_range) {
        set.add(one);
        continue;
      }
      ++at_;
      const auto high = parse_member().ranges();
      const auto is_one = [](const auto& of) {
        return of.size() == 1 && of.front().first == of.front().second;
      };
      if (!is_one(low) || !is_one(high) || high.front().first < low.front().first)
        refuse("a range without two characters in order");
      set.add(low.front().first, high.front().first);
    }
    ++at_;
    if (is_inverted) set = set.inverted();
    if (set.is_empty()) refuse("a class without characters");
    return character_of(set, spelling_);
  }

  CharacterSet parse_member() {
    if (take('\\')) return parse_escape(true);
    const uint32_t c = take_character();
    CharacterSet one;
    one.add(c, c);
    return one;
  }

  // Behind the backslash.
  CharacterSet parse_escape(bool in_class) {
    if (at_ >= text_.size()) refuse("a backslash at its end");
    const char c = text_[at_];
    const auto one = [&](uint32_t character) {
      ++at_;
      return CharacterSet{{character, character}};
    };
    const auto of = [&](const CharacterSet& set) {
      ++at_;
      return set;
    };
    switch (c) {
      case 'd': return of(kDigit);
      case 'D': return of(kDigit.inverted());
      case 'w': return of(kWord);
      case 'W': return of(kWord.inverted());
      case 's': return of(kSpace);
      case 'S': return of(kSpace.inverted());
      case 'n': return one('\n');
      case 't': return one('\t');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0': return one(0);
      case 'x': return hex(2);
      case 'u': return hex(4);
      case 'b':
        if (in_class) return one('\b');
        break;
      default: break;
    }
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter || (c >= '1' && c <= '9'))
      refuse(fmt::format("\\{}, which guides don't know", c));
    const uint32_t itself = take_character();
    return {{itself, itself}};
  }

  CharacterSet hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      ++at_;
      const char c = at_ < text_.size() ? text_[at_] : ' ';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) refuse("an escape with too few hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    ++at_;
    CharacterSet set{{value, value}};
    if (set.is_empty()) refuse("an escaped surrogate, which is no character");
    return set;
  }

  uint32_t take_character() {
    std::string_view rest = text_.substr(at_);
    const uint32_t character = text::take_character(rest);
    at_ = text_.size() - rest.size();
    return character;
  }

  std::string_view text_;
  Anchoring anchoring_;
  Spelling spelling_;
  size_t at_ = 0;
};
}  // namespace

ExprPtr parse_regex(std::string_view pattern, Anchoring anchoring, Spelling spelling) {
  return Parser(pattern, anchoring, spelling).parse();
}

namespace {
constexpr int64_t kEndless = int64_t{1} << 40;

// Characters of the texts of a plain expression: bytes that continue none.
struct Lengths {
  int64_t least = 0, most = 0;
};
Lengths lengths_of(const Expr& plain) {
  Lengths out;
  switch (plain.kind) {
    case Expr::Kind::kRange: {
      const bool continues = plain.low >= 0x80 && plain.high < 0xC0;
      return {!continues, !continues};
    }
    case Expr::Kind::kSequence:
      for (const ExprPtr& child : plain.children) {
        const Lengths one = lengths_of(*child);
        out.least += one.least;
        out.most = std::min(out.most + one.most, kEndless);
      }
      return out;
    case Expr::Kind::kEither:
      out.least = kEndless;
      for (const ExprPtr& child : plain.children) {
        const Lengths one = lengths_of(*child);
        out = {std::min(out.least, one.least), std::max(out.most, one.most)};
      }
      return out;
    case Expr::Kind::kRepeat: {
      const Lengths one = lengths_of(*plain.children.front());
      out.least = one.least * plain.least;
      out.most = plain.most < 0 ? (one.most > 0 ? kEndless : 0)
                                : std::min(one.most * plain.most, kEndless);
      return out;
    }
    case Expr::Kind::kRule: return {0, kEndless};
  }
  return out;
}

ExprPtr within(const ExprPtr& spelled, const ExprPtr& plain, Lengths wanted);

// Of several parts whose lengths vary each gets as much of what there is as it takes.
ExprPtr sequence_within(const Expr& spelled, const Expr& plain, Lengths wanted) {
  std::vector<Lengths> parts;
  Lengths all;
  for (const ExprPtr& child : plain.children) {
    parts.push_back(lengths_of(*child));
    all.least += parts.back().least;
    all.most = std::min(all.most + parts.back().most, kEndless);
  }
  int64_t lacking = std::max<int64_t>(wanted.least - all.least, 0);
  int64_t spare = wanted.most - all.least;  // beyond the least of each
  if (lacking > spare) return nullptr;
  size_t varying = 0;
  for (const Lengths& one : parts) varying += one.most > one.least;
  std::vector<ExprPtr> out;
  for (size_t i = 0; i < parts.size(); ++i) {
    Lengths one = parts[i];
    if (one.most > one.least) {
      const int64_t room = one.most - one.least;
      // One part alone may be anything within; else what is lacking is the first ones' to give.
      const int64_t more = varying == 1 ? lacking : std::min(lacking, room);
      const int64_t share =
          varying == 1 ? spare : std::max(more, spare / static_cast<int64_t>(varying));
      lacking -= more;
      one = {one.least + more, std::min(one.most, one.least + std::min(share, spare))};
      spare -= one.most - parts[i].least;
      --varying;
    }
    ExprPtr part = within(spelled.children[i], plain.children[i], one);
    if (!part) return nullptr;
    out.push_back(std::move(part));
  }
  return sequence(std::move(out));
}

ExprPtr within(const ExprPtr& spelled, const ExprPtr& plain, Lengths wanted) {
  const Lengths has = lengths_of(*plain);
  if (has.least >= wanted.least && has.most <= wanted.most) return spelled;
  if (has.least > wanted.most || has.most < wanted.least) return nullptr;
  switch (plain->kind) {
    case Expr::Kind::kSequence: return sequence_within(*spelled, *plain, wanted);
    case Expr::Kind::kEither: {
      std::vector<ExprPtr> ways;
      for (size_t i = 0; i < plain->children.size(); ++i)
        if (ExprPtr way = within(spelled->children[i], plain->children[i], wanted))
          ways.push_back(std::move(way));
      return ways.empty() ? nullptr : either(std::move(ways));
    }
    case Expr::Kind::kRepeat: {
      const ExprPtr& child = plain->children.front();
      const Lengths one = lengths_of(*child);
      if (one.least == one.most) {
        const int64_t least = (wanted.least + one.most - 1) / one.most;
        const int64_t most = std::min<int64_t>(wanted.most / one.most, kMostRepeats);
        const int64_t from = std::max<int64_t>(least, plain->least);
        const int64_t to = plain->most < 0 ? most : std::min<int64_t>(most, plain->most);
        if (from > to) return nullptr;
        return repeat(spelled->children.front(), static_cast<int32_t>(from),
                      static_cast<int32_t>(to));
      }
      // As many as fit at their longest, or at their shortest where one is endless.
      if (one.most >= kEndless || wanted.least > std::max<int64_t>(one.least, 1) * plain->least)
        return nullptr;
      const int64_t most = wanted.most / one.most;
      if (most < plain->least) return nullptr;
      return repeat(
          spelled->children.front(), plain->least,
          static_cast<int32_t>(std::min<int64_t>(
              plain->most < 0 ? most : std::min<int64_t>(most, plain->most), kMostRepeats)));
    }
    case Expr::Kind::kRange:
    case Expr::Kind::kRule: break;
  }
  return nullptr;
}
}  // namespace

ExprPtr within_lengths(const ExprPtr& spelled, const ExprPtr& plain, int64_t least, int64_t most) {
  return within(spelled, plain, {least, most < 0 ? kEndless : most});
}

}  // namespace sluice::guide
