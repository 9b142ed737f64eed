#include "src/guide/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "src/base/error.h"
#include "src/guide/characters.h"
#include "src/text/utf8.h"

namespace sluice::guide {

namespace {
constexpr int kMostGroups = 200;  // in each other
constexpr int32_t kMostTimes = 10'000;
constexpr size_t kMostRules = 2000;

struct Rule {
  std::string_view name;
  int32_t id = 0;               // in the grammar
  size_t named_at = 0;          // where it comes first
  std::optional<size_t> begin;  // where it is defined
  ExprPtr what;
  std::map<size_t, size_t> references;  // to rules, by index: where the first is
};

// What holds of a rule when it holds of its parts, the least that does so.
class Facts {
 public:
  explicit Facts(const std::vector<Rule>& rules) : rules_(rules), holds_(rules.size()) {
    users_.resize(rules.size());
    for (size_t user = 0; user < rules.size(); ++user)
      for (const auto& [used, at] : rules[user].references) users_[used].push_back(user);
  }
  virtual ~Facts() = default;

  void find() {
    std::set<size_t> asked;  // rules to be looked at
    for (size_t rule = 0; rule < rules_.size(); ++rule) asked.insert(rule);
    while (!asked.empty()) {
      const size_t rule = *asked.begin();
      asked.erase(asked.begin());
      if (holds_[rule] || !of(*rules_[rule].what)) continue;
      holds_[rule] = true;
      asked.insert(users_[rule].begin(), users_[rule].end());
    }
  }
  bool of_rule(size_t rule) const { return holds_[rule]; }
  bool of(const Expr& expr) const {
    const auto holds = [this](const ExprPtr& child) { return of(*child); };
    switch (expr.kind) {
      case Expr::Kind::kRange: return of_range();
      case Expr::Kind::kSequence:
        return std::all_of(expr.children.begin(), expr.children.end(), holds);
      case Expr::Kind::kEither:
        return std::any_of(expr.children.begin(), expr.children.end(), holds);
      case Expr::Kind::kRepeat: return expr.least == 0 || of(*expr.children.front());
      case Expr::Kind::kRule: return holds_[index_of(expr.rule)];
    }
    return false;
  }
  size_t index_of(int32_t id) const { return static_cast<size_t>(id - rules_.front().id); }

 protected:
  virtual bool of_range() const = 0;

 private:
  const std::vector<Rule>& rules_;
  std::vector<bool> holds_;
  std::vector<std::vector<size_t>> users_;
};

// It may be nothing at all.
class MayBeEmpty final : public Facts {
 public:
  using Facts::Facts;

 protected:
  bool of_range() const override { return false; }
};

// It has a text with an end.
class HasAnEnd final : public Facts {
 public:
  using Facts::Facts;

 protected:
  bool of_range() const override { return true; }
};

class GbnfReader {
 public:
  GbnfReader(std::string_view text, Grammar& grammar) : text_(text), grammar_(grammar) {}

  ExprPtr read() {
    if (const auto invalid = text::first_invalid_utf8(text_))
      refuse("a byte that is not UTF-8", *invalid);
    for (skip(Lines::kMany); at_ < text_.size(); skip(Lines::kMany)) read_rule();
    const auto root = known_.find("root");
    if (root == known_.end()) refuse("no rule \"root\", which is what the text has to be", at_);
    for (const Rule& rule : rules_)
      if (!rule.begin)
        refuse(fmt::format("the name \"{}\", which no rule defines", shown(rule.name)),
               rule.named_at);
    check_ends();
    check_left_recursion();
    for (const Rule& rule : rules_) grammar_.define(rule.id, rule.what);
    return call(rules_[root->second].id);
  }

 private:
  enum class Lines : uint8_t { kOne, kMany };

  [[noreturn]] void refuse(const std::string& what, size_t at) const {
    const std::string_view before = text_.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::string_view of_line = before.substr(before.find_last_of('\n') + 1);
    const auto column =
        std::count_if(of_line.begin(), of_line.end(), [](char c) { return (c & 0xC0) != 0x80; }) +
        1;
    throw Error(ErrorKind::kUser,
                fmt::format("the grammar has {} at line {}, column {}", what, line, column),
                "write rules as llama.cpp's grammars have them (GBNF)");
  }
  [[noreturn]] void refuse(const std::string& what) const { refuse(what, at_); }
  static std::string shown(std::string_view name) { return std::string(name.substr(0, 100)); }

  bool is_at(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) {
    if (!is_at(c)) return false;
    ++at_;
    return true;
  }

  bool is_first_of_line() const {
    const size_t before = text_.find_last_not_of(" \t\r", at_ == 0 ? 0 : at_ - 1);
    return at_ == 0 || before == std::string_view::npos || text_[before] == '\n';
  }

