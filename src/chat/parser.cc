#include "src/chat/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "src/chat/lexer.h"

namespace sluice::chat {

namespace {
constexpr int kMostDepth = 200;  // of expressions and blocks inside one another
constexpr int kMostLinks = 200;  // of a chain: a + b + c, a.b.c, a|b|c

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Statements parse() {
    Statements all = parse_body({});
    if (now().kind != TokenKind::kEnd) fail("this ends nothing");
    return all;
  }

 private:
  struct Depth {
    explicit Depth(Parser& parser) : of(parser) {
      if (++of.depth_ > kMostDepth) of.fail("too many levels inside one another");
    }
    ~Depth() { --of.depth_; }
    Parser& of;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw TemplateError(fmt::format("line {}: {} (at {})", now().line, what, describe(now())));
  }
  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kText: return "text";
      case TokenKind::kOpenPrint: return "{{";
      case TokenKind::kClosePrint: return "}}";
      case TokenKind::kOpenBlock: return "{%";
      case TokenKind::kCloseBlock: return "%}";
      default: return "'" + token.text.substr(0, 40) + "'";
    }
  }

  void count_link(int& links) const {
    if (++links > kMostLinks) fail("too long a chain of operators");
  }

  const Token& now() const { return tokens_[at_]; }
  const Token& after(size_t count = 1) const {
    return tokens_[std::min(at_ + count, tokens_.size() - 1)];
  }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool take_operator(std::string_view text) {
    if (!now().is_operator(text)) return false;
    take();
    return true;
  }
  bool take_name(std::string_view text) {
    if (!now().is_name(text)) return false;
    take();
    return true;
  }
  void expect_operator(std::string_view text) {
    if (!take_operator(text)) fail(fmt::format("expected '{}'", text));
  }
  std::string expect_name() {
    if (now().kind != TokenKind::kName) fail("expected a name");
    return take().text;
  }
  void expect_close() {
    if (now().kind != TokenKind::kCloseBlock) fail("expected %}");
    take();
  }

  // Statements up to a block tag that begins with one of `ends`, which stays.
  Statements parse_body(std::initializer_list<std::string_view> ends) {
    const Depth depth(*this);
    Statements body;
    for (;;) {
      switch (now().kind) {
        case TokenKind::kEnd:
          if (ends.size() > 0) fail(fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
          return body;
        case TokenKind::kText: {
          auto statement = make(StatementKind::kText);
          statement->text = take().text;
          body.push_back(std::move(statement));
          break;
        }
        case TokenKind::kOpenPrint: {
          auto statement = make(StatementKind::kPrint);
          take();
          statement->expression = parse_tuple();
          if (now().kind != TokenKind::kClosePrint) fail("expected }}");
          take();
          body.push_back(std::move(statement));
          break;
        }
        default: {
          if (now().kind != TokenKind::kOpenBlock) fail("unexpected");
          const bool is_end = std::any_of(
              ends.begin(), ends.end(), [&](std::string_view end) { return after().is_name(end); });
          if (is_end) return body;
          take();
          body.push_back(parse_statement());
        }
      }
    }
  }

  StatementPtr make(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = now().line;
    return statement;
  }
  ExpressionPtr make(ExpressionKind kind, std::string text = {}) const {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = now().line;
    expression->text = std::move(text);
    return expression;
  }
  template <typename... Children>
  ExpressionPtr make_of(ExpressionKind kind, std::string text, Children&&... children) const {
    ExpressionPtr out = make(kind, std::move(text));
    (out->children.push_back(std::forward<Children>(children)), ...);
    return out;
  }

  // {% endX %}, whose opening {% is next.
  void take_end(std::string_view name) {
    take();
    if (!take_name(name)) fail(fmt::format("expected {}", name));
    expect_close();
  }

  StatementPtr parse_statement() {
    if (now().kind != TokenKind::kName) fail("a tag begins with a name");
    const std::string name = now().text;
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call_block();
    if (name == "filter") return parse_filter_block();
    if (name == "with" || name == "generation") return parse_scope(name);
    if (name == "break" || name == "continue") {
      auto statement = make(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
      if (loops_ == 0) fail(name + " outside a loop");
      take();
      expect_close();
      return statement;
    }
    fail("this statement is not supported");
  }

  StatementPtr parse_if() {
    auto statement = make(StatementKind::kIf);
    take();
    for (;;) {
      ExpressionPtr condition = parse_tuple();
      expect_close();
      Statements body = parse_body({"elif", "else", "endif"});
      statement->branches.emplace_back(std::move(condition), std::move(body));
      if (!after().is_name("elif")) break;
      take();
      take();
    }
    if (after().is_name("else")) {
      take_end("else");
      statement->otherwise = parse_body({"endif"});
    }
    take_end("endif");
    return statement;
  }

  StatementPtr parse_for() {
    auto statement = make(StatementKind::kFor);
    take();
    statement->target = parse_target();
    if (!take_name("in")) fail("expected 'in'");
    statement->expression = parse_tuple(/*has_conditional=*/false);
    if (take_name("if")) statement->condition = parse_expression();
    if (now().is_name("recursive")) fail("recursive loops are not supported");
    expect_close();
    ++loops_;
    statement->body = parse_body({"else", "endfor"});
    --loops_;
    if (after().is_name("else")) {
      take_end("else");
      statement->otherwise = parse_body({"endfor"});
    }
    take_end("endfor");
    return statement;
  }

  // a, or a.b, or a, b
  ExpressionPtr parse_target() {
    const bool is_bracketed = take_operator("(");
    ExpressionPtr first = parse_one_target();
    if (!now().is_operator(",")) {
      if (is_bracketed) expect_operator(")");
      return first;
    }
    ExpressionPtr tuple = make(ExpressionKind::kTuple);
    tuple->children.push_back(std::move(first));
    while (take_operator(",")) {
      if (now().kind != TokenKind::kName) break;
      tuple->children.push_back(parse_one_target());
    }
    if (is_bracketed) expect_operator(")");
    return tuple;
  }
  ExpressionPtr parse_one_target() {
    ExpressionPtr name = make(ExpressionKind::kName, expect_name());
    if (!take_operator(".")) return name;
    return make_of(ExpressionKind::kAttribute, expect_name(), std::move(name));
  }

  StatementPtr parse_set() {
    auto statement = make(StatementKind::kSet);
    take();
    statement->target = parse_target();
    if (take_operator("=")) {
      statement->expression = parse_tuple();
      expect_close();
      return statement;
    }
    statement->kind = StatementKind::kSetBlock;
    statement->expression = parse_filter_chain();
    expect_close();
    statement->body = parse_body({"endset"});
    take_end("endset");
    return statement;
  }

  // |a|b(c) on nothing yet: the innermost child is null.
  ExpressionPtr parse_filter_chain() {
    ExpressionPtr chain;
    for (int links = 0; take_operator("|"); count_link(links))
      chain = parse_filter(std::move(chain));
    return chain;
  }

  void parse_parameters(Statement& statement) {
    if (!take_operator("(")) return;
    while (!take_operator(")")) {
      std::string name = expect_name();
      ExpressionPtr fallback;
      if (take_operator("=")) fallback = parse_expression();
      statement.parameters.emplace_back(std::move(name), std::move(fallback));
      if (!now().is_operator(")")) expect_operator(",");
    }
  }

  StatementPtr parse_macro() {
    auto statement = make(StatementKind::kMacro);
    take();
    statement->text = expect_name();
    parse_parameters(*statement);
    expect_close();
    statement->body = parse_outside_loops("endmacro");
    return statement;
  }

  StatementPtr parse_call_block() {
    auto statement = make(StatementKind::kCallBlock);
    take();
    parse_parameters(*statement);
    statement->expression = parse_expression();
    if (statement->expression->kind != ExpressionKind::kCall) fail("{% call %} takes a call");
    expect_close();
    statement->body = parse_outside_loops("endcall");
    return statement;
  }

  // A macro's body does not belong to the loop around its definition.
  Statements parse_outside_loops(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Statements body = parse_body({end});
    loops_ = loops;
    take_end(end);
    return body;
  }

  StatementPtr parse_filter_block() {
    auto statement = make(StatementKind::kFilter);
    take();
    statement->expression = parse_filter(nullptr);
    for (int links = 0; take_operator("|"); count_link(links))
      statement->expression = parse_filter(std::move(statement->expression));
    expect_close();
    statement->body = parse_body({"endfilter"});
    take_end("endfilter");
    return statement;
  }

  StatementPtr parse_scope(const std::string& name) {
    auto statement = make(StatementKind::kScope);
    take();
    while (now().kind == TokenKind::kName) {
      std::string variable = expect_name();
      expect_operator("=");
      statement->parameters.emplace_back(std::move(variable), parse_expression());
      if (!take_operator(",")) break;
    }
    expect_close();
    const std::string end = "end" + name;
    statement->body = parse_body({end});
    take_end(end);
    return statement;
  }

  // Expressions, loosest first.
  ExpressionPtr parse_tuple(bool has_conditional = true) {
    const auto one = [&] { return has_conditional ? parse_expression() : parse_or(); };
    ExpressionPtr first = one();
    if (!now().is_operator(",")) return first;
    ExpressionPtr tuple = make_of(ExpressionKind::kTuple, "", std::move(first));
    while (take_operator(",")) {
      const TokenKind kind = now().kind;
      if (kind == TokenKind::kCloseBlock || kind == TokenKind::kClosePrint ||
          now().is_operator(")"))
        break;
      tuple->children.push_back(one());
    }
    return tuple;
  }

  ExpressionPtr parse_expression() {
    const Depth depth(*this);
    ExpressionPtr left = parse_or();
    for (int links = 0; take_name("if"); count_link(links)) {
      ExpressionPtr condition = parse_or();
      ExpressionPtr otherwise;
      if (take_name("else")) otherwise = parse_expression();
      left = make_of(ExpressionKind::kConditional, "", std::move(left), std::move(condition),
                     std::move(otherwise));
    }
    return left;
  }

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    for (int links = 0; take_name("or"); count_link(links))
      left = make_of(ExpressionKind::kBinary, "or", std::move(left), parse_and());
    return left;
  }
  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    for (int links = 0; take_name("and"); count_link(links))
      left = make_of(ExpressionKind::kBinary, "and", std::move(left), parse_not());
    return left;
  }
  ExpressionPtr parse_not() {
    const Depth depth(*this);
    if (now().is_name("not") && take_name("not"))
      return make_of(ExpressionKind::kUnary, "not", parse_not());
    return parse_compare();
  }

  std::string take_comparison() {
    for (std::string_view op : {"==", "!=", "<=", ">=", "<", ">"})
      if (take_operator(op)) return std::string(op);
    if (take_name("in")) return "in";
    if (now().is_name("not") && after().is_name("in")) {
      take();
      take();
      return "not in";
    }
    return {};
  }
  ExpressionPtr parse_compare() {
    ExpressionPtr left = parse_sum();
    std::string op = take_comparison();
    if (op.empty()) return left;
    ExpressionPtr out = make_of(ExpressionKind::kCompare, "", std::move(left));
    for (; !op.empty(); op = take_comparison()) {
      out->operators.push_back(op);
      out->children.push_back(parse_sum());
    }
    return out;
  }

  template <typename Next>
  ExpressionPtr parse_left(std::initializer_list<std::string_view> operators, const Next& next) {
    ExpressionPtr left = next();
    for (int links = 0;; count_link(links)) {
      const auto op = std::find_if(operators.begin(), operators.end(),
                                   [&](std::string_view text) { return now().is_operator(text); });
      if (op == operators.end()) return left;
      take();
      left = make_of(ExpressionKind::kBinary, std::string(*op), std::move(left), next());
    }
  }
  ExpressionPtr parse_sum() {
    return parse_left({"+", "-"}, [&] { return parse_concatenation(); });
  }
  ExpressionPtr parse_concatenation() {
    return parse_left({"~"}, [&] { return parse_product(); });
  }
  ExpressionPtr parse_product() {
    return parse_left({"*", "//", "/", "%"}, [&] { return parse_power(); });
  }
  ExpressionPtr parse_power() {
    return parse_left({"**"}, [&] { return parse_unary(true); });
  }

  ExpressionPtr parse_unary(bool has_filters) {
    const Depth depth(*this);
    ExpressionPtr out;
    if (take_operator("-"))
      out = make_of(ExpressionKind::kUnary, "-", parse_unary(false));
    else if (take_operator("+"))
      out = make_of(ExpressionKind::kUnary, "+", parse_unary(false));
    else
      out = parse_primary();
    out = parse_postfix(std::move(out));
    return has_filters ? parse_filters(std::move(out)) : std::move(out);
  }

  ExpressionPtr parse_filters(ExpressionPtr out) {
    for (int links = 0;; count_link(links)) {
      if (take_operator("|"))
        out = parse_filter(std::move(out));
      else if (take_name("is"))
        out = parse_test(std::move(out));
      else if (now().is_operator("("))
        out = parse_call(std::move(out));
      else
        return out;
    }
  }

  ExpressionPtr parse_postfix(ExpressionPtr out) {
    for (int links = 0;; count_link(links)) {
      if (take_operator(".")) {
        if (now().kind == TokenKind::kInteger)
          out = make_of(ExpressionKind::kIndex, "", std::move(out), parse_primary());
        else
          out = make_of(ExpressionKind::kAttribute, expect_name(), std::move(out));
      } else if (take_operator("[")) {
        out = parse_subscript(std::move(out));
      } else if (now().is_operator("(")) {
        out = parse_call(std::move(out));
      } else {
        return out;
      }
    }
  }

  ExpressionPtr parse_subscript(ExpressionPtr of) {
    ExpressionPtr parts[3];
    int colons = 0;
    if (!now().is_operator(":")) parts[0] = parse_expression();
    while (colons < 2 && take_operator(":")) {
      ++colons;
      if (!now().is_operator(":") && !now().is_operator("]")) parts[colons] = parse_expression();
    }
    expect_operator("]");
    if (colons == 0) return make_of(ExpressionKind::kIndex, "", std::move(of), std::move(parts[0]));
    return make_of(ExpressionKind::kSlice, "", std::move(of), std::move(parts[0]),
                   std::move(parts[1]), std::move(parts[2]));
  }

  CallArguments parse_arguments() {
    CallArguments out;
    expect_operator("(");
    while (!take_operator(")")) {
      if (now().kind == TokenKind::kName && after().is_operator("=")) {
        std::string name = take().text;
        take();
        out.named.emplace_back(std::move(name), parse_expression());
      } else {
        out.positional.push_back(parse_expression());
      }
      if (!now().is_operator(")")) expect_operator(",");
    }
    return out;
  }
  ExpressionPtr parse_call(ExpressionPtr callee) {
    ExpressionPtr out = make_of(ExpressionKind::kCall, "", std::move(callee));
    out->arguments = parse_arguments();
    return out;
  }
  ExpressionPtr parse_filter(ExpressionPtr of) {
    ExpressionPtr out = make_of(ExpressionKind::kFilter, "", std::move(of));
    out->text = expect_name();
    if (now().is_operator("(")) out->arguments = parse_arguments();
    return out;
  }
  ExpressionPtr parse_test(ExpressionPtr of) {
    ExpressionPtr out = make_of(ExpressionKind::kTest, "", std::move(of));
    out->is_negated = take_name("not");
    out->text = expect_name();
    if (now().is_operator("(")) {
      out->arguments = parse_arguments();
      return out;
    }
    // One argument may follow without brackets: `is divisibleby 3`.
    static constexpr std::string_view kWords[] = {"else", "or",  "and", "is",
                                                  "in",   "not", "if",  "recursive"};
    const TokenKind kind = now().kind;
    const bool is_word = kind == TokenKind::kName && std::find(std::begin(kWords), std::end(kWords),
                                                               now().text) == std::end(kWords);
    if (is_word || kind == TokenKind::kString || kind == TokenKind::kInteger ||
        kind == TokenKind::kFloat || now().is_operator("[") || now().is_operator("{"))
      out->arguments.positional.push_back(parse_postfix(parse_primary()));
    return out;
  }

  ExpressionPtr parse_primary() {
    const Depth depth(*this);
    const Token token = now();
    switch (token.kind) {
      case TokenKind::kName: return parse_word();
      case TokenKind::kString: {
        ExpressionPtr out = make(ExpressionKind::kLiteral);
        std::string text;
        while (now().kind == TokenKind::kString) text += take().text;
        out->value = std::move(text);
        return out;
      }
      case TokenKind::kInteger:
      case TokenKind::kFloat: return parse_number();
      default: break;
    }
    if (take_operator("(")) return parse_brackets();
    if (take_operator("[")) {
      ExpressionPtr out = make(ExpressionKind::kList);
      while (!take_operator("]")) {
        out->children.push_back(parse_expression());
        if (!now().is_operator("]")) expect_operator(",");
      }
      return out;
    }
    if (take_operator("{")) {
      ExpressionPtr out = make(ExpressionKind::kDict);
      while (!take_operator("}")) {
        out->children.push_back(parse_expression());
        expect_operator(":");
        out->children.push_back(parse_expression());
        if (!now().is_operator("}")) expect_operator(",");
      }
      return out;
    }
    fail("expected an expression");
  }

  ExpressionPtr parse_word() {
    ExpressionPtr out = make(ExpressionKind::kLiteral);
    const std::string word = take().text;
    if (word == "true" || word == "True") {
      out->value = true;
    } else if (word == "false" || word == "False") {
      out->value = false;
    } else if (word == "none" || word == "None") {
      out->value = None{};
    } else {
      out->kind = ExpressionKind::kName;
      out->text = word;
    }
    return out;
  }

  ExpressionPtr parse_number() {
    ExpressionPtr out = make(ExpressionKind::kLiteral);
    const Token token = take();
    const char* end = token.text.data() + token.text.size();
    if (token.kind == TokenKind::kInteger) {
      int64_t value = 0;
      if (std::from_chars(token.text.data(), end, value).ec != std::errc())
        fail("the integer has more than 64 bits");
      out->value = value;
    } else {
      double value = 0;
      std::from_chars(token.text.data(), end, value);
      out->value = value;
    }
    return out;
  }

  ExpressionPtr parse_brackets() {
    if (take_operator(")")) return make(ExpressionKind::kTuple);
    ExpressionPtr out = parse_tuple();
    expect_operator(")");
    return out;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};
}  // namespace

Statements parse_template(std::string_view source) { return Parser(cut_template(source)).parse(); }

}  // namespace sluice::chat
