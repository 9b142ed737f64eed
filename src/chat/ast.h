#pragma once
// A parsed template: expressions and statements as plain nodes, owned from the root down.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/chat/value.h"

namespace sluice::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// What a call is given, in order and by name.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

/// What an expression is, and which members of Expression it uses.
enum class ExpressionKind : uint8_t {
  kLiteral,      ///< value
  kName,         ///< text
  kList,         ///< children
  kTuple,        ///< children
  kDict,         ///< children: key, value, key, value
  kUnary,        ///< text "-", "+", "not"; children [operand]
  kBinary,       ///< text is the operator; children [left, right]
  kCompare,      ///< children [first, ...], operators between them: Python's chains
  kConditional,  ///< children [if true, condition, else or null]
  kAttribute,    ///< children [of]; text
  kIndex,        ///< children [of, index]
  kSlice,        ///< children [of, begin, end, step], the last three may be null
  kCall,         ///< children [callee]; arguments
  kFilter,       ///< children [of]; text; arguments
  kTest          ///< children [of]; text; arguments; is_negated
};

/// One expression with its parts.
struct Expression {
  ExpressionKind kind;
  int line = 0;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  CallArguments arguments;
  bool is_negated = false;
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Statements = std::vector<StatementPtr>;

/// What a statement is, and which members of Statement it uses.
enum class StatementKind : uint8_t {
  kText,       ///< text
  kPrint,      ///< expression
  kIf,         ///< branches; body: else
  kFor,        ///< targets in expression; condition; body; otherwise
  kSet,        ///< target = expression
  kSetBlock,   ///< target = what body prints, through filters
  kMacro,      ///< text: its name; parameters; body
  kCallBlock,  ///< expression: the call; parameters; body is caller()
  kFilter,     ///< body, through filters
  kScope,      ///< body in a scope of its own: with (parameters are set first), generation
  kBreak,
  kContinue
};

/// One statement with its parts.
struct Statement {
  StatementKind kind;
  int line = 0;
  std::string text;
  ExpressionPtr target;  ///< name, attribute (of a namespace) or tuple of names
  ExpressionPtr expression;
  ExpressionPtr condition;
  Statements body;
  Statements otherwise;
  std::vector<std::pair<ExpressionPtr, Statements>> branches;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  ///< with defaults or null
};

}  // namespace sluice::chat