  // Spaces and comments.
  void skip(Lines lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\r' || (c == '\n' && lines == Lines::kMany)) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool is_of_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::string_view take_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_of_name(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  size_t rule_of(std::string_view name, size_t at) {
    const auto [known, is_new] = known_.try_emplace(name, rules_.size());
    if (is_new) {
      if (rules_.size() >= kMostRules) refuse(fmt::format("more than {} rules", kMostRules), at);
      Rule rule;
      rule.name = name;
      rule.id = grammar_.add_rule();
      rule.named_at = at;
      rules_.push_back(std::move(rule));
    }
    return known->second;
  }

  void read_rule() {
    const size_t begin = at_;
    const std::string_view name = take_name();
    if (name.empty()) refuse("no name where a rule begins");
    skip(Lines::kOne);
    if (!text_.substr(at_).starts_with("::="))
      refuse("no \"::=\" behind the name that begins a line");
    at_ += 3;
    reading_ = rule_of(name, begin);
    if (rules_[reading_].begin) refuse(fmt::format("a second rule \"{}\"", shown(name)), begin);
    rules_[reading_].begin = begin;
    skip(Lines::kMany);
    ExprPtr what = read_ways(0);
    if (at_ < text_.size() && !is_at('\n') && !is_first_of_line())
      refuse("a character that goes on with no rule");
    rules_[reading_].what = std::move(what);
  }

  ExprPtr read_ways(int depth) {
    if (depth > kMostGroups) refuse("groups too deep in each other");
    std::vector<ExprPtr> ways{read_way(depth)};
    while (true) {
      const size_t end = at_;
      skip(Lines::kMany);  // the next line may begin with an alternative
      if (!take('|')) {
        at_ = end;
        return either(std::move(ways));
      }
      skip(Lines::kMany);
      ways.push_back(read_way(depth));
    }
  }

  ExprPtr read_way(int depth) {
    const Lines lines = depth > 0 ? Lines::kMany : Lines::kOne;
    std::vector<ExprPtr> parts;
    while (ExprPtr part = read_part(depth)) {
      skip(lines);
      if (int32_t least = 0, most = -1; take_times(least, most, lines)) {
        skip(lines);
        if (is_at('*') || is_at('+') || is_at('?') || is_at('{'))
          refuse("two repetitions in a row");
        part = repeat(std::move(part), least, most);
      }
      parts.push_back(std::move(part));
    }
    return sequence(std::move(parts));
  }

  // Null: none begins here.
  ExprPtr read_part(int depth) {
    if (at_ >= text_.size()) return nullptr;
    if (take('"')) return read_literal();
    if (take('[')) return read_class();
    if (take('.')) return utf8_of(CharacterSet::all());
    if (is_at('<') || is_at('!')) refuse("a token; only characters are known here");
    if (take('(')) {
      const size_t begin = at_ - 1;
      skip(Lines::kMany);
      ExprPtr what = read_ways(depth + 1);
      skip(Lines::kMany);
      if (!take(')')) refuse("a group without its \")\"", begin);
      return what;
    }
    const size_t begin = at_;
    const std::string_view name = take_name();
    if (name.empty()) return nullptr;
    const size_t end = at_;
    skip(Lines::kOne);
    const bool is_next_rule = text_.substr(at_).starts_with("::=");
    at_ = is_next_rule ? begin : end;
    if (is_next_rule) return nullptr;  // this one ends with a way that is empty
    const size_t rule = rule_of(name, begin);
    rules_[reading_].references.try_emplace(rule, begin);
    return call(rules_[rule].id);
  }

  bool take_times(int32_t& least, int32_t& most, Lines lines) {
    if (take('*')) return true;
    if (take('+')) {
      least = 1;
      return true;
    }
    if (take('?')) {
      most = 1;
      return true;
    }
    const size_t begin = at_;
    if (!take('{')) return false;
    skip(lines);
    least = most = take_number();
    skip(lines);
    if (take(',')) {
      skip(lines);
      most = is_at('}') ? -1 : take_number();
      skip(lines);
    }
    if (!take('}')) refuse("a repetition without its \"}\"", begin);
    if (least > kMostTimes || most > kMostTimes)
      refuse(fmt::format("more than {} repetitions", kMostTimes), begin);
    if (most >= 0 && most < least)
      refuse("a repetition whose bounds are the wrong way round", begin);
    return true;
  }

  int32_t take_number() {
    const size_t begin = at_;
    int32_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      value = std::min<int32_t>(value * 10 + (text_[at_] - '0'), kMostTimes + 1);
    if (at_ == begin) refuse("a repetition without its number");
    return value;
  }

  ExprPtr read_literal() {
    const size_t begin = at_ - 1;
    std::string bytes;
    while (!is_at('"')) {
      if (at_ >= text_.size() || is_at('\n')) refuse("a text without its closing quote", begin);
      text::append_utf8(bytes, take_character());
    }
    ++at_;
    return literal(bytes);
  }

