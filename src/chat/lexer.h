#pragma once
// Cuts a Jinja template into text and the tokens of its tags, with Hugging Face's settings:
// trim_blocks and lstrip_blocks on, one newline at the end of the template dropped. Pure.
#include <string>
#include <string_view>
#include <vector>

namespace sluice::chat {

/// What a token is.
enum class TokenKind : uint8_t {
  kText,        ///< outside tags
  kOpenPrint,   ///< {{
  kClosePrint,  ///< }}
  kOpenBlock,   ///< {%
  kCloseBlock,  ///< %}
  kName,
  kString,  ///< unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

/// A piece of a template with its line, from 1.
struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;

  bool is(TokenKind of, std::string_view what) const { return kind == of && text == what; }
  bool is_operator(std::string_view what) const { return is(TokenKind::kOperator, what); }
  bool is_name(std::string_view what) const { return is(TokenKind::kName, what); }
};

/// The last token is kEnd. Errors: TemplateError with the line.
std::vector<Token> cut_template(std::string_view source);

}  // namespace sluice::chat
