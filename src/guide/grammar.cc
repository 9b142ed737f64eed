#include "src/guide/grammar.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/base/error.h"

namespace sluice::guide {

namespace {
constexpr size_t kMostNodes = 500'000;
constexpr int64_t kMostSteps = 4'000'000;  // also those that write nothing: (){10000} in itself

constexpr size_t kMostTextBytes = 4 << 20;
constexpr int64_t kMostParts = 2'000'000;
thread_local int64_t parts_left = std::numeric_limits<int64_t>::max();

ExprPtr make(Expr expr) {
  parts_left -= 1 + static_cast<int64_t>(expr.children.size());
  if (parts_left < 0) refuse_guide_size();
  return std::make_shared<const Expr>(std::move(expr));
}

// A byte's expression is made once for all.
const ExprPtr& byte_expr(uint8_t byte) {
  static const std::vector<ExprPtr> all = [] {
    std::vector<ExprPtr> out;
    for (int value = 0; value < 256; ++value) {
      Expr expr;
      expr.kind = Expr::Kind::kRange;
      expr.low = expr.high = static_cast<uint8_t>(value);
      out.push_back(std::make_shared<const Expr>(std::move(expr)));
    }
    return out;
  }();
  return all[byte];
}

// Builds from the end: every part is told which node follows it.
class Builder {
 public:
  int32_t add(Node node) {
    if (nodes.size() >= kMostNodes) refuse_guide_size();
    nodes.push_back(node);
    return static_cast<int32_t>(nodes.size()) - 1;
  }

  int32_t build(const Expr& expr, int32_t next) {
    if (++steps_ > kMostSteps) refuse_guide_size();
    switch (expr.kind) {
      case Expr::Kind::kRange: return add({Node::Kind::kRange, expr.low, expr.high, next, -1});
      case Expr::Kind::kSequence:
        for (auto child = expr.children.rbegin(); child != expr.children.rend(); ++child)
          next = build(**child, next);
        return next;
      case Expr::Kind::kEither: {
        int32_t start = build(*expr.children.back(), next);
        for (auto child = expr.children.rbegin() + 1; child != expr.children.rend(); ++child)
          start = split(build(**child, next), start);
        return start;
      }
      case Expr::Kind::kRepeat: return build_repeat(expr, next);
      case Expr::Kind::kRule: {
        const int32_t node = add({Node::Kind::kCall, 0, 0, next, -1});
        calls.emplace_back(node, expr.rule);
        return node;
      }
    }
    return next;
  }

  std::vector<Node> nodes;
  std::vector<std::pair<int32_t, int32_t>> calls;  // node, rule that it calls

 private:
  int32_t split(int32_t a, int32_t b) { return add({Node::Kind::kSplit, 0, 0, a, b}); }

  int32_t build_repeat(const Expr& expr, int32_t next) {
    const Expr& child = *expr.children.front();
    int32_t start = next;
    if (expr.most < 0) {
      start = split(next, next);
      const int32_t again = build(child, start);
      nodes[static_cast<size_t>(start)].next = again;
    } else {
      for (int32_t i = expr.least; i < expr.most; ++i) start = split(build(child, start), next);
    }
    for (int32_t i = 0; i < expr.least; ++i) start = build(child, start);
    return start;
  }