  ExprPtr read_class() {
    const size_t begin = at_ - 1;
    const bool is_inverted = take('^');
    CharacterSet set;
    while (!is_at(']')) {
      if (at_ >= text_.size() || is_at('\n')) refuse("a class without its \"]\"", begin);
      const size_t from = at_;
      const uint32_t first = take_character();
      uint32_t last = first;
      if (is_at('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        if (is_at('\n')) refuse("a class without its \"]\"", begin);
        last = take_character();
        if (last < first) refuse("a range whose ends are the wrong way round", from);
      }
      set.add(first, last);
    }
    ++at_;
    if (is_inverted) set = set.inverted();
    if (set.is_empty()) refuse("a class without characters", begin);
    return utf8_of(set);
  }

  // One that stands there, or is escaped.
  uint32_t take_character() {
    if (!take('\\')) {
      std::string_view rest = text_.substr(at_);
      const uint32_t character = text::take_character(rest);
      at_ = text_.size() - rest.size();
      return character;
    }
    if (at_ >= text_.size()) refuse("a backslash at its end", at_ - 1);
    const char c = text_[at_++];
    switch (c) {
      case 'x': return take_hex(2);
      case 'u': return take_hex(4);
      case 'U': return take_hex(8);
      case 't': return '\t';
      case 'r': return '\r';
      case 'n': return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^': return static_cast<uint8_t>(c);
      default: refuse("a backslash before what is not escaped", at_ - 2);
    }
  }

  uint32_t take_hex(int digits) {
    const size_t begin = at_ - 2;
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : ' ';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) refuse("an escape with too few hexadecimal digits", begin);
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (value > kLastCharacter || (value >= 0xD800 && value <= 0xDFFF))
      refuse("an escape of what is no character", begin);
    return value;
  }

  // A rule whose every way needs itself describes no text.
  void check_ends() const {
    HasAnEnd ends(rules_);
    ends.find();
    for (size_t rule = 0; rule < rules_.size(); ++rule)
      if (!ends.of_rule(rule))
        refuse(
            fmt::format("the rule \"{}\", no text of which has an end", shown(rules_[rule].name)),
            *rules_[rule].begin);
  }

  // The rules that may be called before anything is read; whether all of it may be nothing.
  static bool find_first(const Expr& expr, const Facts& empty, std::set<size_t>& first) {
    switch (expr.kind) {
      case Expr::Kind::kRange: return false;
      case Expr::Kind::kSequence:
        return std::all_of(expr.children.begin(), expr.children.end(),
                           [&](const ExprPtr& child) { return find_first(*child, empty, first); });
      case Expr::Kind::kEither: {
        bool may_be_empty = false;
        for (const ExprPtr& child : expr.children)
          may_be_empty = find_first(*child, empty, first) || may_be_empty;
        return may_be_empty;
      }
      case Expr::Kind::kRepeat:
        return expr.most == 0 || find_first(*expr.children.front(), empty, first) ||
               expr.least == 0;
      case Expr::Kind::kRule:
        first.insert(empty.index_of(expr.rule));
        return empty.of_rule(empty.index_of(expr.rule));
    }
    return true;
  }

  void check_left_recursion() const {
    MayBeEmpty empty(rules_);
    empty.find();
    std::vector<std::vector<size_t>> calls(rules_.size());
    for (size_t rule = 0; rule < rules_.size(); ++rule) {
      std::set<size_t> first;
      find_first(*rules_[rule].what, empty, first);
      calls[rule].assign(first.begin(), first.end());
    }
    enum class Seen : uint8_t { kNo, kOpen, kDone };
    std::vector<Seen> seen(rules_.size(), Seen::kNo);
    std::vector<std::pair<size_t, size_t>> path;  // rule, which of its calls is next
    for (size_t from = 0; from < rules_.size(); ++from) {
      if (seen[from] != Seen::kNo) continue;
      seen[from] = Seen::kOpen;
      path.emplace_back(from, 0);
      while (!path.empty()) {
        const size_t rule = path.back().first;
        if (path.back().second == calls[rule].size()) {
          seen[rule] = Seen::kDone;
          path.pop_back();
          continue;
        }
        const size_t called = calls[rule][path.back().second++];
        if (seen[called] == Seen::kOpen)
          refuse(fmt::format("the rule \"{}\" called again before it has read anything",
                             shown(rules_[called].name)),
                 rules_[rule].references.at(called));
        if (seen[called] == Seen::kDone) continue;
        seen[called] = Seen::kOpen;
        path.emplace_back(called, 0);
      }
    }
  }

  std::string_view text_;
  Grammar& grammar_;
  size_t at_ = 0;
  std::vector<Rule> rules_;
  std::map<std::string_view, size_t> known_;
  size_t reading_ = 0;  // the rule
};
}  // namespace

ExprPtr parse_gbnf(std::string_view text, Grammar& grammar) {
  return GbnfReader(text, grammar).read();
}

}  // namespace sluice::guide
