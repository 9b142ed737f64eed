#pragma once
// What a guided output may be, as an expression over bytes with rules that may call each other, and
// the network of nodes that it becomes (Thompson's construction; rules are called as in a recursive
// transition network). Pure.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "src/base/error.h"

namespace sluice::guide {

class Expr;
using ExprPtr = std::shared_ptr<const Expr>;

/// One node of an expression; immutable, shared by whoever refers to it.
class Expr {
 public:
  enum class Kind : uint8_t { kRange, kSequence, kEither, kRepeat, kRule };
  Kind kind = Kind::kSequence;
  uint8_t low = 0, high = 0;      ///< kRange: the bytes, both included
  std::vector<ExprPtr> children;  ///< kSequence (none: the empty text), kEither, kRepeat (one)
  int32_t least = 0, most = 0;    ///< kRepeat; most -1: any number
  int32_t rule = 0;               ///< kRule
};

/// While it lives, the thread's expressions may have so many parts together: beyond, kUser. No
/// network of more than half a million nodes is made, so what is larger need not be written down.
class ExprBudget {
 public:
  /// For what `text` asks for. Errors: GuideSizeError for one of more than 4 MiB.
  explicit ExprBudget(std::string_view text);
  ~ExprBudget();
  ExprBudget(const ExprBudget&) = delete;
  ExprBudget& operator=(const ExprBudget&) = delete;

 private:
  int64_t before_;
};
/// A guide that is too large.
struct GuideSizeError : Error {
  GuideSizeError();
};
[[noreturn]] void refuse_guide_size();

/// Expressions of each kind: a byte of a range, bytes, parts in order, one of several ways, so many
/// repetitions (most -1: any number), nothing or once, what a rule describes.
ExprPtr range(uint8_t low, uint8_t high);
ExprPtr literal(std::string_view bytes);
ExprPtr sequence(std::vector<ExprPtr> parts);
ExprPtr either(std::vector<ExprPtr> ways);
ExprPtr repeat(ExprPtr what, int32_t least, int32_t most = -1);
ExprPtr optional(ExprPtr what);
ExprPtr call(int32_t rule);

/// A point in the network.
struct Node {
  enum class Kind : uint8_t {
    kRange,   ///< reads a byte of low..high, then next
    kSplit,   ///< next or other, reading nothing
    kCall,    ///< reads what `other` begins, then next
    kReturn,  ///< the end of a rule
  };
  Kind kind = Kind::kReturn;
  uint8_t low = 0, high = 0;
  int32_t next = -1, other = -1;
};

class Grammar {
 public:
  /// A rule to be defined later; rules may call each other and themselves, but not before they have
  /// read a byte.
  int32_t add_rule();
  void define(int32_t rule, ExprPtr what);
  /// As repeat(), of any number of repetitions: many are rules of 64, 4096, ... of them, so that a
  /// million takes some hundred nodes.
  ExprPtr repeat_many(const ExprPtr& what, int32_t least, int32_t most = -1);

  struct Network {
    std::vector<Node> nodes;
    int32_t start = 0;
  };
  /// The network of what `start` says. Errors: kUser when it would have more than 500 000 nodes,
  /// or takes more than 4 000 000 steps to write (long bounded repetitions, in each other).
  Network build(const ExprPtr& start) const;

 private:
  struct Blocks;
  std::vector<ExprPtr> rules_;
};

}  // namespace sluice::guide
