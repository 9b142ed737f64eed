#include "src/chat/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>

#include "src/chat/ast.h"
#include "src/chat/builtins.h"
#include "src/chat/parser.h"

namespace sluice::chat {

namespace {
constexpr size_t kMostSourceBytes = 4 << 20;
constexpr int64_t kMostSteps = 2'000'000;  // expressions and statements evaluated
// In units of work (meter.h): a step, and what a turn of a loop costs beside its statements.
constexpr int64_t kStepWork = 8, kLoopWork = 64;
// What a conversation's own bytes let it cost, beside what any template may.
constexpr int64_t kMostWork = 16'000'000, kWorkPerByte = 16;
constexpr int64_t kMostBytes = 64 << 20, kBytesPerByte = 16;
constexpr int64_t kMostRange = 1'000'000;
constexpr int kMostCalls = 800;  // of statements, expressions and calls inside one another

// Names of one block; what is not here is looked for outside.
struct Scope {
  Scope* outer = nullptr;
  std::vector<std::pair<std::string, Value>> names;
  bool is_kept = false;  ///< a macro was defined here: it may be called later

  Value* find(const std::string& name) {
    for (auto& [key, value] : names)
      if (key == name) return &value;
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    if (Value* held = find(name))
      *held = std::move(value);
    else
      names.emplace_back(name, std::move(value));
  }
};

enum class Flow : uint8_t { kNext, kBreak, kContinue };

// Of the texts in a value that a caller gave.
int64_t text_bytes(const Value& value, int depth) {
  constexpr int kMostDepth = 200;
  int64_t bytes = 0;
  if (value.is_string()) return static_cast<int64_t>(value.string().size());
  if (depth > kMostDepth) return 0;
  if (value.is_list())
    for (const Value& item : value.list()) bytes += 1 + text_bytes(item, depth + 1);
  if (value.is_dict())
    for (const auto& [key, item] : value.dict().entries)
      bytes += 1 + text_bytes(key, depth + 1) + text_bytes(item, depth + 1);
  return bytes;
}

Value range_value(const Arguments& arguments) {
  const List& given = arguments.positional;
  if (given.empty() || given.size() > 3) throw TemplateError("range takes one to three integers");
  const int64_t begin = given.size() > 1 ? given[0].integer("range") : 0;
  const int64_t end = given[given.size() > 1 ? 1 : 0].integer("range");
  const int64_t step = given.size() > 2 ? given[2].integer("range") : 1;
  if (step == 0) throw TemplateError("range takes a step that is not 0");
  List out;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(out.size()) == kMostRange) throw TemplateError("range is too long");
    spend(1);
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return out;
}

Value strftime_value(const Arguments& arguments) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  const std::string format = arguments.positional.empty() ? "" : arguments.positional[0].text();
  char text[256];
  return std::string(text, std::strftime(text, sizeof text, format.c_str(), &local));
}

