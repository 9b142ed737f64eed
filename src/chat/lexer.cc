#include "src/chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/chat/value.h"
#include "src/text/utf8.h"

namespace sluice::chat {

namespace {
constexpr std::string_view kSpace = " \t\n\r\f\v";

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_part(char c) {
  return is_name_start(c) || std::isdigit(static_cast<unsigned char>(c));
}
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }

// One line end everywhere, and none at the end.
std::string normalised(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> cut() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      take_text(tag);
      if (tag == std::string::npos) break;
      switch (source_[tag + 1]) {
        case '#': skip_comment(); break;
        case '{': take_tag(TokenKind::kOpenPrint, "}}"); break;
        default: take_block(); break;
      }
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw TemplateError(fmt::format("line {}: {}", line_, what));
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }
  char peek(size_t offset = 0) const {
    return at_ + offset < source_.size() ? source_[at_ + offset] : '\0';
  }

  size_t next_tag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i)
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    return std::string::npos;
  }

  // The text up to `tag`, less what the tag's beginning strips; leaves at_ behind the tag's
  // opening.
  void take_text(size_t tag) {
    const size_t end = std::min(tag, source_.size());
    std::string_view text(source_.data() + at_, end - at_);
    size_t opening = 2;
    if (tag != std::string::npos) {
      const char mark = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      if (mark == '-') {
        const size_t last = text.find_last_not_of(kSpace);
        text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
        opening = 3;
      } else if (mark == '+') {
        opening = 3;
      } else if (source_[tag + 1] != '{') {
        text = text.substr(0, without_indent(text));
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
    if (tag == std::string::npos) return advance(source_.size());
    advance(tag);
    advance(tag + opening);
  }

  // lstrip_blocks: blanks between the line's start and a block tag go.
  size_t without_indent(std::string_view text) const {
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !is_line_start_) return text.size();
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    return text.find_first_not_of(kSpace, begin) == std::string_view::npos ? begin : text.size();
  }

  // Behind a tag: '-' strips all blanks, otherwise a block's or comment's newline goes.
  void leave_tag(bool strips, bool trims_newline) {
    size_t to = at_;
    if (strips)
      while (to < source_.size() && kSpace.find(source_[to]) != std::string_view::npos) ++to;
    else if (trims_newline && to < source_.size() && source_[to] == '\n')
      ++to;
    is_line_start_ = to > at_ && source_[to - 1] == '\n';
    advance(to);
  }

  void skip_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment {# has no #}");
    const bool strips = end > at_ && source_[end - 1] == '-';
    const bool keeps = end > at_ && source_[end - 1] == '+';
    advance(end + 2);
    leave_tag(strips, !keeps);
  }

  void take_block() {
    const size_t begin = at_;
    while (kSpace.find(peek()) != std::string_view::npos && peek() != '\0') advance(at_ + 1);
    if (source_.compare(at_, 3, "raw") == 0 && !is_name_part(peek(3))) return take_raw();
    at_ = begin;
    take_tag(TokenKind::kOpenBlock, "%}");
  }

  // {% raw %} ... {% endraw %}: text as it is.
  void take_raw() {
    const size_t close = source_.find("%}", at_);
    if (close == std::string::npos) fail("a tag {% has no %}");
    const bool strips = source_[close - 1] == '-';
    advance(close + 2);
    leave_tag(strips, true);
    const size_t end_name = source_.find("endraw", at_);
    const size_t tag = end_name == std::string::npos ? end_name : source_.rfind("{%", end_name);
    if (tag == std::string::npos || tag < at_) fail("{% raw %} has no {% endraw %}");
    take_text(tag);
    const size_t end = source_.find("%}", end_name);
    if (end == std::string::npos) fail("a tag {% has no %}");
    const bool strips_after = source_[end - 1] == '-';
    advance(end + 2);
    leave_tag(strips_after, true);
  }

  void take_tag(TokenKind kind, std::string_view closing) {
    add(kind, "");
    int depth = 0;  // of brackets: }} may close dictionaries first
    for (;;) {
      while (at_ < source_.size() && kSpace.find(source_[at_]) != std::string_view::npos)
        advance(at_ + 1);
      if (at_ >= source_.size()) fail(fmt::format("a tag has no {}", closing));
      const bool has_sign = peek() == '-' || peek() == '+';
      if (depth == 0 && (source_.compare(at_, 2, closing) == 0 ||
                         (has_sign && source_.compare(at_ + 1, 2, closing) == 0))) {
        const bool strips = peek() == '-';
        const bool is_block = kind == TokenKind::kOpenBlock;
        const bool keeps = peek() == '+';
        add(is_block ? TokenKind::kCloseBlock : TokenKind::kClosePrint, "");
        advance(at_ + 2 + (has_sign ? 1 : 0));
        return leave_tag(strips, is_block && !keeps);
      }
      take_token(depth);
    }
  }

  void take_token(int& depth) {
    const char c = peek();
    if (is_name_start(c)) return take_while(TokenKind::kName, is_name_part);
    if (is_digit(c)) return take_number();
    if (c == '"' || c == '\'') return take_string(c);
    static constexpr std::array<std::string_view, 6> kLong = {"**", "//", "==", "!=", "<=", ">="};
    for (std::string_view op : kLong)
      if (source_.compare(at_, 2, op) == 0) {
        add(TokenKind::kOperator, std::string(op));
        return advance(at_ + 2);
      }
    if (std::string_view("+-*/%~|.,:()[]{}<>=").find(c) == std::string_view::npos)
      fail(fmt::format("unexpected character '{}'", c));
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (depth < 0) fail(fmt::format("'{}' closes nothing", c));
    add(TokenKind::kOperator, std::string(1, c));
    advance(at_ + 1);
  }

  void take_while(TokenKind kind, bool (*belongs)(char)) {
    size_t end = at_;
    while (end < source_.size() && belongs(source_[end])) ++end;
    add(kind, source_.substr(at_, end - at_));
    advance(end);
  }

  void take_number() {
    std::string text;
    bool is_float = false;
    const auto digits = [&] {
      for (; is_digit(peek()) || peek() == '_'; advance(at_ + 1))
        if (peek() != '_') text += peek();
    };
    digits();
    if (peek() == '.' && is_digit(peek(1))) {
      is_float = true;
      text += '.';
      advance(at_ + 1);
      digits();
    }
    if ((peek() == 'e' || peek() == 'E') &&
        (is_digit(peek(1)) || ((peek(1) == '-' || peek(1) == '+') && is_digit(peek(2))))) {
      is_float = true;
      text += 'e';
      text += peek(1);
      advance(at_ + 2);
      digits();
    }
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
  }

  void take_string(char quote) {
    const int line = line_;
    std::string out;
    size_t i = at_ + 1;
    for (;; ++i) {
      if (i >= source_.size()) fail("a string has no closing quote");
      if (source_[i] == quote) break;
      if (source_[i] == '\\' && i + 1 < source_.size())
        take_escape(++i, out);
      else
        out += source_[i];
    }
    advance(i + 1);
    tokens_.push_back({TokenKind::kString, std::move(out), line});
  }

  // `i`: the character after the backslash; moved to the escape's last.
  void take_escape(size_t& i, std::string& out) const {
    static constexpr std::string_view kFrom = "ntrabfv\\'\"0", kTo("\n\t\r\a\b\f\v\\'\"\0", 11);
    const char c = source_[i];
    if (c == '\n') return;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string hex = source_.substr(i + 1, digits);
      if (hex.size() != digits ||
          hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
        fail(fmt::format("\\{} takes {} hexadecimal digits", c, digits));
      const unsigned long point = std::stoul(hex, nullptr, 16);
      if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
        fail(fmt::format("\\{}{} is no character", c, hex));
      text::append_utf8(out, static_cast<uint32_t>(point));
      i += digits;
      return;
    }
    const size_t known = kFrom.find(c);
    if (known == std::string_view::npos) {
      out += '\\';
      out += c;
    } else {
      out += kTo[known];
    }
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool is_line_start_ = true;
  std::vector<Token> tokens_;
};
}  // namespace

std::vector<Token> cut_template(std::string_view source) { return Lexer(normalised(source)).cut(); }

}  // namespace sluice::chat