  int64_t steps_ = 0;
};
}  // namespace

GuideSizeError::GuideSizeError()
    : Error(ErrorKind::kUser, "the guide (JSON schema, regex, grammar or choice) is too large",
            "shorten its bounded repetitions, such as {1000} or maxLength") {}

void refuse_guide_size() { throw GuideSizeError(); }

ExprBudget::ExprBudget(std::string_view text) : before_(parts_left) {
  if (text.size() > kMostTextBytes) refuse_guide_size();
  parts_left = kMostParts;
}
ExprBudget::~ExprBudget() { parts_left = before_; }

ExprPtr range(uint8_t low, uint8_t high) {
  if (low == high) return byte_expr(low);
  Expr expr;
  expr.kind = Expr::Kind::kRange;
  expr.low = low;
  expr.high = high;
  return make(std::move(expr));
}

ExprPtr literal(std::string_view bytes) {
  std::vector<ExprPtr> parts;
  parts.reserve(bytes.size());
  for (char c : bytes) parts.push_back(byte_expr(static_cast<uint8_t>(c)));
  return sequence(std::move(parts));
}

ExprPtr sequence(std::vector<ExprPtr> parts) {
  Expr expr;
  expr.kind = Expr::Kind::kSequence;
  expr.children = std::move(parts);
  return make(std::move(expr));
}

ExprPtr either(std::vector<ExprPtr> ways) {
  SLUICE_ASSERT(!ways.empty(), "a choice has ways");
  if (ways.size() == 1) return ways.front();
  Expr expr;
  expr.kind = Expr::Kind::kEither;
  expr.children = std::move(ways);
  return make(std::move(expr));
}

ExprPtr repeat(ExprPtr what, int32_t least, int32_t most) {
  Expr expr;
  expr.kind = Expr::Kind::kRepeat;
  expr.children = {std::move(what)};
  expr.least = least;
  expr.most = most;
  return make(std::move(expr));
}

ExprPtr optional(ExprPtr what) { return repeat(std::move(what), 0, 1); }

ExprPtr call(int32_t rule) {
  Expr expr;
  expr.kind = Expr::Kind::kRule;
  expr.rule = rule;
  return make(std::move(expr));
}

int32_t Grammar::add_rule() {
  rules_.push_back(nullptr);
  return static_cast<int32_t>(rules_.size()) - 1;
}

void Grammar::define(int32_t rule, ExprPtr what) {
  rules_[static_cast<size_t>(rule)] = std::move(what);
}

// Rules of 64^k repetitions, and of at most one less.
struct Grammar::Blocks {
  static constexpr int32_t kBase = 64;
  Grammar& grammar;
  const ExprPtr& what;
  std::vector<ExprPtr> whole, part;  // by k

  void make(size_t k) {
    while (whole.size() <= k) {
      const ExprPtr one = whole.empty() ? what : whole.back();
      const auto rule_of = [&](ExprPtr expr) {
        const int32_t rule = grammar.add_rule();
        grammar.define(rule, std::move(expr));
        return call(rule);
      };
      // Of level k: 64 of level k - 1; at most 63 of these, and a part of one.
      ExprPtr rest = whole.empty() ? sequence({}) : part.back();
      ExprPtr most = rest;
      for (int32_t i = 1; i < kBase; ++i)
        most =
            whole.empty() ? optional(sequence({one, most})) : either({sequence({one, most}), rest});
      whole.push_back(rule_of(repeat(one, kBase, kBase)));
      part.push_back(rule_of(std::move(most)));
    }
  }
  // 64^k is at most `count`.
  static std::pair<size_t, int64_t> level_of(int64_t count) {
    size_t k = 0;
    int64_t size = 1;
    for (; size * kBase <= count; size *= kBase) ++k;
    return {k, size};
  }
  ExprPtr exactly(int32_t count) {
    std::vector<ExprPtr> parts;
    while (count > 0) {
      const auto [k, size] = level_of(count);
      if (k > 0) make(k - 1);
      const auto times = static_cast<int32_t>(count / size);
      parts.push_back(repeat(k == 0 ? what : whole[k - 1], times, times));
      count -= times * static_cast<int32_t>(size);
    }
    return sequence(std::move(parts));
  }
  ExprPtr at_most(int32_t count) {
    const auto [k, size] = level_of(count);
    if (k == 0) return repeat(what, 0, count);
    make(k - 1);
    ExprPtr out = at_most(count % static_cast<int32_t>(size));
    for (int64_t i = count / size; i > 0; --i)
      out = either({sequence({whole[k - 1], out}), part[k - 1]});
    return out;
  }
};

ExprPtr Grammar::repeat_many(const ExprPtr& what, int32_t least, int32_t most) {
  if (std::max(least, most) <= 4 * Blocks::kBase) return repeat(what, least, most);
  Blocks blocks{*this, what, {}, {}};
  return sequence(
      {blocks.exactly(least), most < 0 ? repeat(what, 0) : blocks.at_most(most - least)});
}

Grammar::Network Grammar::build(const ExprPtr& start) const {
  Builder builder;
  const int32_t end = builder.add({});
  Network network;
  network.start = builder.build(*start, end);
  std::vector<int32_t> starts;
  for (const ExprPtr& rule : rules_) {
    SLUICE_ASSERT(rule != nullptr, "every rule is defined");
    starts.push_back(builder.build(*rule, end));
  }
  for (const auto& [node, rule] : builder.calls)
    builder.nodes[static_cast<size_t>(node)].other = starts[static_cast<size_t>(rule)];
  network.nodes = std::move(builder.nodes);
  return network;
}

}  // namespace sluice::guide
