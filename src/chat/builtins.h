#pragma once
// Filters, tests and methods of Jinja's and Python's values. Those that a sandboxed Jinja refuses
// (they change their value: append, pop, update) are refused. Pure but for what a callable given to
// them does.
#include <string>
#include <string_view>

#include "src/chat/value.h"

namespace sluice::chat {

/// value | name(arguments). Errors: TemplateError for an unknown filter or a wrong argument.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
/// value is name(arguments). Errors: as apply_filter.
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
/// value.name: a method bound to the value, an entry of a dictionary, or undefined. Errors:
/// TemplateError for an attribute of undefined.
Value attribute(const Value& value, const std::string& name);
/// value[index]: items count from the end when negative; undefined when there is none.
Value item(const Value& value, const Value& index);
/// "%d of %s" % (1, 2), for the conversions s, d, i, f, x and r.
std::string percent_format(const std::string& format, const List& values);

}  // namespace sluice::chat
