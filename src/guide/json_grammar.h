#pragma once
// The parts of JSON as expressions: strings, the white space that is offered between tokens (none,
// a space, or a line end and up to 20 blanks: so a model may indent, but not go on for ever), and
// values of any kind. Pure.
#include <string>
#include <string_view>

#include "src/guide/characters.h"
#include "src/guide/grammar.h"

namespace sluice::guide {

class JsonGrammar {
 public:
  /// Adds its rules to `grammar`, which outlives it.
  explicit JsonGrammar(Grammar& grammar);

  ExprPtr any_value() const { return call(value_); }
  ExprPtr any_object() const { return call(object_); }
  ExprPtr any_array() const { return call(array_); }
  /// A string of `least` to `most` characters (-1: any number).
  ExprPtr string(int32_t least = 0, int32_t most = -1);
  ExprPtr space() const { return space_; }

 private:
  Grammar& grammar_;
  int32_t value_, object_, array_;
  ExprPtr space_;
  ExprPtr character_;  // of a string
};

/// `content` between the quotes of a string.
ExprPtr quoted(const ExprPtr& content);
/// A string whose text is none of `names` (valid UTF-8), as a key of an object.
ExprPtr key_other_than(const std::vector<std::string>& names);

}  // namespace sluice::guide