class Interpreter {
 public:
  explicit Interpreter(const Dict& variables) {
    scope_ = open(nullptr);
    for (const auto& [name, value] : variables.entries) scope_->set(name.string(), value);
    const auto add = [&](const char* name, std::function<Value(const Arguments&)> call) {
      if (!scope_->find(name)) scope_->set(name, Callable{name, std::move(call)});
    };
    add("range", range_value);
    add("strftime_now", strftime_value);
    add("raise_exception", [](const Arguments& arguments) -> Value {
      throw TemplateRefusal(arguments.positional.empty() ? "" : arguments.positional[0].text());
    });
    add("namespace", [this](const Arguments& arguments) -> Value {
      Value out = make_dict(arguments);
      out.dict().is_namespace = true;
      namespaces_.push_back(out);
      return out;
    });
    add("dict", [](const Arguments& arguments) { return make_dict(arguments); });
  }
  // A namespace may hold itself.
  ~Interpreter() {
    for (Value& value : namespaces_) value.dict().entries.clear();
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string render(const Statements& body) {
    run_all(body);
    return std::move(out_);
  }

 private:
  static Value make_dict(const Arguments& arguments) {
    Dict dict;
    for (const Value& from : arguments.positional) {
      if (from.is_dict()) {
        for (const auto& [key, value] : from.dict().entries) dict.set(key, value);
        continue;
      }
      for (const Value& pair : from.items()) {
        if (!pair.is_list() || pair.list().size() != 2)
          throw TemplateError("dict takes a dictionary or a list of pairs");
        dict.set(pair.list()[0], pair.list()[1]);
      }
    }
    for (const auto& [key, value] : arguments.named) dict.set(key, value);
    return dict;
  }

  void count_step() {
    spend(kStepWork);
    if (++steps_ > kMostSteps) throw TemplateError("the template runs without end");
  }
  struct Depth {
    explicit Depth(Interpreter& interpreter) : of(interpreter) {
      if (++of.depth_ > kMostCalls) throw TemplateError("too many calls inside one another");
    }
    ~Depth() { --of.depth_; }
    Interpreter& of;
  };

  // Scopes.
  Scope* open(Scope* outer) {
    scopes_.push_back(std::make_unique<Scope>());
    scopes_.back()->outer = outer;
    return scopes_.back().get();
  }
  // A scope for as long as this lives; one that a macro was defined in stays until the end.
  class Inside {
   public:
    Inside(Interpreter& interpreter, Scope* outer)
        : of_(interpreter), before_(interpreter.scope_), own_(interpreter.open(outer)) {
      of_.scope_ = own_;
    }
    ~Inside() {
      of_.scope_ = before_;
      if (!own_->is_kept && of_.scopes_.back().get() == own_) of_.scopes_.pop_back();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Interpreter& of_;
    Scope* before_;
    Scope* own_;
  };

  Value look_up(const std::string& name) const {
    for (Scope* scope = scope_; scope; scope = scope->outer)
      if (const Value* found = scope->find(name)) return *found;
    return Undefined{name};
  }

  void assign(const Expression& target, Value value) {
    if (target.kind == ExpressionKind::kName) {
      scope_->set(target.text, std::move(value));
    } else if (target.kind == ExpressionKind::kAttribute) {
      const Value of = evaluate(*target.children[0]);
      if (!of.is_dict() || !of.dict().is_namespace)
        throw TemplateError("only attributes of a namespace can be set");
      of.dict().set(target.text, std::move(value));
    } else {
      const List items = value.items();
      if (items.size() != target.children.size())
        throw TemplateError(
            fmt::format("{} values for {} names", items.size(), target.children.size()));
      for (size_t i = 0; i < items.size(); ++i) assign(*target.children[i], items[i]);
    }
  }

  // Statements.
  void print(std::string_view text) {
    if (out_.size() + text.size() > kMostTextBytes)
      throw TemplateError("the template prints without end");
    out_ += text;
  }

  template <typename Run>
  std::string captured(const Run& run) {
    std::string outer = std::exchange(out_, {});
    run();
    return std::exchange(out_, std::move(outer));
  }

  Flow run_all(const Statements& body) {
    for (const StatementPtr& statement : body) {
      const Flow flow = run_at_line(*statement);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  // Says the line of the innermost statement that an error came from.
  Flow run_at_line(const Statement& statement) {
    count_step();
    const Depth depth(*this);
    try {
      return run(statement);
    } catch (const TemplateRefusal&) {
      throw;
    } catch (const TemplateError& error) {
      const std::string what = error.what();
      if (what.starts_with("line ")) throw;
      throw TemplateError(fmt::format("line {}: {}", statement.line, what));
    }
  }

  Flow run(const Statement& statement) {
    switch (statement.kind) {
      case StatementKind::kText: print(statement.text); break;
      case StatementKind::kPrint: print(evaluate(*statement.expression).text()); break;
      case StatementKind::kIf: return run_if(statement);
      case StatementKind::kFor: return run_for(statement);
      case StatementKind::kSet: assign(*statement.target, evaluate(*statement.expression)); break;
      case StatementKind::kSetBlock:
        assign(*statement.target, filtered(statement.expression.get(), body_text(statement)));
        break;
      case StatementKind::kMacro:
        scope_->set(statement.text, make_macro(statement, statement.text));
        break;
      case StatementKind::kCallBlock: {
        Arguments arguments = evaluate_arguments(statement.expression->arguments);
        arguments.named.emplace_back("caller", make_macro(statement, "caller"));
        print(call(evaluate(*statement.expression->children[0]), arguments).text());
        break;
      }
      case StatementKind::kFilter:
        print(filtered(statement.expression.get(), body_text(statement)).text());
        break;
      case StatementKind::kScope: {
        const Inside inside(*this, scope_);
        for (const auto& [name, value] : statement.parameters) scope_->set(name, evaluate(*value));
        return run_all(statement.body);
      }
      case StatementKind::kBreak: return Flow::kBreak;
      case StatementKind::kContinue: return Flow::kContinue;
    }
    return Flow::kNext;
  }

  std::string body_text(const Statement& statement) {
    const Inside inside(*this, scope_);
    return captured([&] { run_all(statement.body); });
  }

  // A chain of filters with nothing innermost, applied to `text`.
  Value filtered(const Expression* chain, Value text) {
    if (!chain) return text;
    Value inner = filtered(chain->children[0].get(), std::move(text));
    return apply_filter(chain->text, inner, evaluate_arguments(chain->arguments));
  }

  Flow run_if(const Statement& statement) {
    for (const auto& [condition, body] : statement.branches)
      if (evaluate(*condition).is_true()) return run_all(body);
    return run_all(statement.otherwise);
  }

  Value loop_value(const List& items, size_t i, Value& changed) {
    const auto index = static_cast<int64_t>(i), length = static_cast<int64_t>(items.size());
    Dict loop;
    loop.is_namespace = false;
    loop.entries = {{"index", index + 1},
                    {"index0", index},
                    {"revindex", length - index},
                    {"revindex0", length - index - 1},
                    {"first", i == 0},
                    {"last", i + 1 == items.size()},
                    {"length", length}};
    if (i > 0) loop.set("previtem", items[i - 1]);
    if (i + 1 < items.size()) loop.set("nextitem", items[i + 1]);
    loop.set("cycle", Callable{"cycle", [index](const Arguments& arguments) -> Value {
                                 const List& all = arguments.positional;
                                 if (all.empty()) throw TemplateError("cycle takes values");
                                 return all[static_cast<size_t>(index) % all.size()];
                               }});
    loop.set("changed", Callable{"changed", [&changed](const Arguments& arguments) -> Value {
                                   Value now(arguments.positional);
                                   const bool is_new = !(now == changed);
                                   changed = std::move(now);
                                   return is_new;
                                 }});
    return loop;
  }

  Flow run_for(const Statement& statement) {
    List items = evaluate(*statement.expression).items();
    const Held held(static_cast<int64_t>(items.size() * sizeof(Value)));
    if (statement.condition) {
      List kept;
      for (Value& item : items) {
        count_step();
        const Inside inside(*this, scope_);
        assign(*statement.target, item);
        if (evaluate(*statement.condition).is_true()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) return run_all(statement.otherwise);
    Value changed;
    for (size_t i = 0; i < items.size(); ++i) {
      count_step();
      spend(kLoopWork);
      const Inside inside(*this, scope_);
      scope_->set("loop", loop_value(items, i, changed));
      assign(*statement.target, items[i]);
      if (run_all(statement.body) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  Value make_macro(const Statement& statement, const std::string& name) {
    for (Scope* scope = scope_; scope && !scope->is_kept; scope = scope->outer)
      scope->is_kept = true;
    return Callable{name,
                    [this, &statement, defined_in = scope_](const Arguments& arguments) -> Value {
                      return run_macro(statement, defined_in, arguments);
                    }};
  }

  Value run_macro(const Statement& macro, Scope* defined_in, const Arguments& arguments) {
    const Depth depth(*this);
    const Inside inside(*this, defined_in);
    const auto parameter = [&](const std::string& name) {
      return std::any_of(macro.parameters.begin(), macro.parameters.end(),
                         [&](const auto& one) { return one.first == name; });
    };
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, fallback] = macro.parameters[i];
      const Value* given = arguments.get(i, name);
      scope_->set(name, given ? *given : fallback ? evaluate(*fallback) : Value(Undefined{name}));
    }
    List rest;
    for (size_t i = macro.parameters.size(); i < arguments.positional.size(); ++i)
      rest.push_back(arguments.positional[i]);
    scope_->set("varargs", Value::make_tuple(std::move(rest)));
    Dict named;
    for (const auto& [name, value] : arguments.named) {
      if (name == "caller")
        scope_->set(name, value);
      else if (!parameter(name))
        named.set(name, value);
    }
    scope_->set("kwargs", std::move(named));
    return captured([&] { run_all(macro.body); });
  }

  // Expressions.
  Arguments evaluate_arguments(const CallArguments& arguments) {
    Arguments out;
    for (const ExpressionPtr& one : arguments.positional) out.positional.push_back(evaluate(*one));
    for (const auto& [name, one] : arguments.named) out.named.emplace_back(name, evaluate(*one));
    return out;
  }

  Value call(const Value& callee, const Arguments& arguments) {
    if (callee.is_callable()) return callee.callable().call(arguments);
    throw TemplateError(callee.type_name() + " can't be called");
  }

  Value evaluate(const Expression& e) {
    count_step();
    const Depth depth(*this);
    switch (e.kind) {
      case ExpressionKind::kLiteral: return e.value;
      case ExpressionKind::kName: return look_up(e.text);
      case ExpressionKind::kList:
      case ExpressionKind::kTuple: {
        List list;
        for (const ExpressionPtr& child : e.children) list.push_back(evaluate(*child));
        return e.kind == ExpressionKind::kTuple ? Value::make_tuple(std::move(list))
                                                : Value(std::move(list));
      }
      case ExpressionKind::kDict: {
        Dict dict;
        for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
          Value key = evaluate(*e.children[i]);
          dict.set(std::move(key), evaluate(*e.children[i + 1]));
        }
        return dict;
      }
      case ExpressionKind::kUnary: return evaluate_unary(e);
      case ExpressionKind::kBinary: return evaluate_binary(e);
      case ExpressionKind::kCompare: return evaluate_compare(e);
      case ExpressionKind::kConditional:
        if (evaluate(*e.children[1]).is_true()) return evaluate(*e.children[0]);
        return e.children[2] ? evaluate(*e.children[2]) : Value(Undefined{"the missing else"});
      case ExpressionKind::kAttribute: return attribute(evaluate(*e.children[0]), e.text);
      case ExpressionKind::kIndex: {
        const Value of = evaluate(*e.children[0]);
        return item(of, evaluate(*e.children[1]));
      }
      case ExpressionKind::kSlice: return evaluate_slice(e);
      case ExpressionKind::kCall: {
        const Value callee = evaluate(*e.children[0]);
        return call(callee, evaluate_arguments(e.arguments));
      }
      case ExpressionKind::kFilter: {
        const Value of = evaluate(*e.children[0]);
        return apply_filter(e.text, of, evaluate_arguments(e.arguments));
      }
      case ExpressionKind::kTest: {
        const Value of = evaluate(*e.children[0]);
        return apply_test(e.text, of, evaluate_arguments(e.arguments)) != e.is_negated;
      }
    }
    return {};
  }

  Value evaluate_unary(const Expression& e) {
    const Value of = evaluate(*e.children[0]);
    if (e.text == "not") return !of.is_true();
    if (of.is_float()) return e.text == "-" ? -of.number("-") : of.number("+");
    const int64_t number = of.integer(e.text.c_str());
    return e.text == "-" ? static_cast<int64_t>(-static_cast<uint64_t>(number)) : number;
  }

  Value evaluate_binary(const Expression& e) {
    Value left = evaluate(*e.children[0]);
    if (e.text == "or") return left.is_true() ? left : evaluate(*e.children[1]);
    if (e.text == "and") return left.is_true() ? evaluate(*e.children[1]) : left;
    const Value right = evaluate(*e.children[1]);
    if (e.text == "~") return joined(left.text(), right.text());
    if (e.text == "+") {
      if (left.is_string() && right.is_string()) return joined(left.string(), right.string());
      if (left.is_list() && right.is_list()) {
        if (left.list().size() + right.list().size() > size_t{kMostRange})
          throw TemplateError("a list is too long");
        spend(static_cast<int64_t>(2 * (left.list().size() + right.list().size())));
        List both = left.list();
        both.insert(both.end(), right.list().begin(), right.list().end());
        return both;
      }
    }
    if (e.text == "*" && (left.is_string() || right.is_string())) return repeated(left, right);
    if (e.text == "%" && left.is_string())
      return percent_format(left.string(), right.is_tuple() ? right.list() : List{right});
    if (!left.is_number() || !right.is_number())
      throw TemplateError(
          fmt::format("{} {} {}: no such operation", left.type_name(), e.text, right.type_name()));
    return arithmetic(e.text, left, right);
  }

  Value joined(const std::string& left, const std::string& right) {
    check_text(left.size() + right.size());
    return left + right;
  }

  Value repeated(const Value& left, const Value& right) {
    const std::string& text = (left.is_string() ? left : right).string();
    const int64_t times = (left.is_string() ? right : left).integer("*");
    std::string out;
    if (!text.empty() && times > static_cast<int64_t>(kMostTextBytes / text.size()))
      throw TemplateError("the repeated string is too long");
    if (times > 0) spend(1 + static_cast<int64_t>(text.size()) * times / 64);
    if (text.size() == 1 && times > 0) return std::string(static_cast<size_t>(times), text[0]);
    for (int64_t i = 0; !text.empty() && i < times; ++i) out += text;
    spend(times > 0 ? times / 4 : 0);
    return out;
  }

  static Value arithmetic(const std::string& op, const Value& left, const Value& right) {
    const char* name = op.c_str();
    if (op == "/" || op == "//" || op == "%") {
      if (right.number(name) == 0) throw TemplateError("a division by zero");
    }
    const bool is_whole = !left.is_float() && !right.is_float();
    if (is_whole && op != "/" && op != "**") {
      const int64_t a = left.integer(name), b = right.integer(name);
      int64_t out = 0;
      if (op == "//" || op == "%") {
        if (b == -1)
          return op == "%" ? int64_t{0} : static_cast<int64_t>(-static_cast<uint64_t>(a));
        const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0));
        return op == "//" ? quotient : a - quotient * b;
      }
      const bool overflows = op == "+"   ? __builtin_add_overflow(a, b, &out)
                             : op == "-" ? __builtin_sub_overflow(a, b, &out)
                                         : __builtin_mul_overflow(a, b, &out);
      if (overflows) throw TemplateError("an integer of more than 64 bits");
      return out;
    }
    const double a = left.number(name), b = right.number(name);
    if (op == "**") {
      const double power = std::pow(a, b);
      return is_whole && b >= 0 && std::abs(power) < 9e15 ? Value(static_cast<int64_t>(power))
                                                          : Value(power);
    }
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "/") return a / b;
    const double quotient = std::floor(a / b);
    return op == "//" ? quotient : a - quotient * b;
  }

  Value evaluate_compare(const Expression& e) {
    Value left = evaluate(*e.children[0]);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = evaluate(*e.children[i + 1]);
      if (!holds(e.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }
  static bool holds(const std::string& op, const Value& left, const Value& right) {
    if (op == "==") return left == right;
    if (op == "!=") return !(left == right);
    if (op == "in") return contains(right, left);
    if (op == "not in") return !contains(right, left);
    const int order = compare(left, right);
    return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
  }

  Value evaluate_slice(const Expression& e) {
    const Value of = evaluate(*e.children[0]);
    if (!of.is_list() && !of.is_string()) throw TemplateError("a slice of " + of.type_name());
    const auto bound = [&](size_t child) -> std::optional<int64_t> {
      if (!e.children[child]) return std::nullopt;
      const Value value = evaluate(*e.children[child]);
      if (value.is_none()) return std::nullopt;
      return value.integer("a slice");
    };
    const std::optional<int64_t> first = bound(1), last = bound(2);
    const int64_t step = bound(3).value_or(1);
    if (step == 0) throw TemplateError("a slice takes a step that is not 0");
    const int64_t length = of.length();
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
    const auto clamped = [&](std::optional<int64_t> at, int64_t fallback) {
      if (!at) return fallback;
      return std::clamp(*at < 0 ? *at + length : *at, low, high);
    };
    const int64_t begin = clamped(first, step > 0 ? low : high);
    const int64_t end = clamped(last, step > 0 ? high : low);
    if (of.is_string() && step == 1) {
      const size_t from = byte_of_character(of.string(), begin);
      const std::string_view rest = std::string_view(of.string()).substr(from);
      return std::string(
          rest.substr(0, byte_of_character(rest, std::max<int64_t>(end - begin, 0))));
    }
    const List items = of.items();
    List out;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      out.push_back(items[static_cast<size_t>(i)]);
      if (std::abs(step) > length) break;
    }
    if (of.is_list())
      return of.is_tuple() ? Value::make_tuple(std::move(out)) : Value(std::move(out));
    std::string text;
    for (const Value& c : out) text += c.string();
    return text;
  }

  std::string out_;
  int64_t steps_ = 0;
  int depth_ = 0;
  Scope* scope_ = nullptr;
  std::vector<std::unique_ptr<Scope>> scopes_;
  List namespaces_;
};
}  // namespace

struct Template::Root {
  Statements body;
};

Template::Template(std::string_view source) : root_(std::make_unique<Root>()) {
  if (source.size() > kMostSourceBytes) throw TemplateError("the template is larger than 4 MiB");
  root_->body = parse_template(source);
}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const Dict& variables) const {
  int64_t input = 0;
  for (const auto& [name, value] : variables.entries) input += text_bytes(value, 0);
  Meter meter(kMostWork + kWorkPerByte * input, kMostBytes + kBytesPerByte * input);
  return Interpreter(variables).render(root_->body);
}

}  // namespace sluice::chat
